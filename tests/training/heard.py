"""A manager's knowledge of two ranks, and time that a test makes."""

from collections.abc import Callable
from typing import Any, Protocol

from rekindle_training.manager.membership import Membership
from rekindle_wire.training_pb2 import Hello, RankMessage


class Watching(Protocol):
    def look(self) -> None:
        """Called every half a second."""


class Ranks:
    """Two ranks, both members of the first generation."""

    def __init__(self, watching: Callable[[Membership, Callable[[], None], Callable[[], float]], Watching]) -> None:
        """Makes what watches the ranks from the membership, a function that interrupts communication between ranks, and a
        clock."""
        self.membership, self.now, self.cuts = Membership(2), 0.0, 0
        processes = [self.membership.enroll(Hello(rank=rank, role="worker", process=f"a/{rank}"), 0)[0] for rank in range(2)]
        self.membership.install(dict(enumerate(processes)))
        self._watching = watching(self.membership, self._cut, lambda: self.now)

    def _cut(self) -> None:
        self.cuts += 1

    def says(self, rank: int, **kind: Any) -> None:
        generation = self.membership.members[rank].generation
        self.membership.hear(self.membership.members[rank], RankMessage(generation=generation, **kind))

    def looks(self, seconds: float) -> int:
        """Returns how often communication between the ranks was interrupted in this time."""
        before = self.cuts
        for _ in range(int(seconds * 2)):
            self._watching.look()
            self.now += 0.5
        return self.cuts - before
