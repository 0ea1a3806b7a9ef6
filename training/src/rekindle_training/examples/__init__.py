"""The same small GPT twice: plain PyTorch, and with Rekindle's session. The difference is a handful of lines."""
