"""A program watches a job: it gets the job's status at once and after each change, and no status twice."""

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.client import Rekindle
from rekindle.errors import BadInput
from rekindle.model.mode import Outcome
from rekindle.model.state import JobStatus
from tests.support.harness import a_job, node_fault, training


async def test_a_program_sees_a_recovery_from_its_fault_to_its_verdict(temporal: WorkflowEnvironment) -> None:
    """Between two statuses something has changed, and the last one has the verdict."""
    async with training(temporal, a_job()) as (world, _peer):
        seen: list[JobStatus] = []
        async with asyncio.timeout(60), aclosing(Rekindle(world.client).watch(world.job.name, every=0.02)) as statuses:
            seen.append(await anext(statuses))
            await world.fault(node_fault("node-1"))
            async for status in statuses:
                seen.append(status)
                if status.running:
                    break
            await world.restarted()
            async for status in statuses:
                seen.append(status)
                if status.state.history and not status.running:
                    break
        assert all(before != after for before, after in pairwise(seen))
        assert (seen[0].running, seen[-1].state.history[-1].verdict) == (None, Outcome.RECOVERED)


async def test_the_watch_of_a_job_ends_with_the_job(temporal: WorkflowEnvironment) -> None:
    """The last status of a job that has ended is seen too, and then nothing more."""
    async with training(temporal, a_job()) as (world, _peer):
        async with asyncio.timeout(60), aclosing(Rekindle(world.client).watch(world.job.id, every=0.02)) as statuses:
            await anext(statuses)
            await world.entity.terminate("the job is over")
            assert [status async for status in statuses] == []
        assert len([status async for status in Rekindle(world.client).watch(world.job.id, every=0.02)]) == 1


async def test_a_watch_waits_for_a_control_worker(temporal: WorkflowEnvironment) -> None:
    """An upgrade of the control worker does not end the watch."""
    async with training(temporal, a_job()) as (world, _peer):
        async with asyncio.timeout(60), aclosing(Rekindle(world.client).watch(world.job.id, every=0.02)) as statuses:
            first = await anext(statuses)
            await world.control.stop()
            await world.control.start()
            await world.fault(node_fault("node-1"))
            assert (await anext(statuses)) != first
        await world.restarted()


async def test_a_job_that_there_is_not_is_named(temporal: WorkflowEnvironment) -> None:
    """The call ends at once, with the names of the jobs that are known."""
    with pytest.raises(BadInput, match="job: 'nobody' is not a registered job"):
        await anext(Rekindle(temporal.client).watch("nobody"))


async def test_the_watch_of_a_job_that_is_not_kept_ends(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has deleted it, or its namespace, meanwhile."""
    async with training(temporal, a_job()) as (world, _peer):
        client = Rekindle(world.client)
        async with asyncio.timeout(60), aclosing(client.watch(world.job.id, every=0.02)) as statuses:
            await anext(statuses)
            gone = world.client.get_workflow_handle("not-there")
            monkeypatch.setattr(world.client, "get_workflow_handle", lambda *_, **__: gone)
            assert [status async for status in statuses] == []
