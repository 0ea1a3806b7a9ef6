"""By what training fails, and what is said of it to who is not here."""

from torch.distributed.checkpoint.api import CheckpointException

FAILURES = (Exception, CheckpointException)
"""Torch's failed checkpoint is no `Exception`."""

LONGEST = 500
"""Characters that the manager is told; all of it stands in this rank's log."""


def in_words(error: BaseException) -> str:
    """What failed, as one line or more."""
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # an exception of the script may do anything
        words = type(error).__name__
    return words[:LONGEST].encode(errors="replace").decode()
