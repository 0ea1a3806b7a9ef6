"""A cluster that would refuse a backup pod is asked when the job has its pods, and says so before anything is wrong."""

from temporalio.testing import WorkflowEnvironment

from rekindle.model.mode import Outcome
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import a_job, node_fault, training

REFUSED = "violates PodSecurity: host namespaces"


async def test_what_would_not_work_is_said_when_the_job_has_its_pods(temporal: WorkflowEnvironment) -> None:
    """Once in each life of the pods: after a restart they are others, and so may be what the cluster admits."""
    job = a_job(admitted=True)
    cluster = ScriptedCluster(job)
    cluster.refuses_backups = REFUSED
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        for _ in range(2):
            await world.look()
        assert (await world.event("HotSwitchesRefused")).message.endswith(REFUSED)
        assert cluster.asked_for_backups == 1
        await world.fault(node_fault("node-0"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        await world.settled(lambda status: status.state.asked and cluster.asked_for_backups == 2)


async def test_of_a_job_that_nobody_refuses_nothing_is_said(temporal: WorkflowEnvironment) -> None:
    """The question was asked all the same."""
    job = a_job(admitted=True)
    async with training(temporal, job) as (world, _peer):
        await world.look()
        await world.settled(lambda status: status.state.asked)
        assert not [event for event in world.cluster.events if event.reason == "HotSwitchesRefused"]
