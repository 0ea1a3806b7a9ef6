"""A job's workflow that begins with what an earlier version, or a person, has written."""

import json

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.plan import Word
from rekindle.model.state import JobState, JobStatus
from tests.support.harness import Harness, a_job, harness, register
from tests.workflows.support.fleet import FIRST, two_jobs
from tests.workflows.test_link_failover import OVER, linked, of
from tests.workflows.test_switch_upgrade import free, until


async def started_again(world: Harness, given: object) -> None:
    """The job's workflow, with this input."""
    await world.entity.terminate("a test")
    await world.client.start_workflow(
        ids.Workflows.TRAINING_JOB, given, id=world.entity.id, task_queue=ids.CONTROL_QUEUE, result_type=str
    )


async def test_a_state_of_which_a_part_cannot_be_read_is_gone_on_with(temporal: WorkflowEnvironment) -> None:
    """The job stays protected, and an event names what was left out. Every task of the workflow failed, for good."""
    async with harness(temporal, a_job()) as world:
        state = json.loads(JobState.of(world.job).with_(incidents=7, registered=True).model_dump_json())
        await started_again(world, {**state, "history": [{"number": 7, "ladder": [{"handled": ["an id"]}]}]})
        status = await world.entity.query(ids.Queries.STATUS, result_type=JobStatus)
        assert (status.state.incidents, status.state.history) == (7, ())
        await world.settled(lambda _: any(event.reason == "StateReadInPart" for event in world.cluster.events))
        (event,) = (event for event in world.cluster.events if event.reason == "StateReadInPart")
        assert "what cannot be read is left out: history" in event.message


@pytest.mark.parametrize("given", [{"job": "gpt"}, {"nonsense": 1}, "gpt", 3], ids=str)
async def test_what_is_no_state_of_a_job_ends_at_once_and_the_job_is_registered_anew(
    given: object, temporal: WorkflowEnvironment
) -> None:
    """A workflow that a user started in the UI or with the CLI ends. It no longer keeps the job from being registered."""
    async with harness(temporal, a_job()) as world:
        await started_again(world, given)
        with pytest.raises(WorkflowFailureError) as failed:
            await world.entity.result()
        assert isinstance(failed.value.cause, ApplicationError)
        assert failed.value.cause.message.startswith("the state of the job cannot be read: ")
        await register(world.client, world.job)
        status = await world.entity.query(ids.Queries.STATUS, result_type=JobStatus)
        assert status.state.job == world.job


async def test_a_maintenance_of_which_a_part_cannot_be_read_moves_its_devices_back(temporal: WorkflowEnvironment) -> None:
    """The maintenance says what was left out; its devices stayed on their backup links."""
    async with linked(temporal, a_job()) as (world, peer):
        maintenance = await of(world).fail_over(world.job.id, OVER)
        known = await of(world).settled(maintenance)
        await world.client.get_workflow_handle(maintenance).terminate("a test")
        given = {"job": world.job.id, "known": {**json.loads(known.model_dump_json()), "moves": [{"at": "once"}]}}
        await world.client.start_workflow(ids.Workflows.LINK_FAILOVER, given, id=maintenance, task_queue=ids.CONTROL_QUEUE)
        assert (await of(world).status(maintenance)).moves[0].what.endswith("read in part, without moves")
        await of(world).switch_back(maintenance)
        assert peer.on_backup == set()


async def test_an_upgrade_of_which_a_part_cannot_be_read_goes_on(temporal: WorkflowEnvironment) -> None:
    """The upgrade is where it was."""
    async with two_jobs(temporal) as this:
        await this.plans.start(this.plan([FIRST]))
        known = await free(this, "a")
        await this.handle.terminate("a test")
        given = {
            "plan": json.loads(this.plan([FIRST]).model_dump_json()),
            "known": {**json.loads(known.model_dump_json()), "notes": "none"},
        }
        await this.first.client.start_workflow(
            ids.Workflows.SWITCH_UPGRADE, given, id=this.handle.id, task_queue=ids.CONTROL_QUEUE
        )
        assert (await free(this, "a")).notes[0].what.endswith("read in part, without notes")
        await this.plans.tell(this.switch, Word.ROLLBACK)
        await until(this, lambda _: not this.one.on_backup)
