"""A mode that a client of Temporal starts by itself: it asks the job, waits, and passes verdict and cancellation on."""

import asyncio
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import Busy
from rekindle.model.incident import ModeRequest
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.temporal import TASK_TIMEOUT
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, sub_health, training


async def _refusal(front: WorkflowHandle[Any, Any]) -> ApplicationError:
    """Returns the error with which a front failed."""
    with pytest.raises(WorkflowFailureError) as raised:
        await front.result()
    cause = raised.value.cause
    assert isinstance(cause, ActivityError)
    assert isinstance(cause.cause, ApplicationError)
    return cause.cause


async def test_a_front_moves_a_pod_that_policy_leaves_alone(temporal: WorkflowEnvironment) -> None:
    """A person may ask for the hot switch of a sub-healthy pod under policy ignore; the front returns the real mode's verdict."""
    async with training(temporal, a_job(sub_health=SubHealthStrategy.IGNORE)) as (world, peer):
        await world.fault(sub_health())
        await world.judged()
        verdict = await (await world.front()).result()
        assert (verdict.mode, verdict.outcome) == (Mode.HOT_SWITCH, Outcome.RECOVERED)
        assert "pod rank 1 moved from node-1 to node-2" in verdict.reason
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]
        assert "requested by ada" in (await world.incident()).summary


@pytest.mark.parametrize("workflow_id", ["banana", "request/of/anybody"])
async def test_a_front_may_have_any_id(temporal: WorkflowEnvironment, workflow_id: str) -> None:
    """One recovery a job is the job's rule and no property of ids."""
    async with training(temporal, a_job()) as (world, _peer):
        verdict: Verdict = await world.client.execute_workflow(
            ids.Workflows.HOT_SWITCH,
            ModeRequest(job=world.job.id, pod_rank=1, force=True),
            id=workflow_id,
            task_queue=ids.CONTROL_QUEUE,
            task_timeout=TASK_TIMEOUT,
            result_type=Verdict,
        )
        assert verdict.outcome is Outcome.RECOVERED


async def test_a_healthy_pod_moves_only_by_force(temporal: WorkflowEnvironment) -> None:
    """The verdict without force is `refused` and says how to force it. With force the pod moves."""
    async with training(temporal, a_job()) as (world, peer):
        verdict = await (await world.front()).result()
        assert verdict.outcome is Outcome.REFUSED
        assert "pod rank 1 is healthy" in verdict.reason
        assert "force" in verdict.reason
        assert peer.orders == []
        assert (await (await world.front(force=True)).result()).outcome is Outcome.RECOVERED


async def test_a_front_meets_the_same_refusals(temporal: WorkflowEnvironment) -> None:
    """A request is refused for the same reason as a decision of the policy."""
    async with training(temporal, a_job(capabilities=())) as (world, _peer):
        verdict = await (await world.front(0, force=True)).result()
        assert verdict.outcome is Outcome.REFUSED
        assert "pod rank 0 cannot be replaced" in verdict.reason


async def test_a_busy_job_says_what_runs(temporal: WorkflowEnvironment) -> None:
    """A second request is refused with the running mode, and is no failure in red; the first is not disturbed."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        first = await world.front(force=True)
        await peer.until(lambda: "new pod running" in peer.orders)
        refusal = await (await world.front(0, force=True)).result()
        assert (refusal.outcome, refusal.passing) == (Outcome.REFUSED, True)
        assert "hot switch of pod rank 1" in refusal.reason
        with pytest.raises(Busy):
            await Rekindle(world.client).hot_switch(world.job.id, pod_rank=0, force=True)
        await peer.pause()
        assert (await first.result()).outcome is Outcome.RECOVERED


@pytest.mark.parametrize(("pod_rank", "words"), [(2, "accepted are 0 to 1"), (-1, "accepted are 0 to 1"), (None, "missing")])
async def test_an_impossible_pod_rank_names_the_field(temporal: WorkflowEnvironment, pod_rank: int | None, words: str) -> None:
    """The error is `request.invalid`, names `pod_rank` and says what is accepted."""
    async with training(temporal, a_job()) as (world, _peer):
        refusal = await _refusal(await world.front(pod_rank, force=True))
        assert refusal.type == ids.ErrorTypes.REQUEST_INVALID
        assert refusal.message.startswith("pod_rank: ")
        assert words in refusal.message


@pytest.mark.parametrize("name", ["nobody", "no'body", "nobody\\", "no\0body", ""], ids=repr)
async def test_an_unknown_job_is_refused(temporal: WorkflowEnvironment, name: str) -> None:
    """The error is `job.unknown`, at once, and no workflow is started for it."""
    async with training(temporal, a_job()) as (world, _peer):
        front = await world.client.start_workflow(
            ids.Workflows.HOT_SWITCH, {"job": name, "pod_rank": 1}, id=f"odd/{world.job.id}", task_queue=ids.CONTROL_QUEUE
        )
        async with asyncio.timeout(60):
            refusal = await _refusal(front)
        assert refusal.type == ids.ErrorTypes.JOB_UNKNOWN


async def test_a_cancellation_before_the_pause_undoes_everything(temporal: WorkflowEnvironment) -> None:
    """The backup pod goes, `stop switch` is ordered, training was never touched, and the policy stays."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "new pod running" in peer.orders)
        await front.cancel()
        verdict = await front.result()
        assert (verdict.mode, verdict.outcome) == (Mode.HOT_SWITCH, Outcome.CANCELLED)
        assert peer.carried_out == ["hot switch", "new pod running", "stop switch"]
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]
        incident = await world.incident()
        assert (incident.verdict, incident.policy_after) == (Outcome.CANCELLED, SubHealthStrategy.HOT_SWITCH)


async def test_a_cancellation_during_the_creation_of_the_backup_is_no_lack_of_a_spare(temporal: WorkflowEnvironment) -> None:
    """A cancellation while the backup waits for a node ends in `cancelled`, and the policy is not lowered."""
    async with training(temporal, a_job()) as (world, peer):
        world.cluster.spare = False
        front = await world.front(force=True)
        await world.phase("backup pod is scheduled")
        await front.cancel()
        assert (await front.result()).outcome is Outcome.CANCELLED
        assert (await world.status()).state.downgrade is None
        assert peer.carried_out == ["hot switch", "stop switch"]


async def test_a_cancellation_behind_the_pause_goes_to_the_end(temporal: WorkflowEnvironment) -> None:
    """Training waits for its order then: the hot switch is finished, and the front returns `recovered`."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "migration" in peer.orders)
        await front.cancel()
        await peer.resume()
        assert (await front.result()).outcome is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_a_cancellation_does_not_stop_what_had_to_follow(temporal: WorkflowEnvironment) -> None:
    """A hot switch that failed after the pause needs its job rescheduling, whether or not its front still wants it."""
    async with training(temporal, a_job(), Script(status=406)) as (world, _peer):
        front = await world.front(force=True)
        await world.phase("training resumes from its last checkpoint")
        await front.cancel()
        await world.first_step("life-2")
        verdict = await front.result()
        assert (verdict.mode, verdict.outcome) == (Mode.JOB_RESCHEDULING, Outcome.RECOVERED)


async def test_a_cancellation_behind_the_pause_does_not_stop_the_next_mode(temporal: WorkflowEnvironment) -> None:
    """The hot switch is too late to follow the cancellation, and fails. The job rescheduling after it cannot be withdrawn, and
    runs."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "migration" in peer.orders)
        await front.cancel()
        await _cancel_is_requested(world)
        await peer.resume(406)
        incident = await world.restarted()
        assert [verdict.outcome for verdict in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert (await front.result()).outcome is Outcome.RECOVERED


async def test_a_cancellation_between_two_modes_does_not_stop_the_second(temporal: WorkflowEnvironment) -> None:
    """The cancellation comes while the downgrade is written. The mode that it is about has ended, and the next one runs."""
    job = a_job()
    cluster = ScriptedCluster(job)
    cluster.takes_metadata.clear()
    async with training(temporal, job, Script(status=406), cluster) as (world, _peer):
        front = await world.front(force=True)
        async with asyncio.timeout(60):
            await cluster.metadata_is_written.wait()
        await front.cancel()
        cluster.takes_metadata.set()
        incident = await world.restarted()
        assert [verdict.outcome for verdict in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert (await front.result()).outcome is Outcome.RECOVERED


async def _cancel_is_requested(world: Harness) -> None:
    """Waits until the cancellation of the running recovery was requested."""
    async with asyncio.timeout(60):
        while True:
            events = (await (await world.running()).fetch_history()).events
            if any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED for event in events):
                return
            await asyncio.sleep(0.03)


async def test_job_rescheduling_has_a_front_as_well(temporal: WorkflowEnvironment) -> None:
    """The front is the same few lines for every mode."""
    async with training(temporal, a_job()) as (world, _peer):
        front = await world.front(None, mode=ids.Workflows.JOB_RESCHEDULING)
        await world.restarted()
        verdict = await front.result()
        assert (verdict.mode, verdict.outcome, verdict.steps_lost) == (Mode.JOB_RESCHEDULING, Outcome.RECOVERED, 3)


async def test_the_end_of_the_job_ends_a_recovery_and_its_front(temporal: WorkflowEnvironment) -> None:
    """A job that ends while a front's hot switch runs cancels it: everything is undone, and the front learns it."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        front = await world.front(force=True)
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.tell(ids.Updates.END, "deleted")
        assert (await front.result()).outcome is Outcome.CANCELLED
        assert (await world.entity.result())["reason"] == "deleted"
        assert peer.carried_out[-1] == "stop switch"
        await register_again(world)


async def register_again(world: Any) -> None:
    """Registers a job of the same name again, which the fixture expects when it ends."""
    from tests.support.harness import register

    await register(world.client, world.job)
