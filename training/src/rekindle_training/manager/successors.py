"""Whose rank another process takes in a repair, and where that process comes from. Used by `repair.py`."""

import time
from collections.abc import Collection

from rekindle_training import names
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.procedures import Plan
from rekindle_training.manager.rank_process import RankProcess, launcher_of
from rekindle_training.manager.roster import Members, Roster
from rekindle_wire.training_pb2 import ProcessState

LAUNCHER_SECONDS = 10.0
"""So long a launcher may say nothing; it comes back every 0.1 s."""
STARTS = 3
"""How often a process of each rank is started, on average, before it is said that they end before they join."""


class CannotRepair(Exception):
    """Only the last checkpoint is left to go on from; the message says why."""


class Futile(CannotRepair):
    """Training ends: a restart would come to the same end."""


class LoopsDiffer(Futile):
    """The script does not do the same steps on all ranks, and would not after a restart."""


class NotReplaced(CannotRepair):
    """A rank is gone that nobody replaces here."""


class Nobody:
    """Who lives repeats the step, and that has to be all."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._before = {*roster.last_words, *(member.identity for member in roster.members.values())}

    @property
    def first_error(self) -> str:
        """First error by which a process failed that was to take a rank; empty: none is known."""
        said = self._roster.last_words.items()
        return next((f"rank {rank}: {words}" for process, (rank, words) in said if process not in self._before), "")

    @property
    def ranks(self) -> frozenset[int]:
        """Those that another process is to take now.

        Raises:
            NotReplaced: another one is gone.
        """
        self._refuse(self._roster.vacant)
        return frozenset()

    @property
    def there(self) -> Members:
        """Processes that could."""
        return {}

    def start(self, ranks: frozenset[int]) -> None:
        """Sees to it that there will be some. Raises CannotRepair where that was tried often enough."""

    def refuse(self, plan: Plan) -> None:
        """Raises CannotRepair where a process could not be given what it needs."""

    @staticmethod
    def _refuse(gone: Collection[int]) -> None:
        if gone:
            raise NotReplaced(f"rank {min(gone)} is gone")


class InPlace(Nobody):
    """The launcher of a rank whose process has ended starts another one, or gives it a spare."""

    def __init__(self, roster: Roster, pods: Pods, ranks: frozenset[int] | None = None) -> None:
        """`ranks`: those that may be replaced; by default all."""
        super().__init__(roster)
        self._pods, self._allowed = pods, ranks
        self._ordered: set[str] = set()
        """Processes that another one is to follow."""
        self._unheard: dict[int, float] = {}
        """Since when the launcher of a rank's pod does not speak."""

    @property
    def ranks(self) -> frozenset[int]:
        vacant = self._roster.vacant
        if self._allowed is not None:
            self._refuse(vacant - self._allowed)
        return vacant

    @property
    def there(self) -> Members:
        """In a pod that came as a backup they say so, and mean this rank. Behind a hot switch the old process may stand yet."""
        old = {process.rank: process for process in self._roster.retired if process.connected and not process.dismissed}
        there = {**old, **self._roster.backups}
        return {**{rank: there[rank] for rank in self._roster.vacant & there.keys()}, **self._roster.starting}

    def start(self, ranks: frozenset[int]) -> None:
        """A process that ends before it joins is followed by another one, as long as there is hope."""
        self._refuse_without_launcher(ranks)
        for process in list(self._pods.processes):
            if process.HasField("ended") and process.process not in self._ordered and self._is_in_place(process, ranks):
                if len(self._ordered) >= STARTS * self._roster.world_size:
                    error = f": {self.first_error}" if self.first_error else ""
                    raise CannotRepair(
                        f"processes of rank {process.rank} end before they join, the last one with code {process.ended}{error}"
                    )
                self._ordered.add(process.process)
                self._pods.replace(process)

    def _is_in_place(self, process: ProcessState, ranks: frozenset[int]) -> bool:
        """And not in a pod of which another one has taken the ranks, and that is still there."""
        member = self._roster.members.get(process.rank)
        mine = member is None or member.identity == process.process or not self._roster.has_trained(process.process)
        return mine and process.rank in ranks

    def _refuse_without_launcher(self, ranks: frozenset[int]) -> None:
        now, heard = time.monotonic(), {one.rank for one in self._pods.processes if self._is_in_place(one, ranks)}
        self._unheard = {rank: self._unheard.get(rank, now) for rank in ranks - heard}
        if late := [rank for rank, since in self._unheard.items() if now - since > LAUNCHER_SECONDS]:
            raise NotReplaced(f"the pod of rank {min(late)} is gone")


class Elsewhere(Nobody):
    """Processes of backup pods take all ranks of some pods, whose own processes may live: those are retired."""

    def __init__(self, roster: Roster, pods: Pods, ranks: Collection[int]) -> None:
        super().__init__(roster)
        self._pods = pods
        members = {rank: roster.members.get(rank) for rank in ranks}
        self._left = {launcher_of(member.identity) for member in members.values() if member is not None}
        """Launchers of the pods that are replaced."""
        self._given_up: set[str] = set()
        """Launchers of pods that were to take their place, and did not come so far."""
        taken = roster.has_just_taken_over and all(member is not None and _is_backup(member) for member in members.values())
        self._leaving = {} if taken else members
        """A manager that follows one which had carried this out finds the backups where they belong."""

    @property
    def ranks(self) -> frozenset[int]:
        leaving = frozenset(rank for rank, member in self._leaving.items() if self._roster.members.get(rank) is member)
        self._refuse(self._roster.vacant - leaving)
        return leaving

    @property
    def there(self) -> Members:
        """Backups; or processes of a pod that others have made anew, which know of no other role. What was started in a pod that
        is to go has no future."""
        anew = {
            rank: process for rank, process in self._roster.starting.items() if launcher_of(process.identity) not in self._left
        }
        return {**anew, **self._roster.backups}

    def start(self, ranks: frozenset[int]) -> None:
        """Others make pods. One in which a process ended before it joined ends as well, so that they see it and make another."""
        for process in list(self._pods.processes):
            launcher = launcher_of(process.process)
            if process.rank in ranks and process.HasField("ended") and launcher not in self._left | self._given_up:
                self._given_up.add(launcher)
                self._pods.release(f"rank {process.rank} ended with {process.ended} before it joined", process.process)

    def refuse(self, plan: Plan) -> None:
        """What only a rank has is in the memory of its pod, and in the keeping of another one."""
        if plan.step and (missing := sorted(self.ranks - plan.own_states.keys())):
            raise CannotRepair(
                f"nobody keeps the random numbers and the data position of rank {missing[0]} behind step {plan.step}"
            )


def _is_backup(member: RankProcess) -> bool:
    return member.role == names.BACKUP and not member.lost
