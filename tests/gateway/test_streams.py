"""The stream of a job: keep-alives, take-overs, cuts, order by order, and the gateway's own end."""

import asyncio
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from temporalio.testing import WorkflowEnvironment

from rekindle.errors import NotAttached, Unavailable
from rekindle.model.dialogue import Order
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.dialogue import orders
from rekindle.settings import Settings
from rekindle_wire import recover_pb2 as wire
from tests.fakes.peer import Script, ScriptedPeer
from tests.support.elsewhere import Elsewhere
from tests.support.harness import Harness, a_job, harness, sub_health, training
from tests.support.sampling import ALL
from workers.gateway import server
from workers.gateway import streams as gateway_streams
from workers.gateway.access import Context, Desk
from workers.gateway.secondary_streams import Side, SideStreams
from workers.gateway.server import Gateway
from workers.gateway.streams import GAP, KEEP_ALIVE, Stream, Streams

RECOVERY = "recovery/of-the-test"
"""Workflow id of who gives the orders, where no workflow does."""


async def test_keep_alives_carry_the_current_uuid(temporal: WorkflowEnvironment) -> None:
    """The uuid is empty before the first order and afterwards that of the attempt. The period is a setting of the gateway."""
    assert KEEP_ALIVE == 5.0
    async with harness(temporal, a_job(), keep_alive=0.05) as world, world.peer(Script(pauses=False)) as peer:
        await peer.until(lambda: len(peer.keep_alives) >= 2)
        assert set(peer.keep_alives) == {""}
        await world.first_step()
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        count = len(peer.keep_alives)
        await peer.until(lambda: len(peer.keep_alives) > count + 1)
        assert peer.keep_alives[-1] == peer.received[-1].uuid != ""


async def test_two_orders_are_never_closer_than_the_gap() -> None:
    """Orders that are given in the same moment leave one by one: the client's loop would lose the first."""
    streams, writer = Streams(limit=1), _Writer()
    stream = streams.open("job", "session")
    assert stream
    serving = asyncio.create_task(stream.serve(writer))
    await asyncio.gather(*(streams.deliver(orders.migrate("job", f"uuid-{number}"), RECOVERY) for number in range(3)))
    stream.end("the test is over")
    await serving
    assert [signal.uuid for signal in writer.written] == ["uuid-0", "uuid-1", "uuid-2"]
    assert all(later - earlier >= GAP * 0.95 for earlier, later in zip(writer.at, writer.at[1:], strict=False))


async def test_the_order_of_a_receipt_is_not_written_behind_one_of_a_newer_attempt() -> None:
    """The receipt is late, and the next mode has begun. One for another subscription is not written either."""
    streams, writer = Streams(limit=1), _Writer()
    stream = streams.open("job", "session")
    assert stream
    serving = asyncio.create_task(stream.serve(writer))
    older, newer = (orders.attempt(moment, 7) for moment in (1, 2))

    def of_a_receipt(uuid: str, session: str) -> Order:
        return orders.migrate("job", uuid).model_copy(update={"session": session, "at_once": True})

    stream.take_if_its_own(of_a_receipt(older, "session"), RECOVERY)
    await streams.deliver(orders.stop_train("job", newer, ()), "the next mode")
    stream.take_if_its_own(of_a_receipt(older, "session"), RECOVERY)
    stream.take_if_its_own(of_a_receipt(newer, "another"), RECOVERY)
    await streams.deliver(orders.continue_train("job", newer), "the next mode")
    stream.end("the test is over")
    await serving
    assert [signal.uuid for signal in writer.written] == [older, newer, newer]
    assert stream.recovery == "the next mode"


async def test_a_client_that_reads_orders_as_they_come_is_sent_them_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client such as our own manager receives orders at once, since training stands meanwhile."""
    monkeypatch.setattr(gateway_streams, "GAP", 3600)
    streams, writer = Streams(limit=1), _Writer()
    stream = streams.open("job", "session")
    assert stream
    serving = asyncio.create_task(stream.serve(writer))
    for number in range(3):
        order = orders.migrate("job", f"uuid-{number}").model_copy(update={"at_once": True})
        await streams.deliver(order, RECOVERY)
    stream.end("the test is over")
    await serving
    assert len(writer.written) == 3


async def test_what_nobody_waits_for_any_more_is_not_written_on_a_side_stream() -> None:
    """A message whose sender no longer waits is not written to a client that reads slowly. Ranks would switch links for a pause
    that is over."""
    streams, slow = SideStreams(Desk(None)), _SlowContext()
    holding = asyncio.create_task(streams.hold(cast(Context, slow), "job", Side.LINKS))
    await slow.begun.wait()
    first = asyncio.create_task(streams.deliver("job", Side.LINKS, wire.SwitchRankList(jobId="job", rankID=["0"])))
    await slow.writes.wait()
    late = asyncio.create_task(streams.deliver("job", Side.LINKS, wire.SwitchRankList(jobId="job", rankID=["1"])))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    slow.reads.set()
    await first
    await streams.deliver("job", Side.LINKS, wire.SwitchRankList(jobId="job", rankID=["2"]))
    assert [list(message.rankID) for message in slow.written] == [["0"], ["2"]]
    streams.end_all("the test is over")
    await holding


class _SlowContext:
    """Context of a client that reads when the test lets it."""

    def __init__(self) -> None:
        self.begun, self.writes, self.reads = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.written: list[wire.SwitchRankList] = []

    async def send_initial_metadata(self, _: tuple[()]) -> None:
        self.begun.set()

    async def write(self, message: wire.SwitchRankList) -> None:
        self.writes.set()
        await self.reads.wait()
        self.written.append(message)

    async def abort(self, *_: object) -> None:
        """The stream has ended."""


class _Writer:
    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.written: list[wire.ProcessManageSignal] = []
        self.at: list[float] = []

    async def write(self, message: wire.ProcessManageSignal) -> None:
        if self.broken:
            raise ConnectionError("broken pipe")
        self.written.append(message)
        self.at.append(asyncio.get_running_loop().time())


async def test_an_order_on_a_broken_stream_is_refused_and_may_be_tried_again() -> None:
    """Deliveries that wait for the stream fail at once, and not only the first one."""
    streams = Streams(limit=1)
    stream = streams.open("job", "session")
    assert stream
    waiting = [asyncio.create_task(streams.deliver(orders.migrate("job", "u"), RECOVERY)) for _ in range(2)]
    with pytest.raises(ConnectionError):
        await stream.serve(_Writer(broken=True))
    for refused in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(refused, NotAttached)
        assert refused.retryable


async def test_an_order_for_a_job_that_is_not_here_is_refused_and_may_be_tried_again() -> None:
    """Neither an unknown job nor one whose stream was ended takes an order; its client is let in first when it comes."""
    streams = Streams(limit=1)
    with pytest.raises(NotAttached):
        await streams.deliver(orders.migrate("job", "u"), RECOVERY)
    assert [*streams.wanted] == ["job"]
    stream = streams.open("job", "session")
    assert stream
    stream.end("over")
    with pytest.raises(NotAttached):
        await streams.deliver(orders.migrate("job", "u"), RECOVERY)


async def test_jobs_whose_streams_never_come_are_forgotten() -> None:
    """A gateway is not told that such a job has ended. The latest are kept, each once."""
    streams = Streams(limit=1)
    for number in (*range(gateway_streams.MOST_WANTED), 0, gateway_streams.MOST_WANTED):
        with pytest.raises(NotAttached):
            await streams.deliver(orders.migrate(f"job-{number}", "u"), RECOVERY)
    assert len(streams.wanted) == gateway_streams.MOST_WANTED
    assert "job-1" not in streams.wanted
    assert [*streams.wanted][-2:] == ["job-0", f"job-{gateway_streams.MOST_WANTED}"]


async def test_an_order_for_a_subscription_is_not_written_on_the_one_that_follows_it() -> None:
    """An order for an older subscription is refused: a client that subscribes again receives all orders in turn."""
    streams = Streams(limit=1)
    assert streams.open("job", "newer")
    with pytest.raises(NotAttached, match="subscribed again"):
        await streams.deliver(orders.migrate("job", "u").model_copy(update={"session": "older"}), RECOVERY)


def test_a_gateway_that_is_full_takes_no_further_job() -> None:
    """A job that is here already may come back."""
    streams = Streams(limit=1)
    first = streams.open("job", "one")
    assert isinstance(first, Stream)
    assert streams.open("another", "two") is None
    assert streams.open("job", "three") is not None
    assert first.ended == "another subscriber took over"


async def test_a_second_subscriber_takes_over_at_the_same_gateway(temporal: WorkflowEnvironment) -> None:
    """The first stream is ended with a reason, and orders go to the second only."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, first):
        second = world.peer()
        first.comes_back = False
        async with second:
            await first.until(lambda: bool(first.ended))
            assert first.ended == ["ABORTED: another subscriber took over"]
            await world.fault(sub_health())
            assert (await world.incident()).verdict is Outcome.RECOVERED
            assert first.orders == []
            assert second.carried_out == ["hot switch", "new pod running", "migration"]


async def test_a_second_subscriber_takes_over_at_another_gateway(temporal: WorkflowEnvironment) -> None:
    """The gateway that held the first stream is notified, and ends it with a reason."""
    async with harness(temporal, a_job(), gateways=2) as world, world.peer() as first:
        first.comes_back = False
        async with world.peer(at=1) as second:
            await first.until(lambda: bool(first.ended))
            assert first.ended == ["ABORTED: another subscriber took over"]
            await world.first_step()
            await world.fault(sub_health())
            assert (await world.incident()).verdict is Outcome.RECOVERED
            assert (first.orders, second.carried_out) == ([], ["hot switch", "new pod running", "migration"])


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same gateway", "another gateway"])
@pytest.mark.parametrize("order", ["hot switch", "new pod running"])
async def test_a_stream_that_comes_back_gets_the_last_order_again(
    temporal: WorkflowEnvironment, order: str, *, elsewhere: bool
) -> None:
    """The order has the same uuid and is carried out once. The recovery goes on as if nothing had happened."""
    job = a_job()
    async with harness(temporal, job, gateways=2) as world, world.peer(Script(pauses=False)) as peer:
        world.cluster.backup_starts = order != "hot switch"
        await world.first_step()
        await world.fault(sub_health())
        await world.phase("backup pod runs" if order == "hot switch" else "backup loads, training pauses")
        await peer.until(lambda: order in peer.orders)
        await peer.cut()
        peer.address = world.gateways[int(elsewhere)].address
        await peer.attach()
        await peer.until(lambda: peer.orders.count(order) == 2)
        peer.script.pauses = order == "hot switch"
        if order == "hot switch":
            world.cluster.run(world.cluster.backup().metadata.name)
        else:
            await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]
        assert len({signal.uuid for signal in peer.received}) == 1
        assert not peer.exited


async def test_an_order_that_was_written_and_never_arrived_is_given_again(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection froze, which its client does not notice. The gateway closes it, and the client comes back."""
    quick = {name: value // 10 if "keepalive_time" in name or "ping_timeout" in name else value for name, value in server.OPTIONS}
    monkeypatch.setattr(server, "OPTIONS", tuple(quick.items()))
    async with harness(temporal, a_job()) as world:
        network = Elsewhere(world.gateway.address)
        async with ScriptedPeer(await network.start(), world.job.id) as peer:
            world.cluster.backup_starts = False
            await world.first_step()
            network.freeze()
            await world.fault(sub_health())
            await world.phase("backup pod runs")
            assert peer.received == []
            await peer.until(lambda: peer.orders == ["hot switch"])
            world.cluster.run(world.cluster.backup().metadata.name)
            assert (await world.incident()).verdict is Outcome.RECOVERED
            assert peer.carried_out == ["hot switch", "new pod running", "migration"]
            assert len({order.uuid for order in peer.received}) == 1
        await network.stop()


@pytest.mark.parametrize("seconds", [0.1, 3.0, *([15.0] if ALL else [])])
@pytest.mark.same_path("a stream is cut in the middle of a pause")
async def test_a_cut_in_the_middle_of_a_pause_is_survived(temporal: WorkflowEnvironment, seconds: float) -> None:
    """The stream is away while `migration` is due: the order leaves when it is back, before training loses its patience."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await peer.cut()
        await world.settled(lambda status: status.state.attachment is None)
        await peer.pause()
        back = asyncio.get_running_loop().call_later(seconds, peer.start)
        await peer.until(lambda: "migration" in peer.carried_out)
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert back.cancelled() is False
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_a_gateway_that_stops_sends_its_clients_away(temporal: WorkflowEnvironment) -> None:
    """Streams end with a reason, the job is detached, and the recovery goes on at another gateway."""
    async with harness(temporal, a_job(), gateways=2) as world, world.peer(Script(pauses=False)) as peer:
        await world.first_step()
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        peer.address = world.gateways[1].address
        await world.gateways[0].stop()
        await peer.until(lambda: bool(peer.ended))
        assert peer.ended[0] == "ABORTED: the gateway shuts down"
        await peer.until(lambda: peer.orders.count("new pod running") == 2)
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_a_gateway_that_stops_finishes_the_calls_in_flight(temporal: WorkflowEnvironment) -> None:
    """A report that is being stored when the gateway stops is stored, and answered."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.control.stop()
        report = asyncio.create_task(peer.report_strategies(("migration",)))
        await _in_flight(world)
        stopping = asyncio.create_task(world.gateway.stop())
        await world.control.start()
        assert await report == 0
        await stopping
        await world.gateway.start()


async def _in_flight(world: Harness) -> None:
    """Waits until the gateway holds a message that no workflow has taken."""
    async with asyncio.timeout(60):
        while not world.gateway.storing:
            await asyncio.sleep(0.01)


async def test_a_report_is_stored_before_it_is_acknowledged(temporal: WorkflowEnvironment) -> None:
    """A report waits while no control worker runs. When one is back the report is taken once and answered."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.control.stop()
        pausing = asyncio.create_task(peer.pause())
        await _in_flight(world)
        assert not pausing.done()
        assert peer.answers == []
        await world.control.start()
        await pausing
        assert peer.answers[0] == 0
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_a_report_whose_sender_hung_up_is_stored_all_the_same(temporal: WorkflowEnvironment) -> None:
    """A client never repeats a report that it sent: the gateway finishes what it began."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.control.stop()
        pausing = asyncio.create_task(peer.pause())
        await _in_flight(world)
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)
        await world.control.start()
        assert (await world.incident()).verdict is Outcome.RECOVERED


async def test_a_repetition_after_a_lost_answer_is_taken_once(temporal: WorkflowEnvironment) -> None:
    """A gateway that dies between receipt and acknowledgement is helped by the client's repetition at the next one."""
    async with harness(temporal, a_job(), gateways=2) as world, world.peer(Script(pauses=False)) as peer:
        await world.first_step()
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.control.stop()
        first = asyncio.create_task(peer.pause())
        await _in_flight(world)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        peer.address = world.gateways[1].address
        again = asyncio.create_task(peer.report_strategies(("migration",)))
        await world.control.start()
        assert await again in (0, 401)
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert peer.carried_out.count("migration") == 1


@pytest.mark.parametrize("repeats", [2, 4])
async def test_repeated_reports_are_consumed_once(temporal: WorkflowEnvironment, repeats: int) -> None:
    """The real client may send a report four times, each on a new connection: every one is answered, one counts."""
    async with training(temporal, a_job(), Script(repeats=repeats)) as (world, peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        await peer.until(lambda: len(peer.answers) == 2 * repeats)
        assert set(peer.answers) <= {0, 401}
        assert peer.carried_out == ["hot switch", "new pod running", "migration"]


async def test_a_gateway_that_returns_under_its_name_goes_on(temporal: WorkflowEnvironment) -> None:
    """The gateway has its old queue, and its client comes back by itself: the order that was due is delivered."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.gateway.stop()
        await world.gateway.start()
        await peer.until(lambda: peer.orders.count("new pod running") == 2)
        await peer.pause()
        assert (await world.incident()).verdict is Outcome.RECOVERED
        assert (await world.status()).running is not Mode.HOT_SWITCH


async def test_health_and_reflection_are_served(temporal: WorkflowEnvironment) -> None:
    """A probe and grpcurl work against a running gateway."""
    async with harness(temporal, a_job()) as world, grpc.aio.insecure_channel(world.gateway.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        listed = {service.name async for reply in call for service in reply.list_services_response.service}
        assert {"Recover", "PubFault", "rekindle.training.v1.Progress"} <= listed


async def test_a_port_that_is_taken_is_an_error_that_names_it(temporal: WorkflowEnvironment) -> None:
    """Two gateways never share a port by accident."""
    async with harness(temporal, a_job()) as world:
        port = int(world.gateway.address.rsplit(":", 1)[1])
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port} \(POD_IP, REKINDLE_GATEWAY_PORT\)"):
            await Gateway(world.client, Settings(gateway_port=port, gateway_instance="another")).start()


def test_an_order_is_the_contracts_message_field_by_field() -> None:
    """All nine fields of ProcessManageSignal are filled from an order."""
    from rekindle.model.dialogue import FaultRank
    from workers.gateway.messages import signal_of

    order = Order(
        job_id="job", uuid="u", signal_type="globalFault", actions=("on_global_rank",), fault_ranks=(FaultRank(rank=3),),
        change_strategy="recover", timeout=33, node_rank_ids=(1, 2), extra_params="recover-in-place",
    )  # fmt: skip
    assert signal_of(order) == wire.ProcessManageSignal(
        uuid="u", jobId="job", signalType="globalFault", actions=["on_global_rank"],
        faultRanks=[wire.FaultRank(rankId="3", faultType="1")],
        changeStrategy="recover", timeout=33, nodeRankIds=["1", "2"], extraParams="recover-in-place",
    )  # fmt: skip
