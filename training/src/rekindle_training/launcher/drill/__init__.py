"""The drill: `rekindle-train --drill train.py` runs a script for a few steps, disturbs it, and says what of it survives."""
