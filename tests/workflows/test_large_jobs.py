"""Jobs of thousands of pods: what happens to all of them at once stays one incident, with a history of bounded length."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle.model.cluster import Pod
from rekindle.model.mode import Mode, Outcome
from tests.support.harness import Harness, a_job, training
from tests.workflows.support.watched_cluster import WatchedCluster, watched

LARGE, LARGEST = 1_250, 5_000

EVENTS_OF_JOB, EVENTS_OF_RESTART = 300, 150
"""Most events of one incident of a large job, which do not grow with its pods: a busy job is notified of them in batches."""

BACK = timedelta(seconds=5)


async def test_all_pods_of_a_large_job_fail_and_it_is_restarted_once(temporal: WorkflowEnvironment) -> None:
    """1,250 pods fail one after the other: one incident, one restart, and histories that do not grow with the pods."""
    job = a_job(pods=LARGE)
    cluster = WatchedCluster(job, nodes=LARGE)
    async with training(temporal, job, cluster=cluster) as (world, _peer), watched(world.client, cluster):
        first_run = await _is_seen(world)
        await _fail(cluster, list(cluster.pods_by_name.values()))
        incident = await world.restarted()
        assert incident.verdict is Outcome.RECOVERED
        assert [verdict.mode for verdict in incident.ladder if verdict.mode is not Mode.DYING_GASP] == [Mode.JOB_RESCHEDULING]
        assert len([write for write in cluster.writes if write.startswith("create")]) == LARGE
        status = await world.settled(lambda status: not status.state.faults)
        assert status.state.incidents == 1
        assert len(await _events(first_run)) < EVENTS_OF_JOB
        assert len(await _events(world.recovery)) < EVENTS_OF_RESTART


async def test_a_large_job_goes_on_when_its_control_worker_comes_back(temporal: WorkflowEnvironment) -> None:
    """The control worker stops while pods fail, and starts again: job and recovery are at work within seconds."""
    job = a_job(pods=LARGE)
    cluster = WatchedCluster(job, nodes=LARGE)
    async with training(temporal, job, cluster=cluster) as (world, _peer), watched(world.client, cluster):
        await _is_seen(world)
        pods = list(cluster.pods_by_name.values())
        await _fail(cluster, pods[: LARGE // 2])
        recovery = await world.running()
        await world.control.stop()
        stopped = asyncio.create_task(_fail(cluster, pods[LARGE // 2 :]))
        began = datetime.now(UTC)
        await world.control.start()
        await stopped
        incident = await world.restarted()
        assert incident.verdict is Outcome.RECOVERED
        assert await _back_at_work(recovery, began) < BACK
        status = await world.settled(lambda status: not status.state.faults)
        assert status.state.incidents == 1


async def test_a_pod_of_the_largest_job_is_moved(temporal: WorkflowEnvironment) -> None:
    """A job of 5,000 pods is registered and seen whole; one of its nodes becomes slow, and the pod on it is moved."""
    job = a_job(pods=LARGEST)
    cluster = WatchedCluster(job, nodes=LARGEST + 1)
    async with training(temporal, job, cluster=cluster) as (world, _peer), watched(world.client, cluster):
        first_run = await _is_seen(world)
        cluster.degrade(f"node-{LARGEST - 1}")
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        moved = incident.ladder[0].switched[0]
        assert (moved.pod_rank, moved.after.node) == (LARGEST - 1, f"node-{LARGEST}")
        status = await world.settled(lambda status: not status.state.faults)
        assert status.state.holders[LARGEST - 1] == moved.after.uid[:8]
        assert len(await _events(first_run)) < EVENTS_OF_JOB


async def _is_seen(world: Harness) -> WorkflowHandle[Any, Any]:
    """Waits until all its pods are seen. Returns the run of its workflow, which lasts until its first incident ends."""
    await world.settled(lambda status: len(status.state.holders) == world.job.pods and all(status.state.holders))
    return world.client.get_workflow_handle(world.entity.id, run_id=(await world.entity.describe()).run_id)


async def _fail(cluster: WatchedCluster, pods: Sequence[Pod]) -> None:
    """Lets these pods fail, and not those that a restart creates under their names meanwhile."""
    for pod in pods:
        there = cluster.pods_by_name.get(pod.metadata.name)
        if there and there.metadata.uid == pod.metadata.uid:
            cluster.fail(pod.metadata.name)
        await asyncio.sleep(0)  # the watcher sees them one by one


async def _events(of: WorkflowHandle[Any, Any]) -> list[HistoryEvent]:
    return list((await of.fetch_history()).events)


async def _back_at_work(of: WorkflowHandle[Any, Any], since: datetime) -> timedelta:
    """Returns the time from a moment to the next completed workflow task, by the server's clock."""
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    times = [event.event_time.ToDatetime(UTC) for event in await _events(of) if event.event_type == completed]
    return min(time for time in times if time > since) - since
