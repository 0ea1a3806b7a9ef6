"""Starts all processes of the pods that are left again, in their pods, and takes in the pods that replace others.

All of them begin together, in a new generation, at the newest checkpoint. Nothing is expected of the processes before: they may
hang. Everything is done from what the launchers say of their pods, so a manager that follows another one goes on with it.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rekindle_training.manager import procedures
from rekindle_training.manager.membership import Members, Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.procedures import Plan
from rekindle_training.manager.rank_process import RankLost, RebuildFailed, StepFailed, launcher_of
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.repair import START_SECONDS
from rekindle_training.manager.replacements import LAUNCHER_SECONDS, CannotRepair, Elsewhere
from rekindle_wire.training_pb2 import PodState, ProcessState

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""Seconds between two looks at what the launchers say."""
REASON = "all ranks begin again at the newest checkpoint"
EXIT_CODE = 2
"""Exit code of processes that end so that others start in their place."""


@dataclass(frozen=True)
class FirstStep:
    """First step that all new processes have completed."""

    step: int
    steps_lost: int


class PodRestart:
    def __init__(self, membership: Membership, pods: Pods, ranks: Collection[int], attempt: str) -> None:
        """Args:
        ranks: ranks of the pods that others replace.
        attempt: attempt of the order. A launcher starts its processes again once for each.
        """
        self._membership, self._pods, self._attempt = membership, pods, attempt
        self._ranks = frozenset(ranks)
        self._staying = membership.present - self._ranks
        self._elsewhere = Elsewhere(membership, pods, ranks)
        self._silent_since: dict[int, float] = {}
        """Monotonic time since which no launcher speaks for a rank that stays, by rank."""

    async def run(self, store: Store, limit: float) -> FirstStep:
        """Returns the first step after which training goes on.

        Args:
            limit: seconds in which the ranks meet.

        Raises:
            CannotRepair: a pod is lost meanwhile, or a process ends before it trains.
        """
        if missing := sorted(set(self._membership.missing) - self._ranks):
            raise CannotRepair(f"rank {missing[0]} is missing, and no pod comes for it: all ranks begin together")
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._until_ordered()
                while not (self._there.keys() == self._everyone or self._have_begun):
                    self._look()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise CannotRepair(f"not all processes have started within {START_SECONDS:g} s") from None
        return await self._begin(store, limit)

    @property
    def _everyone(self) -> frozenset[int]:
        return self._ranks | self._staying

    async def _until_ordered(self) -> None:
        """Orders the launchers of all pods that stay, when all of them are connected."""
        while missing := self._staying - self._launchers.keys():
            self._miss(missing)
            await asyncio.sleep(LOOK_SECONDS)
        launchers = self._launchers
        if old := sorted(rank for rank, state in launchers.items() if not state.can_begin_again):
            raise CannotRepair(f"the launcher of rank {old[0]} is of an older release, which does not start its processes again")
        waiting = {rank: state.pod for rank, state in launchers.items() if state.again != self._attempt}
        members = (self._membership.members.get(rank) for rank in waiting)
        self._membership.dismiss([member for member in members if member is not None], REASON, EXIT_CODE)
        self._pods.begin_again({state.pod for state in launchers.values()}, self._attempt, REASON)

    @property
    def _launchers(self) -> Mapping[int, PodState]:
        """States of the pods that stay, by rank. A pod whose ranks another one has taken is left out."""
        found = {}
        for state in self._pods.states:
            for process in state.processes:
                member = self._membership.members.get(process.rank)
                if process.rank in self._staying and (member is None or launcher_of(member.identity) == state.pod):
                    found[process.rank] = state
        return found

    @property
    def _new(self) -> Mapping[int, ProcessState]:
        """Processes that were started again, by rank."""
        again = [state for state in self._launchers.values() if state.again == self._attempt]
        return {process.rank: process for state in again for process in state.processes}

    @property
    def _there(self) -> Members:
        """New processes that wait for the others, by rank."""
        waiting = {process.identity: process for process in self._membership.starting.values()}
        waiting |= {process.identity: process for process in self._membership.all_backups}  # of a pod that came as a backup
        stay = {rank: waiting[new.process] for rank, new in self._new.items() if new.process in waiting}
        others = self._elsewhere.there
        return {**stay, **{rank: others[rank] for rank in self._ranks & others.keys()}}

    @property
    def _have_begun(self) -> bool:
        """Returns whether an earlier manager let all new processes begin, so that only their first step is awaited."""
        members, new = self._membership.members, self._new
        return (
            self._membership.took_over
            and not self._membership.vacant
            and all(rank in new and members[rank].identity == new[rank].process for rank in self._staying)
            and all(members[rank].generation == self._membership.generation for rank in self._everyone)
        )

    def _look(self) -> None:
        """Raises CannotRepair if a pod or process that is waited for is lost. Failed new pods end, which their owner sees."""
        self._miss(self._staying - self._launchers.keys())
        self._elsewhere.start(self._ranks)
        for rank, process in self._new.items():
            if process.HasField("ended"):
                _, words = self._membership.last_words.get(process.process, (rank, ""))
                error = f": {words}" if words else ""
                raise CannotRepair(f"rank {rank} ended with {process.ended} before it trained{error}")

    def _miss(self, ranks: Collection[int]) -> None:
        now = time.monotonic()
        self._silent_since = {rank: self._silent_since.get(rank, now) for rank in ranks}
        if late := [rank for rank, since in self._silent_since.items() if now - since > LAUNCHER_SECONDS]:
            raise CannotRepair(f"the pod of rank {min(late)} is gone")

    async def _begin(self, store: Store, limit: float) -> FirstStep:
        membership = self._membership
        if self._have_begun:
            await membership.until(lambda: membership.training or bool(membership.vacant))
            if membership.vacant:
                raise CannotRepair(f"rank {min(membership.vacant)} is gone")
            members = membership.members.values()
            return FirstStep(min(member.stepped or member.step for member in members), max(one.steps_lost for one in members))
        try:
            answers = await procedures.rebuild(membership, store, self._there, Plan(begins=True), limit)
        except (RankLost, StepFailed, RebuildFailed) as error:
            raise CannotRepair(f"training did not begin again: {error}") from None
        steps = [answer.stepped for answer in answers.values()]
        return FirstStep(min(one.step for one in steps), max(one.steps_lost for one in steps))
