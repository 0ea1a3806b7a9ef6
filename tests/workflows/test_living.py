"""List of workflows in which no running one may be missing."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import WorkflowExecutionStatus as Status
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.jobs import JobActivities
from rekindle.ids import job_workflow
from rekindle.temporal import living

LIMIT = 60.0


@workflow.defn(name="Again", sandboxed=False)
class Again:
    """Continues as new once, and goes on for ever."""

    @workflow.run
    async def run(self, runs: int) -> None:
        if runs > 1:
            workflow.continue_as_new(runs - 1)
        await workflow.wait_condition(lambda: False)


@workflow.defn(name="AtOnce", sandboxed=False)
class AtOnce:
    """Ends."""

    @workflow.run
    async def run(self) -> None: ...


async def test_a_workflow_that_has_just_continued_as_new_is_listed_by_its_run_before_too(temporal: WorkflowEnvironment) -> None:
    """The run before may be the only one that is listed already. A workflow that has ended is not listed, nor is one of another
    type."""
    client, name = temporal.client, f"again-{uuid4()}"
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue=name, workflows=[Again, AtOnce], workflow_runner=runner):
        await client.execute_workflow(AtOnce.run, id=f"{name}-once", task_queue=name)
        await client.start_workflow(Again.run, 2, id=name, task_queue=name)
        async with asyncio.timeout(LIMIT):
            while len(found := [run async for run in client.list_workflows(living("Again")) if run.id == name]) < 2:
                await asyncio.sleep(0.03)
            while [run async for run in client.list_workflows(living("AtOnce"))]:
                await asyncio.sleep(0.03)
        assert {run.status for run in found} == {Status.RUNNING, Status.CONTINUED_AS_NEW}
        await client.get_workflow_handle(name).terminate()


class Listed:
    """A client whose list of workflows is a moment old."""

    def __init__(self, jobs: Iterable[str], living: Iterable[str]) -> None:
        self._jobs, self._living = [job_workflow(job) for job in jobs], {job_workflow(job) for job in living}

    async def list_workflows(self, _query: str) -> AsyncIterator[SimpleNamespace]:
        for name in self._jobs:
            yield SimpleNamespace(id=name)

    def get_workflow_handle(self, name: str) -> SimpleNamespace:
        async def describe() -> SimpleNamespace:
            return SimpleNamespace(status=Status.RUNNING if name in self._living else Status.COMPLETED)

        return SimpleNamespace(describe=describe)


async def test_a_job_is_found_by_its_name_beside_many_that_have_just_ended() -> None:
    """Such as those of all other namespaces. However many have the name, a few of those that live are named."""
    jobs = [f"job-{number:03}" for number in range(30)]
    find = ActivityEnvironment().run
    assert await find(JobActivities(Listed(jobs, jobs[-1:])).find_job, "train") == jobs[-1]  # type: ignore[arg-type]
    with pytest.raises(ApplicationError, match=f"use an id: {', '.join(jobs[:5])}$"):
        await find(JobActivities(Listed(jobs, jobs)).find_job, "train")  # type: ignore[arg-type]
