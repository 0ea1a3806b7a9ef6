"""Account of a job in its workflow: it outlives the workflow's code, and takes what managers of all versions report."""

from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle.cli import report
from rekindle.client import JobRow, Rekindle
from rekindle.ids import Updates
from rekindle.model.account import Bucket, Ended, Stretch, TimeReport
from tests.support.harness import Harness, a_job, harness, register

pytestmark = pytest.mark.timeout(120)


async def trains(world: Harness, seconds: float, **more: Any) -> float:
    """Reports a stretch of training that began 10 s after the registration. Returns the time of the registration."""
    since = (await world.status()).state.account.since
    now = Stretch(began=since + 10, ended=since + 10 + seconds, steps=10)
    await world.tell(Updates.TIME, TimeReport(step=10, ranks=4, now=now, **more))
    return since


async def test_a_job_that_has_ended_is_counted_without_a_worker(temporal: WorkflowEnvironment) -> None:
    """The result of its workflow is its account. No worker may know the version that ended it any more."""
    async with harness(temporal, a_job()) as world:
        await trains(world, 30, final=True)
        await world.tell(Updates.END, "the job succeeded")
        await world.entity.result()
    found = await Rekindle(world.client).account(world.job.id)
    assert (found.name, found.id) == (world.job.name, world.job.id)
    assert found.account.final
    assert found.account.ranks == 4
    assert found.account.seconds == pytest.approx({Bucket.START_UP: 10, Bucket.TRAINING: 30})


async def test_the_result_of_a_job_says_why_it_ended(temporal: WorkflowEnvironment) -> None:
    """The time of a job is counted up to its end, also if its training side has reported none."""
    async with harness(temporal, a_job()) as world:
        await world.tell(Updates.END, "the job was deleted")
        ended = Ended.model_validate(await world.entity.result())
    assert (ended.name, ended.reason) == (world.job.name, "the job was deleted")
    assert ended.account.seconds.keys() <= {Bucket.START_UP}
    assert ended.account.ranks == world.job.ranks


async def test_a_job_that_was_suspended_is_counted_once(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow of the job ended, and another one followed. The report of all jobs contains the time of each."""
    async with harness(temporal, a_job()) as world:
        rekindle = Rekindle(world.client)
        await trains(world, 30, final=True)
        await world.tell(Updates.END, "the job was suspended")
        former = await rekindle.temporal.get_workflow_handle(world.entity.id).describe()
        await world.entity.result()
        await register(world.client, world.job)
        await trains(world, 50, final=True)
        present = await rekindle.temporal.get_workflow_handle(world.entity.id).describe()

        async def jobs(**_: Any) -> list[JobRow]:  # the server of this test lists no workflows
            return [
                JobRow(id=world.job.id, name=world.job.name, phase="", since=run.start_time, run=run.run_id)
                for run in (former, present)
            ]

        monkeypatch.setattr(rekindle, "jobs", jobs)
        accounts = [one.account for one in await report._of_all_jobs(rekindle, 0.0)]
    assert [round(account.seconds[Bucket.TRAINING]) for account in accounts] == [30, 50]


async def test_a_job_that_an_earlier_version_has_ended_is_asked(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of its workflow was the reason alone. A job that lives is asked too."""

    async def reason(_: WorkflowHandle[Any, Any]) -> str:
        return "the job succeeded"

    async with harness(temporal, a_job()) as world:
        await trains(world, 30, final=True)
        living = await Rekindle(world.client).account(world.job.id)
        await world.tell(Updates.END, "the job succeeded")
        await world.entity.result()
        monkeypatch.setattr(WorkflowHandle, "result", reason)
        ended = await Rekindle(world.client).account(world.job.id)
    for found in (living, ended):
        assert found.account.seconds == pytest.approx({Bucket.START_UP: 10, Bucket.TRAINING: 30})
