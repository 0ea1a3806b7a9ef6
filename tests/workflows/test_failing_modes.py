"""Reaction of the entity to a mode that fails by itself, is ended from outside, or does not end."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.job import Job
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Situation
from rekindle.policy.modes.mode_table import row_of
from tests.fakes.peer import Script
from tests.support.harness import RESUMES, Harness, a_job, harness, node_fault, sub_health, training
from tests.workflows.support.modes import BuggyHotSwitch, DeafHotSwitch, SlowHotSwitch
from workflows import steps
from workflows.job_rescheduling import JobRescheduling


async def _seconds_to_the_last_mode(world: Harness, failed: WorkflowHandle[Any, Any]) -> float:
    """Returns the seconds from the close of the failed mode to the start of job rescheduling, by the server's clock."""
    first, second = await failed.describe(), await world.recovery.describe()
    assert first.close_time
    assert second.id != first.id
    return (second.start_time - first.close_time).total_seconds()


async def _hot_switch(world: Harness) -> WorkflowHandle[Any, Any]:
    """Returns the running hot switch."""
    await world.settled(lambda status: status.running is Mode.HOT_SWITCH and bool(status.recovery))
    return world.recovery


async def test_a_mode_with_a_bug_leads_to_the_last_mode_within_a_second(temporal: WorkflowEnvironment) -> None:
    """A bug must not leave training paused: the mode fails, and job rescheduling starts."""
    async with harness(temporal, a_job(), modes=(BuggyHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        await world.phase("training resumes from its last checkpoint")
        failed = world.client.get_workflow_handle(ids.recovery_workflow(world.job, 1, Mode.HOT_SWITCH))
        assert await _seconds_to_the_last_mode(world, failed) < 1
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "a bug" in incident.ladder[0].reason


async def test_a_mode_that_is_terminated_leads_to_the_last_mode_within_a_second(temporal: WorkflowEnvironment) -> None:
    """The terminated mode cleans up nothing. The last mode deletes the backup pod that is left."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        failed = await _hot_switch(world)
        await failed.terminate("by hand")
        await world.phase("training resumes from its last checkpoint")
        assert await _seconds_to_the_last_mode(world, failed) < 1
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_a_last_mode_that_is_terminated_is_given_up_and_begun_again(temporal: WorkflowEnvironment) -> None:
    """There is no mode after the last one. Its termination by a person does not show what was wrong, which is judged again."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase("training resumes from its last checkpoint")
        await (await world.running()).terminate("by hand")
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert (await world.restarted(2)).verdict is Outcome.RECOVERED


def _hurried() -> Job:
    """Returns a job whose hot switch has 2 s, and half a second to clean up: the clock cannot be skipped while a recovery
    runs."""
    short = timedelta(seconds=0.2)
    names = ("order", "absence", "backup_scheduled", "backup_start", "pause", "resume", "old_pod_deleted", "migration_delivered")
    limits: dict[str, Any] = dict.fromkeys(names, short)
    return a_job(limits=Limits(**{**limits, "old_pod_deleted": short / 2, "clean_up": timedelta(seconds=0.5)}))


async def test_a_mode_beyond_its_deadline_is_cancelled_and_the_last_mode_follows(temporal: WorkflowEnvironment) -> None:
    """The deadline is the sum of the mode's limits and its clean-up. A verdict of the cancelled mode does not keep the next mode
    from running."""
    async with harness(temporal, _hurried(), modes=(SlowHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "outlived its deadline" in incident.ladder[0].reason


async def test_a_mode_that_does_not_even_cancel_is_terminated(temporal: WorkflowEnvironment) -> None:
    """A mode that has not ended after the time for its cancellation is terminated, and the last mode follows."""
    async with harness(temporal, _hurried(), modes=(DeafHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        deaf = await _hot_switch(world)
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert (await deaf.describe()).status is WorkflowExecutionStatus.TERMINATED


@pytest.mark.usefixtures("unsandboxed")
async def test_a_mode_that_cannot_be_terminated_is_not_joined_by_the_next(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recoveries of a job would fight: whatever refuses the termination is waited for."""
    terminate, refused, may_end = WorkflowHandle.terminate, asyncio.Semaphore(0), asyncio.Event()

    async def refusing(handle: WorkflowHandle[Any, Any], *args: Any, **more: Any) -> None:
        if args and "did not end" in str(args[0]) and not may_end.is_set():
            refused.release()
            raise RPCError("unavailable", RPCStatusCode.UNAVAILABLE, b"")
        await terminate(handle, *args, **more)

    monkeypatch.setattr(WorkflowHandle, "terminate", refusing)
    monkeypatch.setitem(steps.WRITE, "schedule_to_close_timeout", timedelta(seconds=0.5))  # two minutes, otherwise
    async with harness(temporal, _hurried(), modes=(DeafHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        deaf = await _hot_switch(world)
        async with asyncio.timeout(60):
            for _ in range(3):
                await refused.acquire()
        assert (await world.status()).running is Mode.HOT_SWITCH
        may_end.set()
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert (await deaf.describe()).status is WorkflowExecutionStatus.TERMINATED


def test_the_deadline_of_a_mode_is_the_sum_of_its_limits_and_its_clean_up() -> None:
    """A hot switch has by default 49 minutes and 30 seconds; a job rescheduling lasts as long as an outage of the cluster."""
    assert row_of(Mode.HOT_SWITCH).deadline(Limits()) == timedelta(minutes=49, seconds=30)
    assert row_of(Mode.JOB_RESCHEDULING).deadline(Limits()) is None


def test_the_deadline_of_a_growth_has_both_waits_for_nodes() -> None:
    """Pods of others are waited for first, and those that are missing still afterwards, each for the whole limit."""
    limits = Limits(backup_scheduled=timedelta(hours=1), scale_in=timedelta(seconds=1))
    waits = 2 * limits.backup_scheduled + limits.backup_start + limits.scale_out
    assert (row_of(Mode.SCALING).deadline(limits) or waits) >= waits


async def test_a_workflow_that_holds_the_recoverys_id_is_waited_for(temporal: WorkflowEnvironment) -> None:
    """One of an earlier workflow of the job may still be ending: it delays a recovery, and does not prevent it."""
    async with harness(temporal, a_job(), modes=(DeafHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        request, context = ModeRequest(), RecoveryContext(job=world.job, incident=1, attachment=None, situation=Situation())
        stranger = await world.client.start_workflow(
            ids.Workflows.HOT_SWITCH,
            args=[request, context],
            id=ids.recovery_workflow(world.job, 1, Mode.JOB_RESCHEDULING),
            task_queue=ids.CONTROL_QUEUE,
        )
        await world.fault(node_fault("node-0"))
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        await stranger.terminate("it has no business here")
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_many_lost_nodes_with_long_names_leave_the_job_its_workflow(temporal: WorkflowEnvironment) -> None:
    """The server ends a workflow that starts a child with more than 2 kB of one search attribute: what fits is searched for."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        for number in range(21):
            name = f"node-{number:03}-{'of-a-large-cluster' * 5}"
            await world.fault(node_fault(name, f"lost-{number}"))
        await world.first_step("life-2")
        assert (await world.restarted(2, "life-3")).verdict is Outcome.RECOVERED
        assert (await world.entity.describe()).status is WorkflowExecutionStatus.RUNNING
