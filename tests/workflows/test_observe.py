"""A job that is only observed: decisions are made and shown, and nothing is ordered."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.cli.output import show_status
from rekindle.cli.terminal import console
from rekindle.model.job import Capability, SubHealthStrategy
from rekindle.model.keys import GIVEN_UP, LAST_VERDICT, MEMORY, RECOVERING
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.modes import observe_only
from rekindle.temporal import Attributes
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, harness, node_fault, register, sub_health, training

NOTES = {GIVEN_UP, LAST_VERDICT, MEMORY, RECOVERING}
SOON = timedelta(seconds=0.3)
HOT_SWITCH = "would run hot switch (pod rank 1), then job rescheduling if that fails"


def untouched(world: Harness) -> bool:
    """Returns whether no pod, no label and no policy was written."""
    return (world.cluster.writes, world.cluster.labels) == ([], {})


async def observes(world: Harness, *, observe: bool = True) -> None:
    """Registers the job again, as when its namespace or its installation changed."""
    await register(world.client, world.job.model_copy(update={"observe": observe}))


async def test_a_sub_health_is_decided_and_shown(temporal: WorkflowEnvironment) -> None:
    """A job without a stream and a step has the decision in event, history and judgement. It names the mode and its
    conditions."""
    async with harness(temporal, a_job(observe=True)) as world:
        await world.fault(sub_health())
        incident = await world.incident()
        (verdict,) = incident.ladder
        assert (verdict.mode, verdict.outcome, incident.verdict) == (Mode.HOT_SWITCH, Outcome.REFUSED, Outcome.REFUSED)
        assert verdict.reason.startswith(f"observed: {HOT_SWITCH}, provided that the training side is attached")
        event = await world.event("RecoveryObserved")
        assert event.type == "Normal"
        assert event.message.startswith(f"sub-health node-1 80E18005: NPU link is degraded: {HOT_SWITCH}, provided")
        assert await world.judged() == verdict.reason
        status = await world.status()
        assert (status.running, status.state.policy) == (None, SubHealthStrategy.HOT_SWITCH)
        assert untouched(world)


async def test_a_job_that_is_attached_gets_no_order_either(temporal: WorkflowEnvironment) -> None:
    """Sub-health and real fault of a job that trains under us: two incidents, no recovery, no order; both faults stand."""
    async with training(temporal, a_job(observe=True)) as (world, peer):
        await world.fault(sub_health())
        await world.fault(node_fault("node-0"))
        first, second = await world.incident(1), await world.incident(2)
        reasons = {incident.ladder[0].reason for incident in (first, second)}
        assert reasons == {f"observed: {HOT_SWITCH}", "observed: would run job rescheduling"}
        standing = (await world.status()).state.faults
        assert {one.judged for one in standing} == reasons
        assert peer.orders == []
        assert untouched(world)
        await world.settled(lambda _: len(world.cluster.events) == 2)
        assert {event.reason for event in world.cluster.events} == {"RecoveryObserved"}


async def test_the_same_decision_is_shown_once(temporal: WorkflowEnvironment) -> None:
    """A real fault is a reason to judge again; the same judgement makes no second incident and no second event."""
    async with training(temporal, a_job(observe=True)) as (world, _peer):
        await world.fault(sub_health())
        await world.incident(1)
        await world.fault(node_fault("node-0"))
        await world.incident(2)
        assert await world.judged() == f"observed: {HOT_SWITCH}"
        assert (await world.status()).state.incidents == 2
        await world.settled(lambda _: any("job rescheduling" in event.message for event in world.cluster.events))
        assert len([event for event in world.cluster.events if "hot switch" in event.message]) == 1


async def test_what_the_job_itself_rules_out_is_refused_as_anywhere(temporal: WorkflowEnvironment) -> None:
    """The decision is a refusal then, and it is shown as one."""
    async with harness(temporal, a_job(observe=True, capabilities=(Capability.WATCHDOG,))) as world:
        await world.fault(sub_health())
        assert await world.judged() == "refused: the watchdog is on: it would end a paused training"
        assert "the watchdog is on" in (await world.event("RecoveryRefused")).message
        assert (await world.status()).state.history == ()


@pytest.mark.parametrize(("mode", "pod_rank"), [(ids.Workflows.HOT_SWITCH, 1), (ids.Workflows.JOB_RESCHEDULING, None)])
async def test_a_request_is_refused_with_what_would_let_it_act(
    temporal: WorkflowEnvironment, mode: str, pod_rank: int | None
) -> None:
    """Nothing was touched, and the reason names the setting and the label."""
    async with training(temporal, a_job(observe=True)) as (world, peer):
        verdict = await (await world.front(pod_rank, mode=mode, force=True)).result()
        assert (verdict.outcome, verdict.reason) == (Outcome.REFUSED, observe_only.ONLY)
        assert peer.orders == []
        assert untouched(world)


async def test_a_job_that_may_be_touched_from_now_on_is_recovered(temporal: WorkflowEnvironment) -> None:
    """Registered again without `observe`: the sub-health that was only shown is acted on."""
    async with training(temporal, a_job(observe=True)) as (world, peer):
        await world.fault(sub_health())
        await world.incident(1)
        await observes(world, observe=False)
        assert (await world.incident(2)).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_what_was_begun_comes_to_its_end_and_lowers_no_policy(temporal: WorkflowEnvironment) -> None:
    """A hot switch that runs when the installation begins to observe is not left half done; its failure writes
    no policy. That it ran, and ended, is noted for the case that the job's workflow is lost."""
    job = a_job(limits=Limits(pause=SOON))
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await observes(world)
        incident = await world.restarted()
        assert [verdict.outcome for verdict in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert ((await world.status()).state.downgrade, set(world.cluster.labels)) == (None, NOTES)


async def test_a_downgrade_is_not_lifted_while_the_job_is_only_observed(temporal: WorkflowEnvironment) -> None:
    """Lifting writes a label: it is refused with what would let it act, and nothing is written. Without a downgrade there is
    nothing to lift."""
    job = a_job(limits=Limits(backup_scheduled=SOON))
    cluster = ScriptedCluster(job)
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(sub_health())
        await world.incident()
        await observes(world)
        written = dict(cluster.labels)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await world.tell(ids.Updates.LIFT)
        assert isinstance(refused.value.cause, ApplicationError)
        assert (refused.value.cause.type, refused.value.cause.message) == (ids.ErrorTypes.REQUEST_REFUSED, observe_only.ONLY)
        assert (cluster.labels, (await world.status()).state.policy) == (written, SubHealthStrategy.IGNORE)
        await observes(world, observe=False)
        assert (await world.tell(ids.Updates.LIFT)).info == "the sub-health policy is hotSwitch again"
        await observes(world)
        assert "nothing to lift" in (await world.tell(ids.Updates.LIFT)).info


async def test_it_shows_that_it_is_only_observed(temporal: WorkflowEnvironment) -> None:
    """The list of jobs, the job's page and the Temporal UI show it, and no longer do when the job may be touched."""
    async with harness(temporal, a_job(observe=True)) as world:
        assert await _phase(world) == "observed"
        details = await _details(world)
        assert f"**{world.job.name}**: observed" in details
        assert "nothing is ordered" in details
        with console.capture() as page:
            show_status(await world.status())
        assert "starting, only observed" in page.get()
        await observes(world, observe=False)
        assert await _phase(world) == "starting"
        assert "observed" not in await _details(world)
        with console.capture() as page:
            show_status(await world.status())
        assert "observed" not in page.get()


async def _phase(world: Harness) -> str | None:
    """Returns the state that `rekindle jobs` shows for the job."""
    return (await world.entity.describe()).typed_search_attributes.get(Attributes.PHASE)


async def _details(world: Harness) -> str:
    entity: Any = world.entity
    metadata: WorkflowMetadata = await entity.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details
