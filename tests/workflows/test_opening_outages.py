"""The opening of a fault recovery with lost or repeated reports, cut streams, lost managers and pods, and changes of mode."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.job import Job
from rekindle.model.mode import Mode
from rekindle.model.verdict import Training
from tests.fakes.fault_dialogue import ANNOUNCED, STOPPED, TRAINS
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.harness import a_job, node_fault, sub_health
from tests.workflows.support.opening_modes import OpensFirst
from tests.workflows.support.openings import SHORT, fields, mindio, opened, opening, ranks, verdict

LONG = timedelta(seconds=20)


async def _cut_when(peer: ScriptedPeer, state: str) -> None:
    """Cuts the stream of the peer when it is in this state, and attaches it again."""
    await peer.until(lambda: peer.state == state)
    await peer.cut()
    await peer.attach()


async def test_behind_a_lost_report_of_the_stop_mindio_is_told_the_faults(temporal: WorkflowEnvironment) -> None:
    """MindIO never repeats a report, and waits for the next order: after an outage the opening goes on."""
    async with opening(temporal, mindio(), Script(loses={"stop complete"})) as (world, peer):
        await peer.report_fault(3)
        await _cut_when(peer, STOPPED)
        found = await opened(world)
        assert peer.carried_out == ["stop_train", "on_global_rank"]
        assert (found.offers, found.presumed) == (("dump", "recover"), False)


async def test_behind_lost_offers_mindio_is_presumed_to_offer_recover(temporal: WorkflowEnvironment) -> None:
    """MindIO is not asked again, since it would not answer."""
    async with opening(temporal, mindio(), Script(loses={"strategies"})) as (world, peer):
        await peer.report_fault(3)
        await _cut_when(peer, ANNOUNCED)
        found = await opened(world)
        assert peer.carried_out == ["stop_train", "on_global_rank"]
        assert (found.offers, found.presumed, found.answer_by) == (("recover",), True, None)


@pytest.mark.parametrize("state", [TRAINS, STOPPED, ANNOUNCED])
@pytest.mark.parametrize("job", [a_job, lambda: mindio(report_lost=LONG)], ids=["ours", "mindio"])
async def test_a_stream_that_is_cut_costs_no_order_and_no_report(
    temporal: WorkflowEnvironment, job: Callable[[], Job], state: str
) -> None:
    """The stream is cut before the stop, during the wait for it, or during the wait for the offers. Every order is carried out
    once, with one uuid."""
    async with opening(temporal, job(), Script(stops=False, answers_faults=False)) as (world, peer):
        if state == TRAINS:
            await peer.cut()
            await peer.report_fault(3)
            await peer.attach()
        else:
            await peer.report_fault(3)
        await peer.until(lambda: peer.state == STOPPED)
        if state == STOPPED:
            await _cut_when(peer, STOPPED)
        await peer.report_stopped()
        await peer.until(lambda: peer.state == ANNOUNCED)
        if state == ANNOUNCED:
            await _cut_when(peer, ANNOUNCED)
        await peer.report_offers()
        found = await opened(world)
        assert peer.carried_out == ["stop_train", "on_global_rank"]
        assert (found.offers, found.presumed) == (("dump", "recover"), False)
        assert {order.uuid for order in peer.received} == {found.attempt}


@pytest.mark.parametrize("job", [a_job, mindio], ids=["ours", "mindio"])
async def test_repeated_reports_are_one_report(temporal: WorkflowEnvironment, job: Callable[[], Job]) -> None:
    """Reports that arrive three times, each on a new connection, count once, also after the resulting order. Nothing is ordered
    twice, and no report is left."""
    async with opening(temporal, job(), Script(repeats=3)) as (world, peer):
        await peer.report_fault(3)
        found = await verdict(world)
        assert (peer.orders, found.unread) == (["stop_train", "on_global_rank"], ())
        assert set(peer.answers) <= {0, 401}


async def test_the_next_mode_begins_with_what_this_one_learnt(temporal: WorkflowEnvironment) -> None:
    """The next mode repeats no order of the opening. A report that is repeated to it is known."""
    async with opening(temporal, mindio()) as (world, peer):
        await world.fault(sub_health())
        await peer.report_fault(3)
        await peer.until(lambda: peer.state == ANNOUNCED)
        first = await world.running()
        await first.signal(OpensFirst.hand_over)
        second = await verdict(world)
        learnt = (await verdict(world, Mode.HOT_SWITCH)).situation
        assert second.situation
        assert learnt
        assert second.situation == learnt.with_(tried=(Mode.HOT_SWITCH,), answer_by=learnt.answer_by)
        assert (peer.orders, second.phases) == (["stop_train", "on_global_rank"], ())


async def test_a_report_that_is_too_late_for_one_mode_is_read_by_the_next(temporal: WorkflowEnvironment) -> None:
    """The report answers the attempt, which both modes have in common."""
    async with opening(temporal, mindio(offers=SHORT), Script(answers_faults=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.report_fault(3)
        await peer.until(lambda: peer.state == ANNOUNCED)
        first = await world.running()
        while not await first.query(OpensFirst.is_over):
            await asyncio.sleep(0.03)
        await peer.report_offers()
        await first.signal(OpensFirst.hand_over)
        found = await opened(world)
        assert (found.offers, peer.orders) == (("dump", "recover"), ["stop_train", "on_global_rank"])


async def test_the_answers_of_one_attempt_are_not_taken_for_those_of_another(temporal: WorkflowEnvironment) -> None:
    """A retry failed with 405: the faults are announced under a new uuid, as normal ones, and every report comes twice."""
    async with opening(temporal, mindio(), Script(status=405, repeats=2)) as (world, peer):
        await world.fault(sub_health())
        await peer.report_fault(3, kind="0")
        await peer.until(lambda: peer.state == ANNOUNCED)
        first = await world.running()
        await first.signal(OpensFirst.hand_over)
        second = await verdict(world)
        assert peer.carried_out == ["stop_train", "on_global_rank", "retry", "on_global_rank"]
        assert second.situation
        stop, announce, _, again = peer.received
        assert stop.uuid == announce.uuid != again.uuid == second.situation.attempt
        assert fields(again) == ("globalFault", ["on_global_rank", "fault_nodes_exit"], ["2:1", "3:1"], "", 0, ["1"], "")
        assert (second.situation.offers, second.unread) == (("dump", "recover"), ())


@pytest.mark.parametrize("state", [STOPPED, ANNOUNCED])
async def test_with_mindio_the_attempt_ends_with_its_manager(temporal: WorkflowEnvironment, state: str) -> None:
    """The new process does not know the attempt: only a restart is left."""
    script = Script(stops=state != STOPPED, answers_faults=False)
    async with opening(temporal, mindio(), script) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: peer.state == state)
        await peer.restart_manager()
        found = await verdict(world)
        assert "another process is the job's manager" in found.reason
        assert found.training is Training.LOST


async def test_training_that_cannot_be_stopped_is_restarted(temporal: WorkflowEnvironment) -> None:
    """The code 404 says that the processes were not started: nothing is announced."""
    async with opening(temporal, mindio(), Script(stop_code=404)) as (world, peer):
        await peer.report_fault(3)
        found = await verdict(world)
        assert "training cannot be stopped: the training side reports 404 stop ok" in found.reason
        assert (found.training, peer.orders) == (Training.LOST, ["stop_train"])


@pytest.mark.parametrize(("limit", "report"), [("stop", "stop complete"), ("offers", "strategies")])
async def test_a_report_that_never_comes_ends_the_opening(temporal: WorkflowEnvironment, limit: str, report: str) -> None:
    """The opening ends at the limit of the report, which is 15 minutes by default."""
    async with opening(temporal, mindio(**{limit: SHORT}), Script(loses={report})) as (world, peer):
        await peer.report_fault(3)
        found = await verdict(world)
        assert f"no report of {report} within 0.3 s" in found.reason


async def test_a_client_that_does_not_come_back_has_left(temporal: WorkflowEnvironment) -> None:
    """MindIO waits for 30 s. After that no order would be carried out, and nothing is waited for."""
    job = mindio(look=SHORT, next_order=timedelta(seconds=0.5))
    async with opening(temporal, job, Script(stops=False)) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: peer.state == STOPPED)
        await peer.cut()
        assert "its stream does not come back" in (await verdict(world)).reason


async def test_nobody_is_waited_for_when_every_pod_is_lost(temporal: WorkflowEnvironment) -> None:
    """The wait for the report ends with the last pod."""
    async with opening(temporal, a_job(annotations={}), Script(stops=False)) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: peer.state == STOPPED)
        for number in (0, 1):
            await world.fault(node_fault(f"node-{number}", f"n{number}").model_copy(update={"pod_ranks": (number,)}))
        assert "every pod is lost" in (await verdict(world)).reason


async def test_an_order_that_cannot_be_delivered_ends_the_opening(temporal: WorkflowEnvironment) -> None:
    """The limit of the order is the patience of the training side."""
    async with opening(temporal, mindio(order=SHORT)) as (world, peer):
        await peer.cut()
        await peer.report_fault(3)
        assert "the order `stop_train` could not be delivered in time" in (await verdict(world)).reason


async def test_a_strict_client_leaves_when_an_order_comes_too_late(temporal: WorkflowEnvironment) -> None:
    """The scripted client is as strict as the real one: settling longer than its patience loses it."""
    job, script = mindio(release=timedelta(seconds=1), order=timedelta(seconds=3)), Script(patience=0.2)
    async with opening(temporal, job, script, leaves=True) as (world, peer):
        await peer.report_fault(3)
        await peer.until(lambda: bool(peer.exited))
        assert peer.exited == "no order after the report that training has stopped"
        assert ranks((await verdict(world)).situation.faulty) == ["3:1"]  # type: ignore[union-attr]
