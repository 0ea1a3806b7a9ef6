"""Start of a control worker, which takes over the recoveries of a worker that died."""

import asyncio

from temporalio.api.enums.v1 import EventType, TaskQueueKind
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, sub_health, training
from workers.sticky_queues import leave_sticky_queues


async def test_a_worker_that_starts_takes_recoveries_off_the_queue_of_the_one_before(temporal: WorkflowEnvironment) -> None:
    """The next task of a recovery, and of its job's workflow, goes to any worker that polls. It does not wait for the previous
    worker."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, _peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        recovery = await world.running()
        await _is_listed(world, recovery.id)
        for workflow in (world.entity, recovery):
            await waits(workflow)
        seen = [len(await task_queues(workflow)) for workflow in (world.entity, recovery)]
        await leave_sticky_queues(world.client)
        await world.attached_as("127.0.0.9")
        for workflow, before in zip((world.entity, recovery), seen, strict=True):
            tasks = await task_queues(workflow, more_than=before)
            kinds = tasks[before - 1], tasks[before]
            assert kinds == (TaskQueueKind.TASK_QUEUE_KIND_STICKY, TaskQueueKind.TASK_QUEUE_KIND_NORMAL), workflow.id


async def task_queues(workflow: WorkflowHandle[object, object], more_than: int = 0) -> list[int]:
    """The kinds of queues on which its tasks were scheduled, as soon as there are so many."""
    async with asyncio.timeout(60):
        while True:
            events = (await workflow.fetch_history()).events
            scheduled = [one for one in events if one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED]
            if len(scheduled) > more_than:
                return [one.workflow_task_scheduled_event_attributes.task_queue.kind for one in scheduled]
            await asyncio.sleep(0.03)


async def waits(workflow: WorkflowHandle[object, object]) -> None:
    """Waits until the workflow has nothing to do and no worker has a task of it."""
    async with asyncio.timeout(60):
        while (now := (await workflow.describe()).raw_description).pending_activities or now.HasField("pending_workflow_task"):
            await asyncio.sleep(0.03)


async def _is_listed(world: Harness, workflow_id: str) -> None:
    async with asyncio.timeout(60):
        while not [run async for run in world.client.list_workflows(f"WorkflowId = '{workflow_id}'")]:
            await asyncio.sleep(0.03)
