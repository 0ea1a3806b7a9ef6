"""What a pod has said to itself for later. Used by `pod.py`."""

from dataclasses import dataclass

from rekindle_wire.training_pb2 import Restart


@dataclass(frozen=True)
class GraceOver:
    """Whoever of this life of the pod is still there is killed."""

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
    """A manager that does not go on is ended, and followed by another one."""


@dataclass(frozen=True)
class Undecided:
    """Nothing was heard since so many words."""

    words: int
