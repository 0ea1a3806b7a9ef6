"""Failures that end a step of training, and their descriptions for other processes."""

import re

import torch
from torch.distributed.checkpoint.api import CheckpointException

from rekindle_training.last_words import LONGEST, in_words
from rekindle_wire.training_pb2 import Standing

__all__ = ["FAILURES", "LONGEST", "cause_in_words", "fault_of", "in_words"]

FAILURES = (Exception, CheckpointException)
"""Exceptions by which training fails. Torch's CheckpointException is not a subclass of `Exception`."""


def cause_in_words(error: BaseException) -> str:
    """Returns the operating system's message if it led to this error. Otherwise returns the description of the failure."""
    first = min(error.failures.items())[1][0] if isinstance(error, CheckpointException) else error
    cause: BaseException | None = first
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return in_words(cause or first)


_OF_MEMORY = re.compile(r"\bECC\b|\buncorrectable\b", re.IGNORECASE)
"""Words with which drivers of accelerators report memory errors."""


def fault_of(error: BaseException) -> "Standing.Fault.ValueType":
    """Returns the type of a failure, by which it is decided whether another try may help."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _OF_MEMORY.search(in_words(error)):
        return Standing.MEMORY
    return Standing.OTHER
