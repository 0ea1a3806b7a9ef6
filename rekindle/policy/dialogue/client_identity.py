"""Decides whether two streams of a job come from the same process of its training side. The wire contract has no field for that.

A client is written as up to three words: its address, the UID of its pod, and the start time of its manager's container, such
as `10.0.0.7 3f2c 2026-01-01T00:00:00Z`. Unknown words are left out, from the end.
"""

from enum import StrEnum

UNSURE = "its stream was away, and its client repeats no report: a fault that it told meanwhile is lost"
"""Message for a client that came back."""

WORDS = 3
"""Number of words of a client of which everything is known."""


def doubts(manager_lost: str, unsure: bool) -> list[str]:
    """Returns the reasons, in words, why silence of the training side does not mean that all is well.

    Args:
        manager_lost: description of how the job's manager was lost for good; empty: it was not.
        unsure: the job's client came back after an outage, and has reported nothing since.
    """
    return [*([f"its manager was lost: {manager_lost}"] if manager_lost else []), *([UNSURE] if unsure else [])]


class Identity(StrEnum):
    SAME = "same"
    ANOTHER = "another"
    UNKNOWN = "unknown"
    """The clients are equal as far as is known. A container that was restarted keeps its address."""


def identity(before: str, after: str) -> Identity:
    """Compares the client that is connected now with an earlier one."""
    old, new = before.split(), after.split()
    if len(old) == len(new) == WORDS:
        return Identity.SAME if old[1:] == new[1:] else Identity.ANOTHER
    differ = any(was != now for was, now in zip(old, new, strict=False) if _comparable(was, now))
    return Identity.ANOTHER if differ else Identity.UNKNOWN


def _comparable(was: str, now: str) -> bool:
    """Returns whether two addresses are of the same family. A pod with two families may connect with either."""
    return (":" in was) == (":" in now)
