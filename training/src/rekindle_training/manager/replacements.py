"""Ranks that other processes take in a repair, and the sources of these processes. Used by `repair.py`."""

import time
from collections.abc import Collection

from rekindle_training import names
from rekindle_training.manager.membership import Members, Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.procedures import Plan
from rekindle_training.manager.rank_process import RankProcess, launcher_of
from rekindle_wire.training_pb2 import ProcessState

LAUNCHER_SECONDS = 10.0
"""Seconds for which a launcher may be silent. It reconnects every 0.1 s."""
STARTS = 3
"""Average number of starts for each rank, after which the processes are reported to end before they join."""


class CannotRepair(Exception):
    """Training can only go on from the last checkpoint. The message says why."""


class Futile(CannotRepair):
    """Training ends, because a restart would fail in the same way."""


class LoopsDiffer(Futile):
    """The script does not do the same steps on all ranks, and would not after a restart."""


class NotReplaced(CannotRepair):
    """A rank is gone, and no process replaces it here."""


class Nobody:
    """Replaces no rank: all ranks live, and repeat the step. Base class of the other sources of processes."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._before = {*membership.last_words, *(member.identity for member in membership.members.values())}

    @property
    def first_error(self) -> str:
        """Returns the first error of a process that was to take a rank. Empty: none is known."""
        said = self._membership.last_words.items()
        return next((f"rank {rank}: {words}" for process, (rank, words) in said if process not in self._before), "")

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that another process is to take now.

        Raises:
            NotReplaced: another rank is gone.
        """
        self._refuse(self._membership.vacant)
        return frozenset()

    @property
    def leaving(self) -> frozenset[int]:
        """Ranks that leave, whose shares others carry from then on."""
        return frozenset()

    @property
    def there(self) -> Members:
        """Processes that can take a rank, by rank."""
        return {}

    def start(self, ranks: frozenset[int]) -> None:
        """Starts processes for these ranks if needed. Raises CannotRepair if that was tried often enough."""

    def refuse(self, plan: Plan) -> None:
        """Raises CannotRepair if a process could not be given the state that it needs."""

    @staticmethod
    def _refuse(gone: Collection[int]) -> None:
        if gone:
            raise NotReplaced(f"rank {min(gone)} is gone")


class InPlace(Nobody):
    """Replaces ranks inside their pods: the launcher of a rank whose process ended starts another one, or assigns a spare."""

    def __init__(self, membership: Membership, pods: Pods, ranks: frozenset[int] | None = None) -> None:
        """Args:
        ranks: ranks that may be replaced; by default all.
        """
        super().__init__(membership)
        self._pods, self._allowed = pods, ranks
        self._ordered: set[str] = set()
        """Names of the ended processes whose replacement was ordered."""
        self._unheard: dict[int, float] = {}
        """Monotonic time since which the launcher of a rank's pod is silent, by rank."""

    @property
    def ranks(self) -> frozenset[int]:
        vacant = self._membership.vacant
        if self._allowed is not None:
            self._refuse(vacant - self._allowed)
        return vacant

    @property
    def there(self) -> Members:
        """Processes that can take a vacant rank, by rank.

        In a pod that came as a backup, a new process has the role of a backup and is meant for this rank. After a hot switch
        the old process may still stand there.
        """
        old = {process.rank: process for process in self._membership.retired if process.connected and not process.dismissed}
        there = {**old, **self._membership.backups}
        return {**{rank: there[rank] for rank in self._membership.vacant & there.keys()}, **self._membership.starting}

    def start(self, ranks: frozenset[int]) -> None:
        """Orders a replacement for each process that has ended.

        Raises CannotRepair if too many of them ended before they joined.
        """
        self._refuse_without_launcher(ranks)
        for process in list(self._pods.processes):
            if process.HasField("ended") and process.process not in self._ordered and self._is_in_place(process, ranks):
                if len(self._ordered) >= STARTS * self._membership.world_size:
                    error = f": {self.first_error}" if self.first_error else ""
                    raise CannotRepair(
                        f"processes of rank {process.rank} end before they join, the last one with code {process.ended}{error}"
                    )
                self._ordered.add(process.process)
                self._pods.replace(process)

    def _is_in_place(self, process: ProcessState, ranks: frozenset[int]) -> bool:
        """Returns whether this process is to be replaced in its pod.

        It is not if the pod's ranks were taken by another pod, and the pod is still there.
        """
        member = self._membership.members.get(process.rank)
        mine = member is None or member.identity == process.process or not self._membership.has_trained(process.process)
        return mine and process.rank in ranks

    def _refuse_without_launcher(self, ranks: frozenset[int]) -> None:
        now, heard = time.monotonic(), {one.rank for one in self._pods.processes if self._is_in_place(one, ranks)}
        self._unheard = {rank: self._unheard.get(rank, now) for rank in ranks - heard}
        if late := [rank for rank, since in self._unheard.items() if now - since > LAUNCHER_SECONDS]:
            raise NotReplaced(f"the pod of rank {min(late)} is gone")


class Elsewhere(Nobody):
    """Replaces pods: processes of backup pods take all their ranks. Live processes of the replaced pods are retired."""

    def __init__(self, membership: Membership, pods: Pods, ranks: Collection[int]) -> None:
        super().__init__(membership)
        self._pods, self._missing = pods, sorted(set(ranks) & set(membership.missing))
        members = {rank: membership.members.get(rank) for rank in ranks}
        self._left = {launcher_of(member.identity) for member in members.values() if member is not None}
        """Launchers of the pods that are replaced."""
        self._given_up: set[str] = set()
        """Launchers of pods that were to replace others, and ended before they joined."""
        taken = membership.has_just_taken_over and all(member is not None and _is_backup(member) for member in members.values())
        self._leaving = {} if taken else members
        """Members that are to leave, by rank. Empty if an earlier manager had already carried this out."""

    @property
    def ranks(self) -> frozenset[int]:
        if self._missing:
            raise CannotRepair(has_left(self._missing[0]))
        leaving = frozenset(rank for rank, member in self._leaving.items() if self._membership.members.get(rank) is member)
        self._refuse(self._membership.vacant - leaving)
        return leaving

    @property
    def there(self) -> Members:
        """Backups by rank, or processes of a pod that was created again, which do not have the role of a backup.

        Processes of the pods that are replaced are left out.
        """
        anew = {
            rank: process
            for rank, process in self._membership.starting.items()
            if launcher_of(process.identity) not in self._left
        }
        return {**anew, **self._membership.backups}

    def start(self, ranks: frozenset[int]) -> None:
        """Releases pods in which a process ended before it joined. Their owner sees that they end, and creates others."""
        for process in list(self._pods.processes):
            launcher = launcher_of(process.process)
            if process.rank in ranks and process.HasField("ended") and launcher not in self._left | self._given_up:
                self._given_up.add(launcher)
                self._pods.release(f"rank {process.rank} ended with {process.ended} before it joined", process.process)

    def refuse(self, plan: Plan) -> None:
        """Raises CannotRepair if the state that only a rank has is not kept by another pod.

        That state is in the memory of the rank's own pod, and in the keeping of another one.
        """
        if plan.step and not plan.from_snapshots and (missing := sorted(self.ranks - plan.own_states.keys())):
            raise CannotRepair(
                f"no process has the random numbers and the data position of rank {missing[0]} after step {plan.step}"
            )


class Without(Nobody):
    """Replaces no rank: ranks leave, and training goes on with those that stay."""

    def __init__(self, membership: Membership, ranks: Collection[int]) -> None:
        """Args:
        ranks: ranks that leave. One that is missing already is left out.
        """
        super().__init__(membership)
        self._leaving = frozenset(ranks)

    @property
    def ranks(self) -> frozenset[int]:
        self._refuse(self._membership.vacant - self._leaving)
        if self._membership.present <= self._leaving:
            raise CannotRepair("no rank would be left to train")
        return frozenset()

    @property
    def leaving(self) -> frozenset[int]:
        return self._leaving & self._membership.present


def has_left(rank: int) -> str:
    """Returns why no other pod takes a missing rank."""
    return f"rank {rank} has left the job: it comes back with the strategy upgrade"


def _is_backup(member: RankProcess) -> bool:
    return member.role == names.BACKUP and not member.lost
