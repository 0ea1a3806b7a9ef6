"""Standbys are kept up beside recoveries, take ranks in hot switches and process reschedulings, and cost training nothing."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment

from activities.pods import PodActivities
from rekindle import ids
from rekindle.model.activities.jobs import SurveyRequest
from rekindle.model.cluster import Condition
from rekindle.model.job import Job
from rekindle.model.keys import RANK_INDEX, RECOVER_STRATEGY
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobStatus
from rekindle.policy.placement.standbys import FIRST_PAUSE
from tests.fakes.peer import Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, a_mindio_job, harness, pod_fault, sub_health, training
from workflows.new_pods import LOOK_AT_PODS

PAUSE = FIRST_PAUSE + timedelta(seconds=5)
"""Time after which standbys are checked again."""

LOST = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown", message="its kubelet is silent")
SICK = Condition(type="SubHealthy", status="True", reason="80E18005", message="slow")


def wanting(standbys: int = 1, **wishes: object) -> Job:
    return a_job(standbys=standbys, annotations={RECOVER_STRATEGY: "recover"}, **wishes)


async def seen(world: Harness, *nodes: str) -> None:
    """Reports what the cluster shows now, of these nodes too, as the watcher does."""
    request = SurveyRequest(job_id=world.job.id, nodes=nodes)
    survey = await ActivityEnvironment().run(PodActivities(world.cluster).survey, request)
    await world.tell(ids.Updates.SIGHTING, survey.sighting)


def there(count: int) -> Callable[[JobStatus], bool]:
    return lambda status: sum(one.runs for one in status.state.standbys) == count


def told_of(peer: ScriptedPeer, order: str) -> dict[str, int]:
    """Returns the standbys that an order names, with their ranks."""
    (found,) = (one.extraParams for one in peer.received if order in (*one.actions, one.changeStrategy))
    standbys: dict[str, int] = json.loads(found)["standbys"]
    return standbys


async def test_standbys_come_with_the_first_step_and_not_before(temporal: WorkflowEnvironment) -> None:
    """The job gets as many standbys as it wants, each on a node without one of its ranks."""
    job = wanting(2)
    cluster = ScriptedCluster(job, nodes=5)
    async with harness(temporal, job, cluster) as world, world.peer():
        await seen(world)
        assert not cluster.standbys()
        await world.first_step()
        await world.settled(there(2))
        assert {pod.spec.node_name for pod in cluster.standbys()} <= {"node-2", "node-3", "node-4"}
        assert (await world.status()).state.incidents == 0


async def test_a_hot_switch_takes_a_standby_and_another_one_comes(temporal: WorkflowEnvironment) -> None:
    """The order says whose rank it has; no other pod is made for the switch."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=4)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.settled(there(1))
        (standby,) = cluster.standbys()
        await world.fault(sub_health())
        incident = await world.incident()
        assert [(one.mode, one.outcome) for one in incident.ladder] == [(Mode.HOT_SWITCH, Outcome.RECOVERED)]
        assert told_of(peer, "new pod running") == {standby.metadata.uid: 1}
        assert cluster.holder(1).metadata.uid == standby.metadata.uid
        assert not [name for name in cluster.pods_by_name if "-hot-" in name]
        await world.skip(PAUSE, of=world.entity)
        await world.settled(lambda _: bool(cluster.standbys()))
        assert cluster.standbys()[0].spec.node_name not in {cluster.holder(rank).spec.node_name for rank in (0, 1)}
        assert (await world.status()).state.upkeep.tries == 1, "one that served makes nobody wait longer for the next"


async def test_a_process_rescheduling_takes_a_standby_for_the_first_pod_and_makes_the_second(
    temporal: WorkflowEnvironment,
) -> None:
    """The order names both pods, and the rank of the standby alone."""
    job = wanting(1, pods=3)
    cluster = ScriptedCluster(job, nodes=6)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.settled(there(1))
        (standby,) = cluster.standbys()
        await peer.report_fault(3, 4)
        incident = await world.incident()
        assert [(one.mode, one.outcome) for one in incident.ladder] == [(Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED)]
        assert told_of(peer, "recover") == {standby.metadata.uid: 1}
        assert cluster.holder(1).metadata.uid == standby.metadata.uid
        assert "-hot-" in cluster.holder(2).metadata.name


async def test_a_standby_that_dies_when_it_was_taken_is_followed_by_another_pod(temporal: WorkflowEnvironment) -> None:
    """The dead standby is deleted. The faults are announced again, and the next order names the pod that took its place."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=5)
    script = Script(resumes=False)
    async with training(temporal, job, script, cluster) as (world, peer):
        await world.settled(there(1))
        (standby,) = cluster.standbys()
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.orders)
        script.resumes = True
        await world.fault(pod_fault(standby.metadata.name, standby.metadata.uid, backup=True))
        incident = await world.incident()
        assert [(one.mode, one.outcome) for one in incident.ladder] == [(Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED)]
        assert f"kill {standby.metadata.name}" in cluster.writes
        assert "-hot-" in cluster.holder(1).metadata.name
        assert peer.received[-1].extraParams == ""


async def test_a_standby_whose_node_is_lost_when_it_was_taken_is_followed_by_another_pod(temporal: WorkflowEnvironment) -> None:
    """The cluster shows the standby as running for minutes, and reports nothing of a pod without a rank of its own. Its node is
    therefore checked."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=5)
    script = Script(resumes=False)
    async with training(temporal, job, script, cluster) as (world, peer):
        await world.settled(there(1))
        (standby,) = cluster.standbys()
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.orders)
        script.resumes = True
        cluster.conditions[standby.spec.node_name] = (LOST,)
        await world.skip(LOOK_AT_PODS + timedelta(seconds=5))
        incident = await world.incident()
        assert [(one.mode, one.outcome) for one in incident.ladder] == [(Mode.PROCESS_RESCHEDULING, Outcome.RECOVERED)]
        assert f"kill {standby.metadata.name}" in cluster.writes
        assert cluster.holder(1).spec.node_name not in ("node-1", standby.spec.node_name)


async def test_a_standby_that_dies_is_no_fault_and_another_one_comes(temporal: WorkflowEnvironment) -> None:
    """One event says so; there is no incident, and training is not touched."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=4)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.settled(there(1))
        (first,) = cluster.standbys()
        cluster.fail(first.metadata.name)
        await seen(world)
        assert first.metadata.name in (await world.event("StandbyLost")).message
        await world.skip(PAUSE, of=world.entity)
        await world.settled(lambda _: first.metadata.name not in cluster.pods_by_name)
        await world.settled(there(1))
        status = await world.status()
        assert (status.state.incidents, status.state.faults, peer.orders) == (0, (), [])


async def test_a_node_that_has_only_a_standby_starts_no_hot_switch(temporal: WorkflowEnvironment) -> None:
    """The standby leaves it for another one."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=4)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.settled(there(1))
        node = cluster.standbys()[0].spec.node_name
        cluster.conditions[node] = (SICK,)
        await seen(world, node)
        await world.skip(PAUSE, of=world.entity)
        await world.settled(lambda _: [pod.spec.node_name for pod in cluster.standbys()] not in ([], [node]))
        await world.settled(there(1))
        status = await world.status()
        assert (status.state.incidents, peer.orders) == (0, [])


async def test_a_standby_without_a_node_is_said_once_and_training_goes_on(temporal: WorkflowEnvironment) -> None:
    """The event has the scheduler's message. A hot switch finds a spare as if no standby were wanted."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=2)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.settled(lambda status: status.state.upkeep.tries > 0 and bool(status.state.standbys))
        for _ in range(2):
            await seen(world)
        event = await world.event("StandbyUnschedulable")
        assert "0/2 nodes are available: 2 Insufficient accelerators" in event.message
        assert [one.reason for one in cluster.events].count("StandbyUnschedulable") == 1
        cluster.node_names += ["node-2"]
        await world.fault(sub_health())
        incident = await world.incident()
        assert incident.verdict is Outcome.RECOVERED
        assert "-hot-" in cluster.holder(1).metadata.name


async def test_a_standby_that_the_cluster_refuses_is_said_once_and_training_goes_on(temporal: WorkflowEnvironment) -> None:
    """The cluster refuses as a quota does. The event has the cluster's message, and a standby comes later."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=4)
    cluster.refuses_standbys = "exceeded quota: few"
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        assert "exceeded quota: few" in (await world.event("StandbyNotMade")).message
        await world.skip(PAUSE, of=world.entity)
        await world.settled(lambda status: status.state.upkeep.tries > 1)
        cluster.refuses_standbys = ""
        await world.skip(4 * PAUSE, of=world.entity)
        status = await world.settled(there(1))
        assert [one.reason for one in cluster.events].count("StandbyNotMade") == 1
        assert (status.state.upkeep.refused, status.state.incidents) == ("", 0)


@pytest.mark.parametrize("job", [a_mindio_job(standbys=1)])
async def test_a_job_that_cannot_have_standbys_is_told_so(temporal: WorkflowEnvironment, job: Job) -> None:
    """An event says why, and none is made."""
    cluster = ScriptedCluster(job)
    async with harness(temporal, job, cluster) as world, world.peer():
        await world.first_step()
        await seen(world)
        assert "MindIO" in (await world.event("StandbysRefused")).message
        assert all(RANK_INDEX in pod.metadata.annotations for pod in cluster.pods_by_name.values())


async def test_what_stands_by_ends_with_the_job(temporal: WorkflowEnvironment) -> None:
    """Also where the job's object stays: its nodes are free for others."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=4)
    async with harness(temporal, job, cluster) as world, world.peer():
        await world.first_step()
        await world.settled(there(1))
        await world.tell(ids.Updates.END, "the job succeeded")
        assert (await world.entity.result())["reason"] == "the job succeeded"
        assert cluster.standbys() == []
        assert len(cluster.pods_by_name) == 2


@pytest.mark.parametrize("is_made", [True, False], ids=["its answer is lost", "it is being made"])
async def test_what_nobody_has_seen_yet_ends_with_the_job(temporal: WorkflowEnvironment, is_made: bool) -> None:
    """The job's object, and what it owns, may stay for days. A cluster creates a requested pod, also when the caller has given
    up."""
    job = wanting(1)
    cluster = ScriptedCluster(job, nodes=4)
    cluster.forgets_to_answer = is_made
    if not is_made:
        cluster.making.may_be.clear()
    async with harness(temporal, job, cluster) as world, world.peer():
        await world.first_step()
        await cluster.making.is_asked.wait()
        await world.tell(ids.Updates.END, "the job succeeded")
        await world.entity.result()
        await cluster.making.is_done.wait()
        assert cluster.standbys() == []
