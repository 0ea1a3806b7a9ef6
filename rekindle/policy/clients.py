"""Whether two streams of a job come from one process of its training side. The modes and `TrainingJob` ask; nothing on the wire
says so.

A client is written as up to three words: its address, the UID of its pod, and when the container of its manager was started, such
as `10.0.0.7 3f2c 2026-01-01T00:00:00Z`. Who fills it in leaves out what it does not know, from the end.
"""

from enum import StrEnum

UNSURE = "its stream was away, and MindIO repeats no report: a fault that it told meanwhile is lost"
"""Words for a client that came back."""

WORDS = 3
"""A client of which all is known."""


def doubts(manager_lost: str, unsure: bool) -> list[str]:
    """Returns in words what keeps the training side's silence from meaning that all is well.

    Args:
        manager_lost: how a MindIO job's manager was lost; empty: it was not.
        unsure: its client came back after an outage, and has not spoken since.
    """
    return [*([f"its manager was lost: {manager_lost}"] if manager_lost else []), *([UNSURE] if unsure else [])]


class Identity(StrEnum):
    SAME = "same"
    ANOTHER = "another"
    UNKNOWN = "unknown"
    """The same as far as is known: a container that was started again keeps its address."""


def identity(before: str, after: str) -> Identity:
    """Whether the client that is here now is the process that was here before."""
    old, new = before.split(), after.split()
    if len(old) == len(new) == WORDS:
        return Identity.SAME if old[1:] == new[1:] else Identity.ANOTHER
    differ = any(was != now for was, now in zip(old, new, strict=False) if _comparable(was, now))
    return Identity.ANOTHER if differ else Identity.UNKNOWN


def _comparable(was: str, now: str) -> bool:
    """A pod with two families of addresses may come by either."""
    return (":" in was) == (":" in now)
