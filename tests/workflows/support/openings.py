"""Job whose recoveries are only opened, and the results of these openings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.dialogue import FaultRank
from rekindle.model.fault import Fault, FaultReport
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode
from rekindle.model.situation import Situation
from rekindle.model.verdict import Verdict
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import Harness, a_mindio_job, harness
from tests.workflows.support.opening_modes import Opens, OpensFirst, OpensForRetry, OpensInPlace

SHORT = timedelta(seconds=0.3)
ALLOWED = {RECOVER_STRATEGY: "retry"}


def mindio(**limits: timedelta) -> Job:
    """Returns a MindIO job without settling time, so that tests do not wait. Its owner allows a retry; for other faults the last
    mode opens."""
    quick = {"settle": timedelta(0), "release": timedelta(0), "report_lost": SHORT, **limits}
    return a_mindio_job(limits=Limits(**quick), annotations=ALLOWED)


@asynccontextmanager
async def opening(
    env: WorkflowEnvironment, job: Job, script: Script | None = None, *, leaves: bool = False
) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """Runs a training job whose recoveries are only opened.

    Args:
        leaves: whether its training side is expected to have left at the end.
    """
    async with harness(env, job, modes=(OpensFirst, OpensForRetry, OpensInPlace, Opens)) as world, world.peer(script) as peer:
        await world.first_step()
        await world.look()
        yield world, peer
        assert bool(peer.exited) is leaves, peer.exited
        assert not peer.broken_rules, peer.broken_rules


async def verdict(world: Harness, mode: Mode | None = None) -> Verdict:
    """Returns the verdict of a mode, by default of the last one."""
    last = (await world.incident()).ladder[-1].mode
    handle = world.client.get_workflow_handle(ids.recovery_workflow(world.job, 1, mode or last), result_type=Verdict)
    found: Verdict = await handle.result()
    return found


async def opened(world: Harness) -> Situation:
    """Returns the situation that the opening learned."""
    found = await verdict(world)
    assert found.reason == "opened"
    assert found.situation
    return found.situation


def ranks(found: tuple[FaultRank, ...]) -> list[str]:
    return [f"{one.rank}:{one.type}" for one in found]


def fields(order: Any) -> tuple[Any, ...]:
    """Returns the fields of an order, without job and uuid."""
    faults = [f"{one.rankId}:{one.faultType}" for one in order.faultRanks]
    return (
        order.signalType,
        [*order.actions],
        faults,
        order.changeStrategy,
        order.timeout,
        [*order.nodeRankIds],
        order.extraParams,
    )


async def healed(world: Harness, fault: Fault) -> None:
    """Clears a fault, and waits until the running mode has been informed."""
    before = await heard(world)
    await world.tell(ids.Updates.REPORT_FAULTS, FaultReport(cleared=(fault.id,)))
    await told_again(world, before)


async def told_again(world: Harness, before: int) -> None:
    """Waits until the running mode was informed of faults once more."""
    async with asyncio.timeout(60):
        while await heard(world) == before:
            await asyncio.sleep(0.03)


async def heard(world: Harness) -> int:
    """Returns how often the running mode was informed of faults."""
    events = (await (await world.running()).fetch_history()).events
    return len(
        [event for event in events if event.workflow_execution_signaled_event_attributes.signal_name == ids.Signals.FAULTS]
    )
