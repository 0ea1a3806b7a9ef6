"""Repairs training with the processes that live: after a failure they leave their collectives and repeat the step together.

Begun by the coordinator when a rank reports that its step failed, or when one is gone. All ranks report where they stand, and
lose at most that step. A rank that failed in the middle of an update takes the state of a rank that finished it. So does the
process that replaces a rank that is gone.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from rekindle_training.manager import procedures
from rekindle_training.manager.left_out import left_out
from rekindle_training.manager.loop_ends import uneven
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.procedures import NoReplica, Plan
from rekindle_training.manager.rank_process import RankLost, RankProcess, RebuildFailed, StepFailed, launcher_of
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.replacements import CannotRepair, Futile, InPlace, LoopsDiffer, Nobody
from rekindle_training.manager.team import replicas, sent, without
from rekindle_wire.training_pb2 import Standing

log = logging.getLogger(__name__)

START_SECONDS = 900.0
"""Maximum number of seconds from the start of a replacement's process until its session begins."""
ATTEMPTS = 3
"""Attempts in a row at one repair. After that training ends, as it would without a repair."""


def plan(standing: Mapping[int, Standing]) -> Plan:
    """Computes the step at which all ranks go on, and the transfers of state that this needs.

    Args:
        standing: position of each rank.

    Raises:
        CannotRepair: a rank says that no repair helps, or no rank has the state of the step at which training would go on.
        Futile: the script breaks a rule, and a restart does not help either.
    """
    if (final := next((at for at in standing.values() if at.final), None)) is not None:
        raise (Futile if final.refused else CannotRepair)(final.reason)
    step = max((at.step + (at.place == Standing.SPOILT) for at in standing.values() if at.place != Standing.LOST), default=0)
    whole = sorted(rank for rank, at in standing.items() if _reaches(at, step))
    broken = sorted(standing.keys() - whole)
    if not whole:
        if all(at.place == Standing.LOST for at in standing.values()):
            raise CannotRepair("no rank is left, or none can go back to where its step began")
        raise CannotRepair(f"no rank has the state after step {step}: its update failed on all ranks, or none can go back to it")
    kept = {one.rank: one.own_state for at in standing.values() for one in at.kept if one.step == step and one.rank in broken}
    try:
        return Plan(step, procedures.sources(whole, broken, {rank: standing[rank].replicas for rank in whole}), kept)
    except NoReplica as error:
        raise CannotRepair(str(error)) from None


def have_snapshots(standing: Mapping[int, Standing]) -> bool:
    """Returns whether ranks may go back to snapshots. They do not where one of them says that no repair helps."""
    return any(at.snapshots for at in standing.values()) and not any(at.final for at in standing.values())


def can_go_back(standing: Mapping[int, Standing], vacant: Collection[int]) -> bool:
    """Returns whether all ranks may have a snapshot of one step.

    Args:
        standing: position of each rank.
        vacant: ranks of which the processes are gone. The memory of their pods may have their snapshots.
    """
    return have_snapshots(standing) and all(steps or rank in vacant for rank, steps in snapshots(standing).items())


def snapshots(standing: Mapping[int, Standing]) -> dict[int, set[int]]:
    """Returns the steps to which each rank can go back, by its own snapshots and those that others keep for it."""
    found: dict[int, set[int]] = {rank: set() for rank in standing}
    for one in (one for at in standing.values() for one in at.snapshots):
        if one.rank in standing and one.step >= standing[one.rank].earliest:
            found[one.rank].add(one.step)
    return found


def plan_of_snapshots(standing: Mapping[int, Standing], left: Mapping[int, Collection[int]], reason: str) -> Plan:
    """Computes the step of the newest snapshots that all ranks have.

    Args:
        standing: position of each rank.
        left: steps of the snapshots that the memory of its pod has for the new process of a rank, by rank.
        reason: why ranks have to go back.

    Raises:
        CannotRepair: there is no such step.
    """
    held = snapshots(standing)
    steps = {rank: found | set(left.get(rank, ())) for rank, found in held.items()}
    if without := sorted((at.place != Standing.LOST, rank) for rank, at in standing.items() if not steps[rank]):
        lives, rank = without[0]
        raise CannotRepair(
            f"{reason}, and "
            + (f"the loop of rank {rank} can go back to no snapshot" if lives else f"no snapshot of rank {rank} is left")
        )
    common = set[int].intersection(*steps.values())
    if not common:
        raise CannotRepair(f"{reason}, and the ranks have no snapshots of one step")
    return Plan(max(common), from_snapshots=True)


def refuse_final(membership: Membership) -> None:
    """Raises CannotRepair if a rank has said that no repair helps, also if its process has ended since then."""
    said = {rank: member.standing for rank, member in sorted(membership.members.items())}
    if final := {rank: at for rank, at in said.items() if at is not None and at.final}:
        plan(final)


def lost(standing: Mapping[int, Standing], ranks: Collection[int]) -> dict[int, Standing]:
    """Returns positions for ranks that are to be replaced.

    State that their processes keep for other ranks counts while they live.
    """
    return {rank: Standing(place=Standing.LOST, kept=standing[rank].kept if rank in standing else ()) for rank in ranks}


async def stand(membership: Membership) -> dict[int, Standing]:
    """Stops all live ranks and returns their positions. It asks again if one of them ends meanwhile.

    Raises:
        CannotRepair: some have left the loop for good.
        LoopsDiffer: others wait for one that has left its loop, in a step that it does not do, or in a collective of a step.
    """
    while True:
        if done := sorted(rank for rank, member in membership.members.items() if member.finished):
            _refuse_uneven(membership)
            raise CannotRepair(f"training has ended on ranks {done}, and not on all")
        with contextlib.suppress(RankLost):
            standing = await procedures.stand(membership)
            _refuse_uneven(membership)
            if reason := left_out(membership, standing):
                raise LoopsDiffer(reason)
            return standing


def _refuse_uneven(membership: Membership) -> None:
    if reason := uneven(membership):
        raise LoopsDiffer(reason)


def _reaches(at: Standing, step: int) -> bool:
    """Returns whether the rank can go on after `step`.

    A rank that has all gradients of that step finishes it if another one has.
    """
    match at.place:
        case Standing.BOUNDARY:
            return at.step == step
        case Standing.VOTES:
            return at.step in (step, step - 1)
        case _:
            return False


class Repair:
    """Repair of all ranks. `run` ends when they have completed one more step."""

    def __init__(self, membership: Membership, store: Store, successors: Nobody, limit: float, *, stands: bool = False) -> None:
        """Args:
        limit: seconds from the rebuild to a completed step.
        stands: True if all ranks are to stand afterwards, and not to go on.
        """
        self._stands = stands
        self._membership, self._store, self._successors, self._limit = membership, store, successors, limit
        self.from_snapshots = False
        """True if training went on from snapshots in memory."""
        self._behind = -1
        self._failed = 0
        """Failed attempts at one step in a row."""
        self._new: set[int] = set()
        """Ranks that processes of other pods have taken."""

    async def run(self) -> int:
        """Returns the step after which training went on. Failures during the repair are repaired as well.

        Raises:
            CannotRepair: training cannot go on.
        """
        began = time.monotonic()
        while True:
            try:
                if (found := await self._attempt(await stand(self._membership))) is None:
                    continue
            except (RebuildFailed, StepFailed, RankLost) as error:
                self._count(error)
                self._membership.follow_links(self._new)  # a first link may be pulled there, or elsewhere
            else:
                self.from_snapshots = self.from_snapshots or found.from_snapshots
                log.info("ranks repaired", extra={"step": found.step, "seconds": round(time.monotonic() - began, 3)})
                return found.step

    async def _attempt(self, standing: Mapping[int, Standing]) -> Plan | None:
        """Tries a repair once. Returns its plan, or None if another rank ended before anything was tried."""
        membership = self._membership
        refuse_final(membership)
        replaced, leaving = self._successors.ranks, self._successors.leaving
        found = self._plan(standing, replaced, leaving)
        if replaced:
            with membership.spans.record("replacements start"):
                are_there = await self._are_there(replaced)
            if not are_there:
                return None
        if isinstance(found, CannotRepair):
            found = self._plan_of_snapshots(standing, replaced, str(found))
            self._decided(standing, found)
        members = {**membership.members, **{rank: self._successors.there[rank] for rank in replaced}}
        members = {rank: member for rank, member in members.items() if rank not in leaving}
        self._new |= {rank for rank in replaced if not _is_in_same_pod(membership.members.get(rank), members[rank])}
        try:
            async with asyncio.timeout(self._limit):
                await procedures.rebuild(membership, self._store, members, found, self._limit)
        except TimeoutError:
            raise CannotRepair(
                f"no step was completed within {self._limit:g} s: as a rule a rank waits in a collective that others take no "
                "part in, such as one between session() and its loop, where a replacement is alone"
            ) from None
        return found

    def _plan(self, standing: Mapping[int, Standing], replaced: Collection[int], leaving: Collection[int]) -> Plan | CannotRepair:
        """Returns the plan, or why no live rank has the state of a step: all have to go back to their snapshots then.

        Raises:
            CannotRepair: there are none, or ranks leave.
        """
        membership = self._membership
        positions = {**standing, **lost(standing, {*replaced, *leaving})}
        try:
            found = replace(plan(positions), stands=self._stands)
        except CannotRepair as error:
            if leaving or membership.missing or not have_snapshots(positions):
                raise
            if replaced and isinstance(self._successors, InPlace):  # the memory of their pods is known when they are there
                return error
            found = replace(plan_of_snapshots(positions, {}, str(error)), stands=self._stands)
        if leaving or membership.missing:
            found = self._shared_out(found, standing, replaced, leaving)
        self._decided(standing, found)
        return found

    def _decided(self, standing: Mapping[int, Standing], found: Plan) -> None:
        self._successors.refuse(found)
        _log(standing, found)
        if found.step > self._behind or (found.from_snapshots and found.step != self._behind):
            self._failed, self._behind = 0, found.step

    def _plan_of_snapshots(self, standing: Mapping[int, Standing], replaced: Collection[int], reason: str) -> Plan:
        """Returns the plan when the new processes are there, since the memories of their pods may have snapshots."""
        left = {rank: self._successors.there[rank].snapshots for rank in replaced}
        positions = {**standing, **lost(standing, replaced)}
        return replace(plan_of_snapshots(positions, left, reason), stands=self._stands)

    def _shared_out(
        self, found: Plan, standing: Mapping[int, Standing], replaced: Collection[int], leaving: Collection[int]
    ) -> Plan:
        """Returns the plan with the shares that ranks carry for those that leave, or are missing."""
        before = self._membership.carriers
        whole = replicas(self._membership.world_size, (at.replicas for at in standing.values()))
        then = without(before, leaving, whole)
        held = {one.rank: one.own_state for at in standing.values() for one in at.kept if one.step == found.step}
        has = {rank: at.shares for rank, at in standing.items() if rank not in {*replaced, *leaving}}
        transfers = tuple(pair for pair in found.transfers if pair[1] not in leaving)
        return replace(found, transfers=transfers, carriers=then, shares=sent(then, before, has, held))

    async def _are_there(self, replaced: frozenset[int]) -> bool:
        """Returns whether a new process of each of these ranks is there, and no further rank has ended."""
        successors = self._successors

        def are_there_or_more_are_gone() -> bool:
            successors.start(successors.ranks)
            return replaced <= successors.there.keys() or successors.ranks != replaced

        try:
            async with asyncio.timeout(START_SECONDS):
                await self._membership.until(are_there_or_more_are_gone)
        except TimeoutError:
            raise CannotRepair(f"no process took the place of ranks {sorted(replaced)} within {START_SECONDS:g} s") from None
        return successors.ranks == replaced

    def _count(self, error: Exception) -> None:
        self._failed += 1
        if self._failed == ATTEMPTS:
            reason = self._successors.first_error or error
            raise CannotRepair(f"training did not get beyond step {self._behind} in {ATTEMPTS} tries: {reason}") from None


def _is_in_same_pod(old: RankProcess | None, new: RankProcess) -> bool:
    return old is not None and launcher_of(old.identity) == launcher_of(new.identity)


def _log(standing: Mapping[int, Standing], found: Plan) -> None:
    for rank, at in standing.items():
        if at.reason:
            what = "a checkpoint failed" if at.fault == Standing.PROTECTION else "a step failed"
            log.warning(what, extra={"rank": rank, "behind": at.step, "reason": at.reason})
    log.info("training goes on", extra={"behind": found.step, "renewed": [target for _, target in found.transfers]})
