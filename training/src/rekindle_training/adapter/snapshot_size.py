"""Size of a rank's snapshots. Used by `snapshots.py`."""

import torch

from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.skeleton import taken_apart
from rekindle_training.adapter.trained import Trained

_MOMENTS = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Adagrad": 1, "RMSprop": 1}
"""Number of moments of the size of a parameter that an optimizer of torch will have when it has updated once."""


def bytes_of(trained: Trained) -> int:
    """Returns the bytes of the tensors in a snapshot. What an optimizer will have after its first update counts."""
    _, tensors = taken_apart(trained.collect())
    held = sum(local(tensor).nbytes for tensor in tensors)
    return held + sum(_moments(optimizer) for optimizer in trained.optimizers if not optimizer.state)


def _moments(optimizer: torch.optim.Optimizer) -> int:
    options = optimizer.defaults
    number = _MOMENTS.get(type(optimizer).__name__, bool(options.get("momentum"))) + bool(options.get("amsgrad"))
    parameters = (one for group in optimizer.param_groups for one in group["params"] if one.requires_grad)
    return number * sum(local(one).nbytes for one in parameters)
