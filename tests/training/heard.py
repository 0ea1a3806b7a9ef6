"""A manager's knowledge of two ranks, and time that a test makes."""

from collections.abc import Callable
from typing import Any, Protocol

from rekindle_training.manager.roster import Roster
from rekindle_wire.training_pb2 import Hello, RankMessage


class Watching(Protocol):
    def look(self) -> None:
        """Called every half a second."""


class Ranks:
    """Both are members of the first generation."""

    def __init__(self, watching: Callable[[Roster, Callable[[], None], Callable[[], float]], Watching]) -> None:
        """`watching` is made with the roster, what breaks off what goes on between the ranks, and a clock."""
        self.roster, self.now, self.cuts = Roster(2), 0.0, 0
        processes = [self.roster.enroll(Hello(rank=rank, role="worker", process=f"a/{rank}"), 0)[0] for rank in range(2)]
        self.roster.install(dict(enumerate(processes)))
        self._watching = watching(self.roster, self._cut, lambda: self.now)

    def _cut(self) -> None:
        self.cuts += 1

    def says(self, rank: int, **kind: Any) -> None:
        generation = self.roster.members[rank].generation
        self.roster.hear(self.roster.members[rank], RankMessage(generation=generation, **kind))

    def looks(self, seconds: float) -> int:
        """How often it has broken off what goes on between the ranks in this time."""
        before = self.cuts
        for _ in range(int(seconds * 2)):
            self._watching.look()
            self.now += 0.5
        return self.cuts - before
