"""Batches of the loaders that people have, with a position that a session can put back: `rekindle_training.batches(loader)`."""
