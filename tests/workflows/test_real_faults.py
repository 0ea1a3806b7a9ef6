"""A real fault, or a second sub-health, while a hot switch runs."""

from collections.abc import Collection
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import Invalid
from rekindle.ids import Updates
from rekindle.model.cluster import Pod
from rekindle.model.fault import WATCHER, Fault, FaultReport, Sighting
from rekindle.model.job import SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster, SlowCluster
from tests.support.harness import RESUMES, a_job, a_mindio_job, node_fault, pod_fault, sub_health, training

LOST_NODE = node_fault("node-0").model_copy(update={"source": WATCHER})
"""Lost node as the watcher reports it, which may come back."""


async def test_a_fault_of_the_training_side_before_the_deletion_cancels_the_hot_switch(temporal: WorkflowEnvironment) -> None:
    """No `stop switch` is ordered, the backup pod is deleted, job rescheduling recovers, and the policy stays hotSwitch."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        backup = world.cluster.backup().metadata.name
        assert await peer.report_fault(2) == 0
        incident = await world.restarted()
        assert [(v.mode, v.outcome) for v in incident.ladder] == [
            (Mode.HOT_SWITCH, Outcome.CANCELLED),
            (Mode.JOB_RESCHEDULING, Outcome.RECOVERED),
        ]
        assert "a real fault comes first" in incident.ladder[0].reason
        assert peer.carried_out == ["hot switch", "new pod running"]
        assert world.cluster.writes.index(f"kill {backup}") < world.cluster.writes.index(f"delete {world.job.name}-worker-0")
        assert incident.policy_after is SubHealthStrategy.HOT_SWITCH
        status = await world.status()
        assert (status.state.faults, status.state.downgrade) == ((), None)


@pytest.mark.parametrize("phase", ["backup pod is scheduled", "backup pod runs"])
async def test_a_lost_node_cancels_the_hot_switch_at_every_wait_for_the_backup(temporal: WorkflowEnvironment, phase: str) -> None:
    """The wait ends at once, nothing of the backup is left, and the lost node is not used again."""
    job = a_job()
    cluster = ScriptedCluster(job)
    cluster.spare, cluster.backup_starts = phase != "backup pod is scheduled", False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await world.fault(sub_health())
        await world.phase(phase)
        await world.fault(node_fault("node-0"))
        incident = await world.restarted()
        assert [v.outcome for v in incident.ladder] == [Outcome.CANCELLED, Outcome.RECOVERED]
        assert peer.carried_out == ["hot switch"]
        assert "node-0" not in {pod.spec.node_name for pod in cluster.pods_by_name.values()}
        assert not [name for name in cluster.pods_by_name if "-hot-" in name]


async def test_a_node_that_is_back_when_its_loss_has_ended_a_switch_ends_no_process(temporal: WorkflowEnvironment) -> None:
    """The cluster is looked at before the restart. The node is healthy again, and the pod is switched after all."""
    job = a_job(limits=Limits(node_lost=timedelta(seconds=0.3)))
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        untouched = world.cluster.holder(0)
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.tell(Updates.SIGHTING, Sighting(faults=(LOST_NODE,)))
        interrupted = await world.incident(1)
        assert [(v.mode, v.outcome) for v in interrupted.ladder] == [(Mode.HOT_SWITCH, Outcome.CANCELLED)]
        await peer.until(lambda: peer.orders.count("new pod running") == 2)
        await peer.pause()
        assert (await world.incident(2)).verdict is Outcome.RECOVERED
        assert world.cluster.holder(0) == untouched


async def test_a_switch_that_a_node_interrupted_which_is_back_can_be_ordered_again(temporal: WorkflowEnvironment) -> None:
    """MindIO's manager ignores an order that repeats the previous one. The first switch is stopped, since the training side has
    seen no fault."""
    job = a_mindio_job(limits=Limits(node_lost=timedelta(seconds=0.3)))
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await world.tell(Updates.SIGHTING, Sighting(faults=(LOST_NODE,)))
        assert (await world.incident(1)).verdict is Outcome.CANCELLED
        await peer.until(lambda: peer.carried_out == ["hot switch", "stop switch", "hot switch"])
        await world.phase("backup loads, training pauses")
        await peer.pause()
        assert (await world.incident(2)).verdict is Outcome.RECOVERED


class _Stopless(ScriptedCluster):
    """Refuses to stop the job."""

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        raise Invalid("the job may not be stopped")


async def test_a_fault_that_stood_before_ends_no_process_when_another_one_has_healed(temporal: WorkflowEnvironment) -> None:
    """The old fault was given up, and the job trains beside it. The loss of another node, which is over, is no reason for a
    restart."""
    job = a_job(limits=Limits(node_lost=timedelta(seconds=0.3)))
    async with training(temporal, job, Script(pauses=False), _Stopless(job)) as (world, peer):
        await world.fault(node_fault("node-9"))
        assert (await world.incident(1)).verdict is Outcome.GIVEN_UP
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.tell(Updates.SIGHTING, Sighting(faults=(LOST_NODE,)))
        interrupted = await world.incident(2)
        assert [(v.mode, v.outcome) for v in interrupted.ladder] == [(Mode.HOT_SWITCH, Outcome.CANCELLED)]
        await peer.until(lambda: peer.orders.count("new pod running") == 2)
        await peer.pause()
        assert (await world.incident(3)).verdict is Outcome.RECOVERED


async def test_a_fault_that_stood_before_ends_no_switch_however_many_sub_healths_there_are(temporal: WorkflowEnvironment) -> None:
    """A mode is given 64 faults: the real ones are among them, so that none of them is news when another one heals."""
    job = a_job()
    async with training(temporal, job, Script(pauses=False), _Stopless(job)) as (world, peer):
        for name in ("n1", "n2"):
            await world.fault(node_fault("node-9", name=name))
            await world.settled(lambda status: all(one.judged for one in status.state.faults))
        before = (await world.status()).state.incidents
        ill = tuple(sub_health(name=f"e{number}").model_copy(update={"source": WATCHER}) for number in range(70))
        await world.tell(Updates.SIGHTING, Sighting(faults=ill))
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.tell(Updates.REPORT_FAULTS, FaultReport(cleared=("n2",)))
        await world.phase("backup loads, training pauses")
        await peer.pause()
        assert (await world.incident(before + 1)).verdict is Outcome.RECOVERED


async def test_a_pause_that_comes_while_a_switch_is_undone_is_not_left_waiting(temporal: WorkflowEnvironment) -> None:
    """MindIO stands from then on: it is restarted, though the node whose loss ended the switch is well again."""
    job = a_mindio_job(limits=Limits(node_lost=timedelta(seconds=0.3)))
    cluster = SlowCluster(job)
    async with training(temporal, job, Script(pauses=False), cluster) as (world, peer):
        await world.fault(sub_health())
        await world.phase("backup loads, training pauses")
        await peer.until(lambda: "hot switch" in peer.carried_out)
        await world.tell(Updates.SIGHTING, Sighting(faults=(LOST_NODE,)))
        await cluster.asked.wait()
        await peer.pause()
        cluster.may_delete.set()
        await world.phase(RESUMES)
        await world.attached_as("127.0.0.3")
        assert [verdict.outcome for verdict in (await world.incident()).ladder] == [Outcome.CANCELLED, Outcome.RECOVERED]


async def test_a_switch_is_stopped_before_its_backup_is_deleted(temporal: WorkflowEnvironment) -> None:
    """The cluster may not answer for long. Training would pause for a switch that is no longer wanted, and goes on undisturbed
    instead."""
    job = a_job(limits=Limits(node_lost=timedelta(seconds=0.3)))
    cluster = SlowCluster(job)
    async with training(temporal, job, Script(pauses=False), cluster) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.tell(Updates.SIGHTING, Sighting(faults=(LOST_NODE,)))
        await peer.until(lambda: "stop switch" in peer.carried_out)
        assert cluster.backup()
        cluster.may_delete.set()
        assert [verdict.outcome for verdict in (await world.incident()).ladder] == [Outcome.CANCELLED]


def _of_worker_0(cluster: ScriptedCluster) -> Fault:
    pod = cluster.holder(0)
    return pod_fault(pod.metadata.name, pod.metadata.uid)


async def test_a_real_fault_behind_the_deletion_waits_for_the_end(temporal: WorkflowEnvironment) -> None:
    """The hot switch is finished first; the fault is the next incident."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        await world.fault(_of_worker_0(world.cluster))
        assert (await world.status()).running is Mode.HOT_SWITCH
        await peer.resume()
        assert (await world.incident(1)).verdict is Outcome.RECOVERED
        second = await world.restarted(2)
        assert [(v.mode, v.outcome) for v in second.ladder] == [(Mode.JOB_RESCHEDULING, Outcome.RECOVERED)]


async def test_the_end_of_the_old_pod_is_no_fault(temporal: WorkflowEnvironment) -> None:
    """The deletion of the old pod is reported while the hot switch runs. It starts no incident after the switch."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        old = world.cluster.holder(1)
        await world.fault(sub_health())
        await peer.until(lambda: "migration" in peer.orders)
        await world.fault(pod_fault(old.metadata.name, old.metadata.uid))
        await peer.resume()
        await world.incident(1)
        status = await world.status()
        assert (status.state.faults, status.state.incidents, status.running) == ((), 1, None)


async def test_a_second_sub_health_queues(temporal: WorkflowEnvironment) -> None:
    """Two sub-healthy pods are hot-switched one after the other, each with an attempt of its own."""
    job = a_job()
    async with training(temporal, job, Script(pauses=False), ScriptedCluster(job, nodes=4)) as (world, peer):
        await world.fault(sub_health(1, "node-1", "first"))
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.fault(sub_health(0, "node-0", "second"))
        assert (await world.status()).running is Mode.HOT_SWITCH
        assert peer.orders.count("hot switch") == 1
        peer.script.pauses = True
        await peer.pause()
        assert (await world.incident(2)).verdict is Outcome.RECOVERED
        assert (await world.incident(1)).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"] * 2
        assert len({order.uuid for order in peer.received}) == 2


async def test_faults_that_come_together_are_one_incident(temporal: WorkflowEnvironment) -> None:
    """A fault that was reported before the pods were restarted is settled. One that is reported afterwards is the next
    incident."""
    job = a_job(limits=Limits(pods_stopped=timedelta(seconds=3)))
    cluster = ScriptedCluster(job)
    cluster.ends_only_by_force.add(cluster.holder(1).metadata.name)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(node_fault("node-0", "lost"))
        await world.phase("all pods stop")
        await world.fault(node_fault("node-1", "told before the restart"))
        await world.phase(RESUMES)
        await world.fault(node_fault("node-2", "told after it"))
        await world.first_step("life-2")
        first = await world.incident(1)
        assert [fault.id for fault in first.faults] == ["lost"]
        cluster.ends_only_by_force.clear()
        second = await world.restarted(2, "life-3")
        assert [fault.id for fault in second.faults] == ["told after it"]


async def test_a_fault_that_is_told_again_while_it_stands_is_no_news(temporal: WorkflowEnvironment) -> None:
    """A fault may be reported again at any time. It keeps the time of its first report, and is one incident."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(node_fault("node-0"))
        (first,) = (await world.status()).state.faults
        await world.phase(RESUMES)
        await world.fault(node_fault("node-0"))
        (again,) = (await world.status()).state.faults
        assert again.fault == first.fault
        await world.restarted()
        status = await world.status()
        assert (status.state.faults, status.state.incidents) == ((), 1)
