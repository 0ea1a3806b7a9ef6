"""Events that a pod schedules for itself. Used by `pod.py`."""

from dataclasses import dataclass

from rekindle_wire.training_pb2 import Restart


@dataclass(frozen=True)
class GraceOver:
    """Kills ranks that received a signal to end and have not ended."""

    number: int
    """Number of the grace period. If another one has started since, the event is ignored."""
    seconds: float


@dataclass(frozen=True)
class StillEnding:
    """Logs the ranks that take long to end."""

    number: int


@dataclass(frozen=True)
class ManagerDue:
    """Kills a manager that does not end by itself after all ranks have ended."""

    life: int


@dataclass(frozen=True)
class RestartDue:
    """Carries out a restart. The ends that led to this order are known by now."""

    order: Restart


@dataclass(frozen=True)
class SpareDue:
    """Loads another spare."""


@dataclass(frozen=True)
class StillStopped:
    """Kills a process that is still stopped, if needed: a manager, or a rank that received a signal to end."""

    name: str


@dataclass(frozen=True)
class Undecided:
    """Ends the wait for a decision if no message has arrived since."""

    words: int
