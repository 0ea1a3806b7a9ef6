"""Has the ranks that are left write a checkpoint of the step at which training stands. Ordered before the job is restarted.

Ranks that are gone are not replaced. Their state is written by replicas, and what only they had by the ranks that keep it.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rekindle_training.manager.membership import Membership
from rekindle_training.manager.procedures import Plan
from rekindle_training.manager.rank_process import RankLost, StepFailed
from rekindle_training.manager.rendezvous_store import Store
from rekindle_training.manager.repair import lost, plan, plan_of_snapshots, refuse_final, stand
from rekindle_training.manager.replacements import CannotRepair
from rekindle_wire.training_pb2 import ManagerMessage, RankMessage, Save, Standing, Transfer

log = logging.getLogger(__name__)

TRIES = 3
"""Number of tries in which further ranks may be lost."""
SAVE_SECONDS = 900.0
"""Maximum number of seconds of all tries. The control plane waits no longer either."""


@dataclass(frozen=True)
class Written:
    """Checkpoint that was written."""

    step: int
    ranks: int
    """Number of ranks that wrote it."""
    world_size: int
    before: int
    """Step of the newest checkpoint that was there before. 0: none was."""

    def __str__(self) -> str:
        if self.before == self.step:
            return f"the state after step {self.step} is saved already: the last checkpoint has it"
        more = f"{self.step - self.before} steps more than the last checkpoint has" if self.before else "there was no checkpoint"
        return f"the state after step {self.step} is saved by {self.ranks} of {self.world_size} ranks: {more}"


def plan_of_save(membership: Membership, standing: Mapping[int, Standing]) -> Plan:
    """Returns the step that ranks which stand so can save, and the ranks that lack its state, as targets of transfers.

    Raises:
        CannotRepair: no rank that is left has, or keeps, the state of one that is gone. The message names it.
    """
    refuse_final(membership)
    gone = membership.vacant
    positions = {**standing, **lost(standing, gone)}
    try:
        found = plan(positions)
    except CannotRepair as error:
        found = plan_of_snapshots(positions, {}, str(error))
    if not found.step:
        raise CannotRepair("no step is completed, so there is nothing to save")
    if found.from_snapshots:
        return found
    if unkept := sorted(gone - found.own_states.keys()):
        raise CannotRepair(f"no rank that is left keeps the random numbers and the data position of rank {unkept[0]}")
    return found


async def save(membership: Membership, store: Store) -> Written:
    """Writes the checkpoint. Ranks that are lost meanwhile are left out of the next try.

    A rank that gives up or finishes its step before it writes says again where it stands. That is no loss.

    Raises:
        CannotRepair: it was not written.
    """
    losses = 0
    try:
        async with asyncio.timeout(SAVE_SECONDS):
            while losses < TRIES:
                try:
                    return await _tried(membership, store, await stand(membership))
                except (RankLost, StepFailed) as error:
                    losses += isinstance(error, RankLost)
                    log.warning("last checkpoint tried again", extra={"reason": error})
    except TimeoutError:
        raise CannotRepair(f"it was not written within {SAVE_SECONDS:g} s") from None
    raise CannotRepair("ranks are lost again and again while they write it")


async def _tried(membership: Membership, store: Store, standing: Mapping[int, Standing]) -> Written:
    found = plan_of_save(membership, standing)
    broken = {target for _, target in found.transfers}
    members = sorted(standing.keys() - membership.vacant)
    order = Save(
        id=uuid.uuid4().hex,
        step=found.step,
        store_port=store.port,
        timeout_seconds=SAVE_SECONDS,
        members=members,
        whole=[rank for rank in members if rank not in broken],
        gone=sorted(membership.vacant),
        from_snapshots=found.from_snapshots,
        snapshots=_keepers(standing, membership.vacant, found.step) if found.from_snapshots else (),
    )
    log.info("last checkpoint ordered", extra={"step": found.step, "ranks": members, "gone": list(order.gone)})
    message = ManagerMessage(generation=membership.generation, save=order)
    asked = {rank: membership.members[rank].ask(message, "saved") for rank in members}
    if problem := await _first_problem(list(asked.values())):
        with contextlib.suppress(CannotRepair):
            await stand(membership)  # others may wait for that rank; the first of them removes what was written
        raise CannotRepair(problem)
    return Written(found.step, len(members), membership.world_size, asked[members[0]].result().saved.before)


def _keepers(standing: Mapping[int, Standing], gone: Collection[int], step: int) -> list[Transfer]:
    """Returns for each rank that is gone one that keeps its snapshot."""
    found = {one.rank: rank for rank, at in sorted(standing.items()) for one in at.snapshots if one.step == step}
    return [Transfer(source=found[rank], target=rank) for rank in sorted(gone)]


async def _first_problem(asked: Collection[asyncio.Future[RankMessage]]) -> str:
    """Returns why a rank has not written the checkpoint, as soon as one says so. Empty: all have written it."""
    for answer in asyncio.as_completed(asked):
        if problem := (await answer).saved.problem:
            return problem
    return ""
