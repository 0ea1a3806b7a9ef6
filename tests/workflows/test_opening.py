"""The opening of a fault recovery: its orders, its reports, and its reaction to faults that come and go meanwhile."""

from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.fault import Fault, FaultKind
from tests.fakes.peer import Script
from tests.support.harness import NOW, a_job, node_fault
from tests.workflows.support.openings import SHORT, fields, healed, mindio, opened, opening, ranks


async def test_the_opening_is_the_recorded_one_message_by_message(temporal: WorkflowEnvironment) -> None:
    """Stop, announce with the pod that leaves, learn what is offered: one uuid for all, and each order once."""
    async with opening(temporal, mindio()) as (world, peer):
        await peer.report_fault(3)
        found = await opened(world)
        stop, announce = peer.received
        assert fields(stop) == ("stopTrain", ["stop_train"], ["3:1"], "", 0, [], "")
        assert fields(announce) == ("globalFault", ["on_global_rank", "fault_nodes_exit"], ["2:1", "3:1"], "", 0, ["1"], "")
        assert {stop.uuid, announce.uuid} == {found.attempt}
        assert (found.offers, found.leaving, found.presumed) == (("dump", "recover"), (1,), False)
        assert ranks(found.faulty) == ["3:1"]


@pytest.mark.parametrize(("kind", "timeout"), [("0", 0), ("2", 33)], ids=["memory", "network"])
async def test_a_fault_that_may_be_retried_ends_no_process(temporal: WorkflowEnvironment, kind: str, timeout: int) -> None:
    """The fault is announced with its type, without pods and without a settling time. A network fault has time to find other
    routes."""
    job = mindio(settle=timedelta(seconds=10), release=timedelta(seconds=10))
    async with opening(temporal, job) as (world, peer):
        await peer.report_fault(3, kind=kind)
        found = await opened(world)
        assert fields(peer.received[1]) == ("globalFault", ["on_global_rank"], [f"3:{kind}"], "", timeout, [], "")
        assert (found.offers, found.leaving) == (("dump", "retry", "recover"), ())


async def test_faults_of_both_types_are_normal_faults(temporal: WorkflowEnvironment) -> None:
    """Memory in one pod and network in another: both pods leave, and no retry is offered."""
    async with opening(temporal, mindio(), Script(stops=False)) as (world, peer):
        await peer.report_fault(0, kind="0")
        await peer.until(lambda: peer.state != "trains")
        await peer.report_fault(3, kind="2")
        await peer.report_stopped()
        found = await opened(world)
        assert ranks(found.announced) == ["0:1", "1:1", "2:1", "3:1"]
        assert (found.leaving, found.offers) == ((0, 1), ("dump", "recover"))


async def test_the_training_side_waits_for_its_next_order_as_long_as_it_says(temporal: WorkflowEnvironment) -> None:
    """MindIO waits for 30 s from its report, and ours without a limit."""
    async with opening(temporal, mindio()) as (world, peer):
        await peer.report_fault(3)
        found = await opened(world)
        ended = (await world.recovery.describe()).close_time
        assert found.answer_by
        assert ended
        assert timedelta(seconds=25) < found.answer_by - ended <= timedelta(seconds=30)


async def test_ours_is_waited_for_and_waits_for_as_long_as_it_takes(temporal: WorkflowEnvironment) -> None:
    """Ours repeats a lost report when its stream comes back, and the opening goes on afterwards."""
    async with opening(temporal, a_job(annotations={}), Script(stops=False)) as (world, peer):
        await world.fault(Fault(id="p", kind=FaultKind.PROCESS, ranks=(3,), seen_at=NOW, source="test"))
        await peer.until(lambda: peer.state != "trains")
        await peer.cut()
        await peer.attach()
        await peer.until(lambda: peer.orders.count("stop_train") == 2)
        await peer.report_stopped()
        assert (await opened(world)).answer_by is None
        assert peer.carried_out == ["stop_train", "on_global_rank"]


async def test_a_second_fault_before_the_announcement_is_announced_with_the_first(temporal: WorkflowEnvironment) -> None:
    """The second fault may have a report of its own, or be named in the report of the stop."""
    async with opening(temporal, mindio(), Script(stops=False)) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: peer.state != "trains")
        peer.broken[1] = "1"
        await peer.report_stopped()
        found = await opened(world)
        assert fields(peer.received[1])[2] == ["0:1", "1:1", "2:1", "3:1"]
        assert (ranks(found.faulty), found.leaving) == (["1:1", "3:1"], (0, 1))


async def test_a_second_fault_behind_the_announcement_is_told_to_the_mode(temporal: WorkflowEnvironment) -> None:
    """The training side names the second fault beside its offers, as recorded. It is not announced again, and the next order
    names its pod."""
    async with opening(temporal, mindio(), Script(finds=(0,))) as (world, peer):
        await peer.report_fault(3)
        found = await opened(world)
        assert peer.orders == ["stop_train", "on_global_rank"]
        assert ranks(found.announced) == ["2:1", "3:1"]
        assert (ranks(found.faulty), found.leaving) == (["0:1", "3:1"], (1,))


async def test_a_pod_that_was_replaced_is_not_told_to_leave(temporal: WorkflowEnvironment) -> None:
    """The exit would wait for the new pod, and end it."""
    async with opening(temporal, mindio(), Script(stops=False)) as (world, peer):
        await peer.report_fault(1, 3)
        await peer.until(lambda: peer.state != "trains")
        old = world.cluster.holder(1)
        await world.cluster.ensure_deleted(world.job.id, old.metadata.name, old.metadata.uid, 0)
        await world.cluster.ensure_pods(world.job.id, "1", ())
        await peer.report_stopped()
        found = await opened(world)
        assert fields(peer.received[1])[5] == ["0"]
        assert (found.leaving, ranks(found.announced)) == ((0,), ["0:1", "1:1", "2:1", "3:1"])


async def test_a_cluster_that_does_not_answer_costs_its_limit_and_no_exit_order(temporal: WorkflowEnvironment) -> None:
    """A pod is ordered to exit only if it is known to exist."""
    async with opening(temporal, mindio(look=SHORT), Script(stops=False)) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: peer.state != "trains")
        world.cluster.unreachable = True
        await peer.report_stopped()
        found = await opened(world)
        assert (found.leaving, ranks(found.announced)) == ((), ["2:1", "3:1"])


async def test_a_fault_that_heals_before_the_announcement_is_not_announced(temporal: WorkflowEnvironment) -> None:
    """A node came back: training has stopped, and may repeat its step."""
    async with opening(temporal, mindio(), Script(stops=False)) as (world, peer):
        fault = node_fault("node-1").model_copy(update={"pod_ranks": (1,)})
        await world.fault(fault)
        await peer.until(lambda: peer.state != "trains")
        await healed(world, fault)
        await peer.report_stopped()
        found = await opened(world)
        assert fields(peer.received[1]) == ("globalFault", ["on_global_rank"], ["0:2"], "", 33, [], "")
        assert (found.faulty, "retry" in found.offers) == ((), True)


async def test_a_fault_that_heals_behind_the_announcement_is_told(temporal: WorkflowEnvironment) -> None:
    """The next mode may leave its ranks where they are."""
    async with opening(temporal, mindio(), Script(answers_faults=False)) as (world, peer):
        fault = node_fault("node-1").model_copy(update={"ranks": (3,)})
        await world.fault(fault)
        await peer.until(lambda: peer.state == "knows all faults")
        await healed(world, fault)
        await peer.report_offers()
        found = await opened(world)
        assert (ranks(found.announced), found.healed, found.faulty) == (["2:1", "3:1"], (2, 3), ())
