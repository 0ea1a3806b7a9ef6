"""Traces of incidents that come to no good end: terminated modes, aborted ones, and those that a person denies."""

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.approval import Unanswered
from rekindle.model.mode import Mode, Outcome
from tests.fakes.collector import Collector
from tests.fakes.peer import Script
from tests.support.harness import RESUMES, a_job, node_fault, sub_health, training
from tests.traces.test_incident import fits, named, root_of, seen, traced, under

__all__ = ("traced",)


async def test_a_terminated_mode_is_an_error_in_the_trace(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """The mode ends with its termination, and the last mode follows in the same tree."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(seen(sub_health()))
        await peer.until(lambda: "new pod running" in peer.orders)
        await (await world.running()).terminate("by hand")
        await world.phase(RESUMES)
        incident = await world.restarted()
        spans = await traced.trace()
    fits(spans, incident)
    modes = [verdict.mode for verdict in incident.ladder]
    assert [name for name in under(spans, root_of(spans)) if name in set(modes)] == modes
    assert named(spans, modes[0]).error


async def test_a_last_mode_that_is_terminated_ends_its_trace(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """It is begun again in an incident, and a trace, of its own."""
    async with training(temporal, a_job()) as (world, _):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await (await world.running()).terminate("by hand")
        first = await world.incident()
        second = await world.restarted(2)
        ended, went_on = await traced.trace(1), await traced.trace(2)
    fits(ended, first)
    fits(went_on, second)
    assert root_of(ended).trace != root_of(went_on).trace
    assert (root_of(ended).error, root_of(went_on).error) == (first.ladder[-1].reason, "")


async def test_an_aborted_recovery_has_a_trace(temporal: WorkflowEnvironment, traced: Collector) -> None:
    """The mode is cancelled, and its undoing is in the tree."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(seen(sub_health()))
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.tell(Updates.ABORT, {"by": "Ada", "reason": "maintenance"})
        incident = await world.incident()
        spans = await traced.trace()
    assert incident.verdict is Outcome.CANCELLED
    fits(spans, incident)


@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_that_waits_for_a_person_is_in_the_trace(
    temporal: WorkflowEnvironment, traced: Collector, *, approved: bool
) -> None:
    """A mode that was denied never ran, and has no span of its own. The wait is that of the decision or the conclusion."""
    job = a_job(approvals={Mode.HOT_SWITCH: Unanswered.DENY})
    async with training(temporal, job) as (world, _):
        await world.fault(seen(sub_health()))
        await world.settled(lambda status: status.state.question is not None)
        await world.tell(Updates.ANSWER, {"approved": approved, "by": "Ada", "mode": "hot-switch"})
        incident = await world.incident()
        spans = await traced.trace()
    fits(spans, incident)
    assert (Mode.HOT_SWITCH in under(spans, root_of(spans))) is approved
