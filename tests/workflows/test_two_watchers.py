"""Two watchers at once, as during a change of leadership: each reports everything, and everything is done once."""

from temporalio.testing import WorkflowEnvironment

from rekindle.model.mode import Outcome
from tests.support.harness import a_job, training
from tests.workflows.support.watched_cluster import WatchedCluster, watched


async def test_two_watchers_double_nothing(temporal: WorkflowEnvironment) -> None:
    """A slow node causes one incident and one backup pod. Nothing is added when the second watcher starts again."""
    job = a_job()
    cluster = WatchedCluster(job)
    async with training(temporal, job, cluster=cluster) as (world, _peer), watched(world.client, cluster):
        async with watched(world.client, cluster):
            await world.settled(lambda status: all(status.state.holders) and len(status.state.holders) == job.pods)
            cluster.degrade("node-1")
            assert (await world.incident()).verdict is Outcome.RECOVERED
        async with watched(world.client, cluster):
            status = await world.settled(lambda status: not status.state.faults)
        assert status.state.incidents == 1
        assert [write.split()[0] for write in cluster.writes].count("create") == 1
        assert len(cluster.pods_by_name) == len({pod.metadata.name for pod in cluster.pods_by_name.values()})
