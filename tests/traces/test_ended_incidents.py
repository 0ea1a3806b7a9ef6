"""Traces of incidents that come to no good end: aborted ones, and those that a person denies."""

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.approval import Unanswered
from rekindle.model.mode import Mode, Outcome
from tests.fakes.collector import Collector
from tests.fakes.peer import Script
from tests.support.harness import a_job, sub_health, training
from tests.traces.test_incident import fits, root_of, seen, under


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
