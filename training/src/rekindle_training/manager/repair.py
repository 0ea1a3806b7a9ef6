"""Repairs training with the processes that live: after a failure they leave their collectives and repeat the step together.

Begun by the conductor when a rank says that its step failed, or is gone. All say where they stand; nobody loses more than that
step. Who failed in the middle of an update, and the process that takes the place of one that is gone, take the state of a rank
that finished it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from rekindle_training.manager import procedures
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.procedures import NoReplica, Plan
from rekindle_training.manager.rank_process import RankLost, RebuildFailed, StepFailed
from rekindle_training.manager.roster import Roster
from rekindle_training.manager.store import Store
from rekindle_wire.training_pb2 import Standing

log = logging.getLogger(__name__)

START_SECONDS = 900.0
"""From the start of a replacement's process until its session begins, at most."""
ATTEMPTS = 3
"""How often in a row a repair is tried before training ends, as it would without one."""


class CannotRepair(Exception):
    """Only the last checkpoint is left to go on from; the message says why."""


def plan(standing: Mapping[int, Standing]) -> Plan:
    """Where all ranks go on, and who needs whose state.

    Args:
        standing: of each rank.

    Raises:
        CannotRepair: no rank has the state of the step at which training would go on.
    """
    step = max((at.step + (at.place == Standing.SPOILT) for at in standing.values() if at.place != Standing.LOST), default=0)
    whole = sorted(rank for rank, at in standing.items() if _reaches(at, step))
    broken = sorted(standing.keys() - whole)
    if not whole:
        if all(at.place == Standing.LOST for at in standing.values()):
            raise CannotRepair("no rank is left, or none can go back to where its step began")
        raise CannotRepair(f"no rank has the state behind step {step}: its update failed everywhere, or nobody can go back there")
    try:
        return Plan(step, procedures.sources(whole, broken, {rank: standing[rank].replicas for rank in whole}))
    except NoReplica as error:
        raise CannotRepair(str(error)) from None


def _reaches(at: Standing, step: int) -> bool:
    """A rank that has all gradients of a step finishes it, where another one has."""
    match at.place:
        case Standing.BOUNDARY:
            return at.step == step
        case Standing.VOTES:
            return at.step in (step, step - 1)
        case _:
            return False


class Repair:
    """Of all ranks. `run` ends when they have completed a step more."""

    def __init__(self, roster: Roster, store: Store, pods: Pods | None, limit: float) -> None:
        """Args:
        pods: where this manager has ranks replaced; None: somebody else decides that.
        limit: seconds from the rebuild to a completed step.
        """
        self._roster, self._store, self._pods, self._limit = roster, store, pods, limit
        self._behind = -1
        self._failed = 0
        """Attempts at one step in a row."""
        self._ordered: set[str] = set()
        """Processes that another one is to follow."""

    async def run(self) -> int:
        """Returns the step behind which training went on. What fails meanwhile is repaired as well.

        Raises:
            CannotRepair: it does not go on.
            RankLost: a rank ended meanwhile, and nobody replaces it.
        """
        began = time.monotonic()
        while True:
            try:
                if (found := await self._attempt(await self._standing())) is None:
                    continue
            except (RebuildFailed, StepFailed, RankLost) as error:
                if self._pods is None and isinstance(error, RankLost):
                    raise
                self._count(error)
            else:
                log.info("repaired", extra={"step": found.step, "seconds": round(time.monotonic() - began, 3)})
                return found.step

    async def _standing(self) -> dict[int, Standing]:
        """Of all that live; who ends meanwhile does not count as an attempt."""
        while True:
            if done := sorted(rank for rank, member in self._roster.members.items() if member.finished):
                raise CannotRepair(f"training is complete on ranks {done}, and not on all")
            try:
                return await procedures.stand(self._roster)
            except RankLost:
                if self._pods is None:
                    raise

    async def _attempt(self, standing: Mapping[int, Standing]) -> Plan | None:
        """None: another rank ended before anything was tried."""
        roster, vacant = self._roster, self._roster.vacant
        if vacant and self._pods is None:
            raise RankLost(f"rank {min(vacant)} is gone")
        found = plan({**standing, **{rank: Standing(place=Standing.LOST) for rank in vacant}})
        _log(standing, found)
        if found.step > self._behind:
            self._failed, self._behind = 0, found.step
        if vacant and not await self._replaced(vacant):
            return None
        members = {**roster.members, **{rank: roster.starting[rank] for rank in vacant}}
        try:
            async with asyncio.timeout(self._limit):
                await procedures.rebuild(roster, self._store, members, found, self._limit)
        except TimeoutError:
            raise CannotRepair(
                f"no step was completed within {self._limit:g} s: as a rule a rank waits in a collective that others take no "
                "part in, such as one between session() and its loop, where a replacement is alone"
            ) from None
        return found

    async def _replaced(self, vacant: frozenset[int]) -> bool:
        """Whether another process of each of these ranks is there, and no further one has ended."""
        roster = self._roster

        def are_there_or_more_are_gone() -> bool:
            self._order(roster.vacant)
            return vacant <= roster.starting.keys() or roster.vacant != vacant

        try:
            async with asyncio.timeout(START_SECONDS):
                await roster.until(are_there_or_more_are_gone)
        except TimeoutError:
            raise CannotRepair(f"no process took the place of ranks {sorted(vacant)} within {START_SECONDS:g} s") from None
        return roster.vacant == vacant

    def _order(self, vacant: frozenset[int]) -> None:
        """A process that ends before it joins is followed by another one, as long as there is hope."""
        assert self._pods is not None
        for rank, process in self._pods.ended.items():
            if rank in vacant and process.process not in self._ordered:
                if len(self._ordered) >= ATTEMPTS * self._roster.world_size:
                    raise CannotRepair(f"processes of rank {rank} end before they join, the last one with code {process.ended}")
                self._ordered.add(process.process)
                self._pods.replace(process)

    def _count(self, error: Exception) -> None:
        self._failed += 1
        if self._failed == ATTEMPTS:
            raise CannotRepair(f"training did not get beyond step {self._behind} in {ATTEMPTS} tries: {error}") from None


def _log(standing: Mapping[int, Standing], found: Plan) -> None:
    for rank, at in standing.items():
        if at.reason:
            log.warning("a step failed", extra={"rank": rank, "behind": at.step, "reason": at.reason})
    log.info("training goes on", extra={"behind": found.step, "renewed": [target for _, target in found.transfers]})
