"""What the entity does about a mode that fails by itself, is ended from outside, or does not end."""

from datetime import timedelta

from temporalio.client import WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.recovery import Mode, Outcome
from tests.support.modes import BuggyHotSwitch, DeafHotSwitch, SlowHotSwitch
from tests.support.peer import Script
from tests.support.plant import Plant, a_job, node_fault, plant, sub_health, training
from workflows.climb import PATIENCE, deadline
from workflows.rescheduling import JobRescheduling


async def _first_run(world: Plant) -> str:
    """Waits until a recovery runs, and answers its run."""
    await world.settled(lambda status: status.running is Mode.HOT_SWITCH)
    while not (world_run := await _running(world)):
        pass
    return world_run


async def _running(world: Plant) -> str:
    async for execution in world.client.list_workflows(f"WorkflowId = '{ids.recovery_workflow(world.job.id)}'"):
        return execution.run_id
    return ""


async def _seconds_to_the_last_mode(world: Plant, run_id: str) -> float:
    """From the close of the hot switch's run to the start of the job rescheduling, by the server's clock."""
    first = await world.client.get_workflow_handle(world.recovery.id, run_id=run_id).describe()
    second = await world.recovery.describe()
    assert first.close_time
    assert second.run_id != run_id
    return (second.start_time - first.close_time).total_seconds()


async def test_a_mode_with_a_bug_leads_to_the_last_mode_within_a_second(temporal: WorkflowEnvironment) -> None:
    """A bug must not leave training paused: the mode fails, and job rescheduling starts."""
    async with plant(temporal, a_job(), modes=(BuggyHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        await world.phase("training resumes from its last checkpoint")
        run_id = [e.run_id async for e in world.client.list_workflows(f"WorkflowId = '{world.recovery.id}'")][-1]
        assert await _seconds_to_the_last_mode(world, run_id) < 1
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "a bug" in incident.ladder[0].reason


async def test_a_mode_that_is_terminated_leads_to_the_last_mode_within_a_second(temporal: WorkflowEnvironment) -> None:
    """Nothing of the mode ran any more: the last mode sweeps the backup pod that it left behind."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        run_id = (await world.recovery.describe()).run_id
        await world.recovery.terminate("by hand")
        await world.phase("training resumes from its last checkpoint")
        assert await _seconds_to_the_last_mode(world, run_id) < 1
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert not [name for name in world.cluster.pods_by_name if "-hot-" in name]


async def test_the_end_of_the_last_mode_is_given_up(temporal: WorkflowEnvironment) -> None:
    """Nothing is below the last mode: terminated, it is given up, and the job's workflow lives on."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase("training resumes from its last checkpoint")
        await world.recovery.terminate("by hand")
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert (await world.entity.describe()).status is WorkflowExecutionStatus.RUNNING


async def test_a_mode_beyond_its_deadline_is_cancelled_and_the_last_mode_follows(temporal: WorkflowEnvironment) -> None:
    """The sum of its limits and a minute: then it is cancelled, and what it says itself does not end the climb."""
    job = a_job()
    async with plant(temporal, job, modes=(SlowHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        await world.settled(lambda status: status.running is Mode.HOT_SWITCH)
        await world.skip(deadline(Mode.HOT_SWITCH, job.limits) - timedelta(seconds=30), of=world.entity)
        assert (await world.status()).running is Mode.HOT_SWITCH
        await world.skip(timedelta(seconds=31), of=world.entity)
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "outlived its deadline" in incident.ladder[0].reason


async def test_a_mode_that_does_not_even_cancel_is_terminated(temporal: WorkflowEnvironment) -> None:
    """A minute after its cancellation it is terminated, and the last mode follows."""
    job = a_job()
    async with plant(temporal, job, modes=(DeafHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        await world.fault(sub_health())
        await world.settled(lambda status: status.running is Mode.HOT_SWITCH)
        await world.skip(deadline(Mode.HOT_SWITCH, job.limits) + timedelta(seconds=1), of=world.entity)
        assert (await world.status()).running is Mode.HOT_SWITCH
        await world.skip(PATIENCE, of=world.entity)
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.ESCALATE, Outcome.RECOVERED]
        assert "did not end" in incident.ladder[0].reason


async def test_a_workflow_that_holds_the_recoverys_id_is_waited_for(temporal: WorkflowEnvironment) -> None:
    """A stranger under the reserved id delays a recovery, and does not prevent it."""
    from rekindle.model.recovery import ModeInput

    async with plant(temporal, a_job(), modes=(DeafHotSwitch, JobRescheduling)) as world, world.peer():
        await world.first_step()
        stranger = await world.client.start_workflow(
            ids.Workflows.HOT_SWITCH, ModeInput(job_id=world.job.id), id=world.recovery.id, task_queue=ids.CONTROL_QUEUE
        )
        await world.fault(node_fault("node-0"))
        await world.settled(lambda status: status.running is Mode.JOB_RESCHEDULING)
        await stranger.terminate("it has no business here")
        await world.skip(timedelta(seconds=1), of=world.entity)
        assert (await world.restarted()).verdict is Outcome.RECOVERED
