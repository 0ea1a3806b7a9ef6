"""The PyTorch adapter: the only part of the training side that needs torch, and the only one that user code meets."""
