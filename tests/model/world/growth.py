"""Changes of the size of the model's own training side: pods leave by order, and missing ones come back.

There is one object for each life of a manager. A successor receives the order of an open attempt again.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.model.world.messages import TICK, Message

if TYPE_CHECKING:
    from tests.model.world.training import Training

UPGRADE, FAILED = "upgrade", 406
STARTS = 900.0
"""Seconds that it waits for processes of new pods."""


class Growth:
    """Return of pods. Training goes on until all of their processes have loaded."""

    def __init__(self, training: "Training") -> None:
        self.training, self.clock, self.world = training, training.clock, training.world
        self._pods: frozenset[int] = frozenset()
        """Pod ranks that are to come back. Empty: none are."""
        self._uuid = ""
        self._seen: set[str] = set()
        self.over = False
        """True if another process is the manager."""

    def order(self, uuid: str, pods: Iterable[int]) -> None:
        if uuid in self._seen or self.over:
            return
        self._seen.add(uuid)
        self.stop("another order to grow has followed")
        self._uuid, self._pods = uuid, frozenset(pods)
        self._begin(uuid)

    def _begin(self, uuid: str) -> None:
        boss = self.training.boss
        if not self._goes_on(uuid) or boss is None:
            return
        if not boss.met:
            self.clock.after(TICK, lambda: self._begin(uuid))
        elif self.training.state != "training" or boss.recovery:
            self.stop("a fault is being recovered")
        elif self._pods <= self.training.members.keys():
            self._answer(0, "these ranks are there already")
        else:
            self._await(uuid, self.clock.now.timestamp() + STARTS)

    def stop(self, why: str) -> None:
        """Ends the return: training goes on as before, or is recovered."""
        if self._pods:
            self._answer(FAILED, why)

    def _answer(self, code: int, why: str) -> None:
        self._pods = frozenset()
        if self.training.boss and not self.over:
            self.training.boss.tell(Message("status", code=code, strategy=UPGRADE, words=why, answers=(self._uuid, UPGRADE)))

    def _goes_on(self, uuid: str) -> bool:
        return not self.over and bool(self._pods) and self._uuid == uuid and self.training.state != "gone"

    def _await(self, uuid: str, until: float) -> None:
        if not self._goes_on(uuid):
            return
        if self._pods <= self._there().keys():
            self.clock.after(self.clock.random.choice((0.1, 2.0)), lambda: self._join(uuid))
        elif self.clock.now.timestamp() > until:
            self.stop("no processes came")
        else:
            self.clock.after(TICK, lambda: self._await(uuid, until))

    def _there(self) -> dict[int, str]:
        return self.training.ready_backups(self._pods)

    def _join(self, uuid: str) -> None:
        """Lets the new processes join, unless one of them has died meanwhile."""
        if not self._goes_on(uuid):
            return
        there = self._there()
        if self.training.state != "training" or not self._pods <= there.keys():
            self.stop("a new process died")
            return
        self.training.come(there)
        self._answer(0, "training goes on")
