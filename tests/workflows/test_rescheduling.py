"""The last mode: all pods stop and start again, and what is given up is said."""

from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.job import SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.recovery import Mode, Outcome
from tests.support.plant import RESUMES, a_job, node_fault, sub_health, training
from tests.support.scripted_cluster import ScriptedCluster

SOON = timedelta(seconds=0.4)


async def test_pods_that_do_not_end_are_forced(temporal: WorkflowEnvironment) -> None:
    """After the limit for stopping, every pod that is left is deleted without grace, and the job starts again."""
    job = a_job(limits=Limits(pods_stopped=SOON))
    cluster = ScriptedCluster(job)
    stubborn = cluster.holder(1).metadata.name
    cluster.ends_only_by_force.add(stubborn)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        assert (await world.restarted()).verdict is Outcome.RECOVERED
        assert cluster.writes.index(f"delete {stubborn}") < cluster.writes.index(f"kill {stubborn}")
        assert cluster.writes.index(f"kill {stubborn}") < cluster.writes.index(f"create {stubborn}")


async def test_pods_that_never_end_are_given_up(temporal: WorkflowEnvironment) -> None:
    """The verdict names the pod, an event says so, and no second pod of the rank is started beside it."""
    job = a_job(limits=Limits(pods_stopped=SOON))
    cluster = ScriptedCluster(job)
    stuck = cluster.holder(1).metadata.name
    cluster.terminating_for_ever.add(stuck)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert incident.ladder[-1].reason == f"pods do not end: {stuck}"
        assert stuck in (await world.event("RecoveryGivenUp")).message
        assert not [write for write in cluster.writes if write.startswith("create")]


@pytest.mark.parametrize("placed", [True, False], ids=["they fail", "no node for them"])
async def test_pods_that_do_not_start_are_given_up(temporal: WorkflowEnvironment, *, placed: bool) -> None:
    """The verdict carries the cluster's words, an event says so, and the pods are kept for a look."""
    job = a_job(limits=Limits(pods_running=SOON))
    cluster = ScriptedCluster(job)
    cluster.pods_start, cluster.pods_are_placed = False, placed
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0"))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert ("is Failed" if placed else "nodes are available") in incident.ladder[-1].reason
        event = await world.event("RecoveryGivenUp")
        assert event.type == "Warning"
        assert incident.ladder[-1].reason in event.message
        assert len(cluster.pods_by_name) == 2


async def test_no_first_step_in_fifteen_minutes_is_given_up(temporal: WorkflowEnvironment) -> None:
    """Pods that run are not enough: without a completed step the job is given up, no second before its limit."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await world.skip(timedelta(minutes=14, seconds=55))
        assert (await world.status()).running is Mode.JOB_RESCHEDULING
        await world.skip(timedelta(seconds=10))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert incident.ladder[-1].reason == "no completed step within 900 s"


async def test_a_pod_that_fails_before_the_first_step_is_given_up_at_once(temporal: WorkflowEnvironment) -> None:
    """A new pod that dies while the job loads is not waited for."""
    from tests.support.plant import pod_fault

    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        pod = world.cluster.fail(world.cluster.holder(0).metadata.name)
        await world.fault(pod_fault(pod.metadata.name, pod.metadata.uid))
        incident = await world.incident()
        assert incident.verdict is Outcome.GIVEN_UP
        assert f"pod {pod.metadata.name} failed" in incident.ladder[-1].reason


async def test_the_old_lifes_step_is_not_taken_for_the_new_ones(temporal: WorkflowEnvironment) -> None:
    """Progress of the life that met the fault does not count as a restart."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        await world.phase(RESUMES)
        await world.first_step("life-1")
        assert (await world.status()).running is Mode.JOB_RESCHEDULING
        assert (await world.restarted()).verdict is Outcome.RECOVERED


async def test_a_job_is_restarted_five_times_an_hour_at_most(temporal: WorkflowEnvironment) -> None:
    """The sixth fault within an hour is given up and touches nothing; an hour later a fault is recovered again."""
    async with training(temporal, a_job()) as (world, _peer):
        for number in range(1, 6):
            await world.fault(node_fault("node-0", f"episode {number}"))
            await world.restarted(number, f"life-{number + 1}")
        writes = list(world.cluster.writes)
        await world.fault(node_fault("node-0", "one too many"))
        incident = await world.incident(6)
        assert (incident.verdict, world.cluster.writes) == (Outcome.GIVEN_UP, writes)
        assert "restarted 5 times within 1:00:00" in incident.ladder[0].reason
        assert "restarted 5 times within 1:00:00" in (await world.event("RecoveryGivenUp")).message
        await world.skip(timedelta(hours=1), of=world.entity)
        await world.fault(node_fault("node-0", "an hour later"))
        assert (await world.restarted(7, "life-7")).verdict is Outcome.RECOVERED


async def test_healthy_nodes_are_preferred_until_sub_health_is_ignored(temporal: WorkflowEnvironment) -> None:
    """A sub-healthy node is avoided as long as the policy minds sub-health, and used again once it is ignored."""
    job = a_job(capabilities=())
    async with training(temporal, job) as (world, _peer):
        await world.fault(sub_health(0, "node-1"))
        await world.judged(0)
        front = await world.front(None, mode="JobRescheduling")
        await world.restarted()
        await front.result()
        assert world.job.sub_health is SubHealthStrategy.HOT_SWITCH
        assert "node-1" not in {pod.spec.node_name for pod in world.cluster.pods_by_name.values()}
