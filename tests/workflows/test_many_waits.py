"""Waits for pods of many jobs at once delay no other activity."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from rekindle import ids
from rekindle.model.activities.pods import PodCount, PodsRequest, StopRequest
from rekindle.model.situation import PodRef
from tests.support.harness import a_job, harness

WAITS = 150
"""More than the hundred activities that a worker of the SDK runs at once by default."""


@workflow.defn(sandboxed=False)
class Waiting:
    """Waits for the end of a pod, many times at once."""

    @workflow.run
    async def run(self, request: PodsRequest) -> None:
        waits = [self._wait(request) for _ in range(WAITS)]
        await asyncio.gather(*waits)

    async def _wait(self, request: PodsRequest) -> None:
        limit = timedelta(minutes=5)
        await workflow.execute_activity(
            "await_gone", request, task_queue=ids.CONTROL_QUEUE, start_to_close_timeout=limit, heartbeat_timeout=limit
        )


@workflow.defn(sandboxed=False)
class Deleting:
    """Deletes the pods of a job."""

    @workflow.run
    async def run(self, request: StopRequest) -> PodCount:
        deleted: PodCount = await workflow.execute_activity(
            "delete_pods",
            request,
            result_type=PodCount,
            task_queue=ids.CONTROL_QUEUE,
            start_to_close_timeout=timedelta(minutes=5),
        )
        return deleted


async def test_a_deletion_begins_at_once_beside_hundreds_of_waits(temporal: WorkflowEnvironment) -> None:
    """Each wait may take a quarter of an hour: none of them holds a place that a write needs."""
    async with harness(temporal, a_job()) as world:
        worker = Worker(
            world.client, task_queue="many-waits", workflows=[Waiting, Deleting], workflow_runner=UnsandboxedWorkflowRunner()
        )
        async with worker:
            pod = world.cluster.holder(0).metadata
            stays = PodsRequest(job_id=world.job.id, pods=(PodRef(name=pod.name, uid=pod.uid),), within=timedelta(minutes=4))
            waiting = await world.client.start_workflow(Waiting.run, stays, id=f"waits/{world.job.id}", task_queue="many-waits")
            while world.cluster.followers < WAITS:
                await asyncio.sleep(0.03)
            request = StopRequest(job_id=world.job.id, grace_seconds=0)
            deleted: PodCount = await world.client.execute_workflow(
                Deleting.run, request, id=f"deletes/{world.job.id}", task_queue="many-waits"
            )
            assert deleted.count == 2
            await waiting.result()
