"""Reports that all nodes are unhealthy, as from a new version of a detector: from the watcher to the job's workflow."""

from temporalio.testing import WorkflowEnvironment

from rekindle.model.mode import Outcome
from tests.support.harness import a_job, training
from tests.workflows.support.watched_cluster import WatchedCluster, watched


async def test_a_job_is_left_alone_until_the_rule_can_be_believed(temporal: WorkflowEnvironment) -> None:
    """No pod moves while more than half of the nodes are reported unhealthy. When fewer are, the pod on the remaining
    unhealthy node moves."""
    job = a_job()
    cluster = WatchedCluster(job, nodes=5)
    async with training(temporal, job, cluster=cluster) as (world, _peer), watched(world.client, cluster):
        await world.settled(lambda status: all(status.state.holders) and len(status.state.holders) == job.pods)
        for name in cluster.node_names:
            cluster.degrade(name)
        event = await world.event("RuleNotBelieved")
        assert "rule plain/sub-healthy calls 5 of 5 nodes sub-healthy, more than maxUnhealthy 50%" in event.message
        cluster.heal("node-0")
        cluster.heal("node-4")
        await world.look("node-0", "node-1")
        status = await world.status()
        assert (status.state.faults, status.state.incidents, cluster.writes) == ((), 0, [])
        cluster.heal("node-3")
        incident = await world.incident()
        assert (incident.verdict, [fault.node for fault in incident.faults]) == (Outcome.RECOVERED, ["node-1"])
        assert [write for write in cluster.writes if write.startswith("create")] == [f"create {job.name}-worker-1-hot-0001"]
        assert cluster.holder(1).spec.node_name in ("node-3", "node-4")
        assert len([one for one in cluster.events if one.reason == "RuleNotBelieved"]) == 1
