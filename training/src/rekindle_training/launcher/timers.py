"""What a pod has said to itself for later. Used by `pod.py`."""

from dataclasses import dataclass

from rekindle_wire.training_pb2 import Restart


@dataclass(frozen=True)
class GraceOver:
    """Ranks that were told to end, and have not, are killed."""

    number: int
    """Of the grace: where another one was given since, nothing happens."""
    seconds: float


@dataclass(frozen=True)
class StillEnding:
    """Ranks that take long to end are named."""

    number: int


@dataclass(frozen=True)
class ManagerDue:
    """A manager that does not end by itself when all ranks have ended is killed."""

    life: int


@dataclass(frozen=True)
class RestartDue:
    """By now the ends that led to this order are known."""

    order: Restart


@dataclass(frozen=True)
class SpareDue:
    """There is time to load another one."""


@dataclass(frozen=True)
class StillStopped:
    """A process that does not go on is killed, where it has to: a manager, or a rank that was told to end."""

    name: str


@dataclass(frozen=True)
class Undecided:
    """Nothing was heard since so many words."""

    words: int
