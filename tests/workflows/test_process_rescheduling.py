"""Process rescheduling: other pods take over the ranks of faulty ones, on other nodes. Success, failures, limits."""

from datetime import timedelta

from temporalio.testing import WorkflowEnvironment

from rekindle.model.keys import RECOVER_STRATEGY
from tests.fakes.peer import Script
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import a_job, node_fault, pod_fault, training
from tests.workflows.support.openings import SHORT, fields, heard, told_again
from tests.workflows.test_process_level import (
    DONE,
    ELSEWHERE,
    ESCALATE,
    IN_PLACE,
    LOST,
    RECOVERED,
    RESTART,
    _stands_no_more,
    elsewhere,
    ladder,
    ours,
)


async def test_the_pod_of_a_faulty_process_is_replaced_and_the_others_go_on(temporal: WorkflowEnvironment) -> None:
    """A new pod on another node, `recover` with its pod rank, the old pod deleted when training goes on, no step lost."""
    async with training(temporal, elsewhere()) as (world, peer):
        old = world.cluster.holder(1)
        await peer.report_fault(3)
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        order = peer.received[2]
        assert (list(order.actions), list(order.nodeRankIds)) == (["change_strategy"], ["1"])
        new = world.cluster.holder(1)
        (moved,) = incident.ladder[0].switched
        assert (moved.pod_rank, moved.before.uid, moved.after.uid) == (1, old.metadata.uid, new.metadata.uid)
        assert new.spec.node_name != old.spec.node_name
        assert [write.split()[0] for write in world.cluster.writes] == ["create", "kill", "promote"]
        await _stands_no_more(world, peer)


async def test_a_pod_that_failed_by_itself_may_be_replaced_on_its_own_node(temporal: WorkflowEnvironment) -> None:
    """The end of a pod says nothing of the node, which may be the only free one. Beside a pod that lives another node is asked
    for."""
    job = elsewhere()
    cluster = ScriptedCluster(job)
    cluster.backup_node = cluster.holder(1).spec.node_name
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        failed = cluster.fail(cluster.holder(1).metadata.name)
        lost = pod_fault(failed.metadata.name, failed.metadata.uid)
        await world.fault(lost.model_copy(update={"pod_ranks": (1,)}))
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert incident.ladder[0].switched[0].after.node == failed.spec.node_name


async def test_without_a_spare_the_job_is_restarted_and_nothing_is_left_of_the_try(temporal: WorkflowEnvironment) -> None:
    """The limit for scheduling passes; the new pod that never ran is deleted first."""
    job = elsewhere(replacement_scheduled=SHORT)
    cluster = ScriptedCluster(job)
    cluster.spare = False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await peer.report_fault(3)
        incident = await world.restarted()
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]
        assert "no spare" in incident.ladder[0].reason
        assert "recover" not in peer.orders
        assert not [name for name in cluster.pods_by_name if "-hot-" in name]


async def test_an_order_that_cannot_be_delivered_ends_in_a_restart(temporal: WorkflowEnvironment) -> None:
    """The stream is away when the training side says what it offers, and does not come back while the order is tried."""
    async with training(temporal, elsewhere(), Script(answers_faults=False)) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: "on_global_rank" in peer.orders)
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await peer.report_offers()
        await world.phase("new pods take over the ranks")
        await world.skip(timedelta(minutes=3, seconds=1))
        incident = await world.restarted()
        assert ladder(incident) == [(ELSEWHERE, ESCALATE), (RESTART, RECOVERED)]
        assert "the order `recover` could not be delivered in time" in incident.ladder[0].reason


async def test_a_new_pod_that_dies_before_it_takes_over_is_followed_by_another_one(temporal: WorkflowEnvironment) -> None:
    """The next pod is on another node; the faults are announced again under a new uuid."""
    job = elsewhere()
    cluster = ScriptedCluster(job, nodes=4)
    script = Script(resumes=False)
    async with training(temporal, job, script, cluster) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: "recover" in peer.orders)
        first = cluster.backup()
        script.resumes = True
        await world.fault(pod_fault(first.metadata.name, first.metadata.uid, backup=True))
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert peer.carried_out == [*DONE, "recover", "on_global_rank", "recover"]
        assert cluster.holder(1).spec.node_name not in (first.spec.node_name, "node-1")


async def test_a_new_pod_whose_node_is_lost_while_it_starts_is_followed_by_another_one_at_once(
    temporal: WorkflowEnvironment,
) -> None:
    """The cluster shows it as starting for minutes, while training stands."""
    job = elsewhere()
    cluster = ScriptedCluster(job, nodes=4)
    cluster.backup_starts = False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await peer.report_fault(3)
        await world.settled(lambda _: any("-hot-" in name for name in cluster.pods_by_name))
        first = cluster.backup()
        cluster.backup_starts = True
        cluster.conditions[first.spec.node_name] = (LOST,)
        await world.look(first.spec.node_name)
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        assert cluster.holder(1).spec.node_name not in (first.spec.node_name, "node-1")


async def test_a_pod_that_is_lost_while_new_pods_start_is_replaced_with_the_others(temporal: WorkflowEnvironment) -> None:
    """A second node is lost. All faults are announced again, one order names both pods, and the first new pod is kept."""
    job = a_job(pods=3, annotations={RECOVER_STRATEGY: "recover"})
    cluster = ScriptedCluster(job, nodes=6)
    cluster.backup_starts = False
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await peer.report_fault(3)
        await world.phase("new pods start")
        await world.settled(lambda _: any("-hot-" in name for name in cluster.pods_by_name))
        first, before = cluster.backup(), await heard(world)
        await world.fault(node_fault("node-2").model_copy(update={"pod_ranks": (2,)}))
        await told_again(world, before)
        cluster.backup_starts = True
        cluster.run(first.metadata.name)
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert peer.carried_out == [*DONE, "on_global_rank", "recover"]
        assert incident.ladder[0].switched[0].after.uid == first.metadata.uid
        assert list(peer.received[3].nodeRankIds) == ["1", "2"]


async def test_a_lost_node_is_mended_by_other_pods_without_a_word_of_the_training_side(temporal: WorkflowEnvironment) -> None:
    """The cluster reports the lost node. Training is stopped, and the pod of that node is replaced."""
    async with training(temporal, ours()) as (world, peer):
        await world.fault(node_fault("node-1").model_copy(update={"pod_ranks": (1,)}))
        assert ladder(await world.incident()) == [(ELSEWHERE, RECOVERED)]
        assert fields(peer.received[1])[2] == ["2:1", "3:1"]
        assert world.cluster.holder(1).spec.node_name == "node-2"


async def test_two_pods_are_replaced_together(temporal: WorkflowEnvironment) -> None:
    """A single order names both, and both take their part of it."""
    job = a_job(pods=3, annotations={RECOVER_STRATEGY: "recover"})
    cluster = ScriptedCluster(job, nodes=5)
    async with training(temporal, job, cluster=cluster) as (world, peer):
        await peer.report_fault(3, 4)
        incident = await world.incident()
        assert ladder(incident) == [(ELSEWHERE, RECOVERED)]
        assert [one.pod_rank for one in incident.ladder[0].switched] == [1, 2]
        assert list(peer.received[2].nodeRankIds) == ["1", "2"]


async def test_a_repair_in_place_that_fails_goes_on_in_other_pods(temporal: WorkflowEnvironment) -> None:
    """Training is stopped, its faults are announced again, and the pod is replaced."""
    async with training(temporal, ours(), Script(statuses=[406])) as (world, peer):
        await peer.report_fault(3)
        incident = await world.incident()
        assert ladder(incident) == [(IN_PLACE, ESCALATE), (ELSEWHERE, RECOVERED)]
        assert peer.carried_out == ["recover", "on_global_rank", "recover"]
