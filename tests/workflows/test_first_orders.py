"""The first order of a recovery in the receipt of its faults: who gets it, and what becomes of one that is lost on its way."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.ids import Updates
from rekindle.model.dialogue import Order
from rekindle.model.fault import TRAINING_SIDE, Fault, FaultKind, FaultReport
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.keys import RECOVER_STRATEGY
from rekindle.model.mode import Mode, Outcome
from tests.fakes.peer import Script
from tests.support.harness import NOW, Harness, a_job, a_mindio_job, pod_fault, training
from tests.workflows.support.openings import fields
from workers.gateway.streams import Stream

IN_PLACE, RETRY, RECOVERED = Mode.IN_PLACE, Mode.ONLINE_RETRY, Outcome.RECOVERED
SOON = timedelta(seconds=2)


def ours() -> Job:
    """Job whose owner allows everything."""
    return a_job(annotations={})


def ladder(incident: Incident) -> list[tuple[Mode, Outcome]]:
    return [(verdict.mode, verdict.outcome) for verdict in incident.ladder]


async def orders_given(world: Harness) -> int:
    """Times that the recovery gave an order by itself."""
    events = (await world.recovery.fetch_history()).events
    names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
    return names.count("deliver_order")


async def told(world: Harness, **changes: object) -> Order | None:
    """Reports a fault of rank 3 as the gateway with the job's stream does. Returns the order that the receipt contains."""
    here = (await world.status()).state.attachment
    assert here
    fault = Fault(id="f", kind=FaultKind.PROCESS, ranks=(3,), seen_at=NOW, source=TRAINING_SIDE, session=here.session)
    report = FaultReport(faults=(fault,), takes_order=True).model_copy(update=changes)
    return (await world.tell(Updates.REPORT_FAULTS, report)).order


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """Orders of receipts, each of which is lost with its gateway."""
    orders: list[Order] = []
    monkeypatch.setattr(Stream, "take_if_its_own", lambda _, order, __: orders.append(order))
    return orders


@pytest.mark.parametrize(("kind", "mode", "order"), [("1", IN_PLACE, "recover"), ("0", RETRY, "retry")])
async def test_the_receipt_of_a_fault_brings_its_first_order(
    temporal: WorkflowEnvironment, kind: str, mode: Mode, order: str
) -> None:
    """The gateway writes the order at once, and the recovery gives none of its own."""
    async with training(temporal, ours()) as (world, peer):
        await peer.report_fault(3, kind=kind)
        assert ladder(await world.incident()) == [(mode, RECOVERED)]
        assert [fields(one)[2:4] for one in peer.received] == [([f"3:{kind}"], order)]
        assert await orders_given(world) == 0


async def test_an_order_that_is_lost_with_its_receipt_is_given_two_seconds_later(
    temporal: WorkflowEnvironment, lost: list[Order]
) -> None:
    """The uuid is the same, so that our manager carries it out once."""
    async with training(temporal, ours()) as (world, peer):
        await peer.report_fault(3)
        await world.running()
        await peer.until(lambda: bool(lost))
        await world.skip(SOON)
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
        assert [one.uuid for one in peer.received] == [lost[0].uuid]
        assert await orders_given(world) == 1


async def test_an_order_that_is_late_is_carried_out_once(temporal: WorkflowEnvironment) -> None:
    """A repair that takes longer than two seconds receives the order twice."""
    goes_on = asyncio.Event()

    async def takes_long(_: str) -> None:
        await goes_on.wait()

    async with training(temporal, ours(), Script(before_status=takes_long)) as (world, peer):
        await peer.report_fault(3)
        await world.running()
        await world.skip(SOON)
        await peer.until(lambda: len(peer.received) == 2)
        goes_on.set()
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
        assert peer.carried_out == ["recover"]


async def test_another_stream_is_told_at_once(temporal: WorkflowEnvironment, lost: list[Order]) -> None:
    """The gateway died with the order, and the client subscribes at another one."""
    async with training(temporal, ours()) as (world, peer):
        await peer.report_fault(3)
        await world.running()
        await peer.until(lambda: bool(lost))
        await peer.cut()
        await peer.attach()
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
        assert peer.received[-1].uuid == lost[0].uuid


async def test_two_reports_at_once_are_one_recovery(temporal: WorkflowEnvironment) -> None:
    """The training side's report that it goes on ends both, whichever fault began the recovery."""
    async with training(temporal, ours()) as (world, peer):
        await asyncio.gather(peer.report_fault(3), peer.report_fault(0))
        await world.settled(lambda status: not status.state.faults and not status.running)
        assert all(one.verdict is RECOVERED for one in (await world.status()).state.history)
        assert peer.state == "trains"


async def test_a_recovery_that_is_cancelled_behind_its_receipt_goes_to_its_end(
    temporal: WorkflowEnvironment, lost: list[Order]
) -> None:
    """The order may be on its way: training would stand."""
    async with training(temporal, ours()) as (world, peer):
        await peer.report_fault(3)
        await (await world.running()).cancel()
        await world.skip(SOON)
        assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
        assert peer.state == "trains"
        assert lost


def elsewhere() -> Job:
    return a_job(annotations={RECOVER_STRATEGY: "recover"})


def mindio() -> Job:
    return a_mindio_job(annotations={RECOVER_STRATEGY: "recover-in-place"})


@pytest.mark.parametrize("job", [elsewhere, mindio])
async def test_a_mode_that_asks_first_gives_its_own_orders(temporal: WorkflowEnvironment, job: Callable[[], Job]) -> None:
    """The first order follows from more than the faults."""
    async with training(temporal, job()) as (world, peer):
        assert await told(world) is None
        await peer.until(lambda: bool(peer.received))
        await world.running()
        assert await orders_given(world) >= 1


async def test_only_who_holds_the_stream_gets_the_order(temporal: WorkflowEnvironment) -> None:
    """An older gateway, which writes no orders, and one that the client has left receive none."""
    of_another = Fault(id="f", kind=FaultKind.PROCESS, ranks=(3,), source="test", session="former")
    for changes in ({"takes_order": False}, {"faults": (of_another,)}):
        async with training(temporal, ours()) as (world, peer):
            assert await told(world, **changes) is None
            assert ladder(await world.incident()) == [(IN_PLACE, RECOVERED)]
            assert await orders_given(world) == 1
            assert peer.carried_out == ["recover"]


async def test_a_fault_in_a_recovery_has_no_order_of_its_own(temporal: WorkflowEnvironment, lost: list[Order]) -> None:
    """The running mode decides about the fault."""
    async with training(temporal, ours()) as (world, peer):
        await peer.report_fault(3)
        await world.running()
        assert await told(world) is None
        await world.skip(SOON)
        assert (await world.incident()).verdict is RECOVERED
        assert len(lost) == 1


async def test_a_rank_without_a_pod_is_not_told_to_start_again(temporal: WorkflowEnvironment) -> None:
    """The pod is known to be lost when the manager reports the process."""
    async with training(temporal, ours()) as (world, peer):
        gone = pod_fault("gpt-worker-1", "uid-1").model_copy(update={"pod_ranks": (1,), "ranks": (3,)})
        here = (await world.status()).state.attachment
        assert here
        process = Fault(id="f", kind=FaultKind.PROCESS, ranks=(3,), source=TRAINING_SIDE, session=here.session)
        report = FaultReport(faults=(process, gone), takes_order=True)
        assert (await world.tell(Updates.REPORT_FAULTS, report)).order is None
        assert peer.received == []
