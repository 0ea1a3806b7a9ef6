"""By what training fails, and what is said of it to who is not here."""

import re

import torch
from torch.distributed.checkpoint.api import CheckpointException

from rekindle_training.last_words import LONGEST, in_words
from rekindle_wire.training_pb2 import Standing

__all__ = ["FAILURES", "LONGEST", "cause_in_words", "fault_of", "in_words"]

FAILURES = (Exception, CheckpointException)
"""Torch's failed checkpoint is no `Exception`."""


def cause_in_words(error: BaseException) -> str:
    """The operating system's words, where it has led to this error; otherwise what failed."""
    first = min(error.failures.items())[1][0] if isinstance(error, CheckpointException) else error
    cause: BaseException | None = first
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return in_words(cause or first)


_OF_MEMORY = re.compile(r"\bECC\b|\buncorrectable\b", re.IGNORECASE)
"""As drivers of accelerators say it."""


def fault_of(error: BaseException) -> "Standing.Fault.ValueType":
    """Of what kind a failure is, for who decides whether another try may help."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _OF_MEMORY.search(in_words(error)):
        return Standing.MEMORY
    return Standing.OTHER
