"""The pause of a maintenance, with real processes and a scripted gateway: training stands, and goes on as if nothing had been."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from rekindle_training.manager import procedures
from rekindle_training.manager.maintenance import Maintenance
from rekindle_training.manager.reports import Reports
from rekindle_wire.recover_pb2 import SwitchResult
from rekindle_wire.training_pb2 import Held, ManagerMessage, Paused, RankMessage, Stepped
from tests.training.dialogue import fault, kill_rank, offers, status
from tests.training.gateway_service import GatewayPeer
from tests.training.job import WORLD, Job
from tests.training.ranks import ScriptedRank


async def stopped(gateway: GatewayPeer, number: int = 1) -> tuple[int, str]:
    """Returns code and text of the answer to the order to pause."""
    report = await gateway.report("ReportStopComplete", number)
    return report.status.code, report.status.info


async def paused(job: Job, gateway: GatewayPeer) -> int:
    """Pauses a new job somewhere in training, and returns the step after which it stands."""
    job.slow_down()
    await job.start()
    await job.reached(2)
    await gateway.pause()
    code, words = await stopped(gateway)
    assert code == 0
    return int(words.removeprefix("training stands after step "))


async def replaced_manager(job: Job, gateway: GatewayPeer) -> None:
    subscriptions = gateway.subscriptions
    job.started["manager"].kill()
    await job.started["manager"].code()
    await job.manager()
    await gateway.until(lambda: gateway.subscriptions > subscriptions)


async def test_a_paused_job_ends_as_if_nothing_had_happened(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """Ranks stand at one boundary, in the group that they have, and none does a step before the order to go on."""
    step = await paused(job, gateway)
    assert [job.steps(rank)[-1]["step"] for rank in range(WORLD)] == [step] * WORLD
    await gateway.go_on()
    assert await status(gateway) == ("continue", 0, f"training goes on after step {step}")
    assert gateway.metadata["ReportRecoverStatus"] == [{"rekindle-attempt": "attempt-1"}]
    assert await job.codes() == {0}
    assert job.final() == reference
    assert job.executed_once()
    assert {step["generation"] for step in job.steps(0)} == {1}
    print(f"pause {job.pause_seconds():.3f} s")


async def test_training_goes_on_by_itself_where_no_order_comes(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """An order that comes later is answered: nothing is paused any more, and training goes on."""
    job.environment["REKINDLE_ORDER_TIMEOUT"] = "1"
    await paused(job, gateway)
    await job.printed("maintenance ended reason=no order came within 1 s")
    await gateway.pause()
    assert await stopped(gateway, 2) == (406, "no order came within 1 s")
    await gateway.go_on()
    assert await status(gateway) == ("continue", 0, "training goes on: no order came within 1 s")
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_a_rank_that_dies_in_the_pause_is_a_fault(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """The fault is reported at once, the order to go on is answered with 406, and the rank is replaced in its pod."""
    await paused(job, gateway)
    kill_rank(job, 2)
    assert await fault(gateway) == {"2": "1"}
    await gateway.go_on()
    assert await status(gateway) == ("continue", 406, "a fault is being recovered: rank 2 died")
    await gateway.stop_train("attempt-2")
    await gateway.announce(2, uuid="attempt-2")
    assert await offers(gateway) == ["recover", "dump", "exit"]
    await gateway.in_place(2, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    await gateway.go_on()
    assert (await status(gateway, 3))[:2] == ("continue", 406)
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_an_order_to_stop_ends_the_pause(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A recovery follows, as of any job that trains."""
    await paused(job, gateway)
    await gateway.stop_train("attempt-2")
    assert (await stopped(gateway, 2))[0] == 0
    await gateway.retry("attempt-2")
    assert (await status(gateway))[:2] == ("retry", 0)
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_a_hot_switch_that_is_ordered_in_the_pause_ends_it(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """The switch is prepared while training goes on. An order to migrate is no order of a maintenance."""
    await paused(job, gateway)
    await gateway.migrate("attempt-2")
    assert await status(gateway) == ("migration", 406, "training is paused for a maintenance")
    await gateway.hot_switch(2, 3, uuid="attempt-3")
    await gateway.go_on()
    assert await status(gateway, 2) == ("continue", 0, "training goes on: a hot switch was ordered")
    await gateway.order("hot-switch", "stop switch", uuid="attempt-3")
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_another_maintenance_may_follow_in_the_same_pause(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A second maintenance may start when the first is away. Training goes on with the order of the second, and the first is
    informed."""
    await paused(job, gateway)
    await gateway.pause("attempt-2")
    assert (await stopped(gateway, 2))[0] == 0
    await gateway.go_on("attempt-2")
    assert (await status(gateway))[:2] == ("continue", 0)
    await gateway.go_on("attempt-1")
    assert await status(gateway, 2) == ("continue", 0, "training goes on: another maintenance has followed")
    assert await job.codes() == {0}
    assert job.final() == reference


@pytest.mark.parametrize("told_again", [True, False], ids=["the whole attempt", "the order to go on"])
async def test_a_manager_that_dies_in_the_pause_is_followed_by_one_that_lets_training_go_on(
    told_again: bool, job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """Ranks report the attempt for which they stand, whether the order to pause is sent again or not."""
    step = await paused(job, gateway)
    await replaced_manager(job, gateway)
    if told_again:
        await gateway.pause()
        assert await stopped(gateway, 2) == (0, f"training stands after step {step}")
    await gateway.go_on()
    assert await status(gateway) == ("continue", 0, f"training goes on after step {step}")
    assert gateway.metadata["ReportRecoverStatus"] == [{"rekindle-attempt": "attempt-1"}]
    assert await job.codes() == {0, -9}
    assert job.final() == reference
    assert job.executed_once()
    assert not gateway.all("ReportRecoverStrategy")


@pytest.mark.parametrize("order", ["stopTrain", "changeStrategy"], ids=["to pause", "to go on"])
async def test_a_manager_that_dies_with_an_order_is_followed_by_one_that_carries_it_out(
    order: str, job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """Ranks that are held, or on their way, are reached in whatever they do."""
    job.slow_down(1000)
    await job.start()
    await gateway.report("ReportProgress")
    await gateway.pause()
    if order == "changeStrategy":
        await gateway.report("ReportStopComplete")
        await gateway.go_on()
    await job.printed(f"order={order}")
    await replaced_manager(job, gateway)
    if order == "stopTrain":
        await gateway.pause()
        assert (await stopped(gateway))[0] == 0
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 0)
    assert await job.codes() == {0, -9}
    assert job.final() == reference


async def test_a_manager_that_nobody_tells_anything_ends_the_pause_of_the_one_before(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The pause ends by itself. An order to go on that comes late finds nothing to do, or a pause that it ends where it comes
    before the ranks."""
    await paused(job, gateway)
    job.environment["REKINDLE_ORDER_TIMEOUT"] = "1"  # of the managers that follow, so that this one does not end it first
    await replaced_manager(job, gateway)
    await job.printed("maintenance ended")
    await replaced_manager(job, gateway)
    await gateway.go_on()
    strategy, code, words = await status(gateway)
    assert (strategy, code) == ("continue", 0)
    assert words.startswith("training goes on")
    assert await job.codes() == {0, -9}
    assert job.final() == reference


async def test_a_rank_that_dies_with_the_manager_in_the_pause_is_a_fault(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The manager that follows meets the others paused, and takes no pause up that has lost a rank."""
    await paused(job, gateway)
    job.started["manager"].kill()
    kill_rank(job, 0)
    await job.started["manager"].code()
    await job.manager()
    assert await fault(gateway) == {"0": "1"}
    await gateway.go_on()
    assert (await status(gateway))[:2] == ("continue", 406)
    await gateway.stop_train("attempt-2")
    await gateway.in_place(0, uuid="attempt-2")
    assert (await status(gateway, 2))[:2] == ("recover", 0)
    assert await job.codes() == {0, -9}
    assert job.final() == reference


async def test_a_pause_is_refused_in_a_hot_switch_and_in_a_recovery(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """An operation that is under way goes on. A repeated order to pause is answered in the same way."""
    job.slow_down()
    await job.start()
    await job.reached(2)
    await gateway.hot_switch(2, 3)
    for number in (1, 2):
        await gateway.pause("attempt-2")
        assert await stopped(gateway, number) == (406, "a hot switch is under way")
    kill_rank(job, 0)
    await fault(gateway)
    await gateway.pause("attempt-3")
    assert await stopped(gateway, 3) == (406, "a fault is being recovered")
    await gateway.stop_train("attempt-4")
    await gateway.in_place(0, uuid="attempt-4")
    assert (await status(gateway))[:2] == ("recover", 0)
    await gateway.order("hot-switch", "stop switch", uuid="attempt-5")
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_a_pause_is_refused_before_the_first_step_and_with_the_last(job: Job, gateway: GatewayPeer) -> None:
    """There is no step boundary at which ranks could stop and continue. No rank is held."""
    job.environment["LIMITS"] = "manager.coordinator.FIRST_SECONDS=0.1"
    await job.manager()
    await gateway.pause("attempt-0")
    assert await stopped(gateway) == (406, "not all ranks are there")

    def answer(message: ManagerMessage) -> RankMessage | None:
        return RankMessage(held=Held(step=3, total=3)) if message.HasField("hold") else None

    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        ranks = [ScriptedRank(channel, rank, "worker", answer, stays=True) for rank in range(WORLD)]
        await job.printed("rebuild started generation=1")
        await gateway.pause()
        assert await stopped(gateway, 2) == (406, "no step is completed yet")
        for rank in ranks:
            rank.say(RankMessage(generation=1, stepped=Stepped(step=1)))
        await gateway.report("ReportProgress")
        await gateway.pause("attempt-2")
        assert await stopped(gateway, 3) == (406, "training ends with step 3")
        await asyncio.gather(*(rank.finish() for rank in ranks))
        assert await job.started["manager"].code() == 0
    assert [rank.told for rank in ranks] == [["rebuild", "hold", "resume"]] * WORLD


async def test_a_rank_that_dies_on_the_way_to_the_pause_has_it_answered_behind_the_fault(job: Job, gateway: GatewayPeer) -> None:
    """The control plane knows the fault when it receives that training could not be paused. The same holds for the order to go
    on."""
    await job.manager()
    holds = {rank: rank != 3 for rank in range(WORLD)}

    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:

        def answering(rank: int) -> ScriptedRank:
            def answer(message: ManagerMessage) -> RankMessage | None:
                if message.HasField("hold"):
                    return RankMessage(held=Held(step=1, total=9)) if holds[rank] else None
                return RankMessage(paused=Paused(step=1)) if message.HasField("pause_at") else None

            return ScriptedRank(channel, rank, "worker", answer)

        ranks = [answering(rank) for rank in range(WORLD)]
        await gateway.report("ReportProgress")
        await gateway.pause()
        await job.printed("order=stopTrain")
        ranks[3].end()
        assert await fault(gateway) == {"3": "1"}
        assert await stopped(gateway) == (406, "rank 3 died")
        assert [name for name, _ in gateway.heard][-2:] == ["ReportProcessFault", "ReportStopComplete"]
        for rank in ranks:
            rank.end()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"vacant": frozenset({3})}, "rank 3 is gone"),
        ({"standing": SimpleNamespace(rank=2)}, "rank 2 stands and waits for another group"),
    ],
)
async def test_who_is_lost_in_a_task_that_had_no_need_of_it_any_more_is_a_fault_behind_it(
    what: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task has ended well, and is answered so; then training stands, and has to be recovered."""
    membership = SimpleNamespace(generation=1, torn=False, training=True, members={}, vacant=frozenset(), standing=None)
    reports = Reports()

    async def pause(*_: object) -> procedures.Standstill:
        return procedures.Standstill(4, {}, {})

    class Loses:
        order, mends = b"an order", True

        async def run(self) -> None:
            vars(membership).update(what)

        def break_off(self, reason: str) -> None:
            raise AssertionError(reason)

        def answer(self, attempt: str) -> None:
            reports.links_switched(result=True, info="done", attempt=attempt)

    monkeypatch.setattr(procedures, "pause", pause)
    means: Any = SimpleNamespace(membership=membership, reports=reports, order_timeout=60)
    maintenance = Maintenance("attempt", means, acquainted)
    maintenance.carry_out(Loses())
    assert await maintenance.run() == words
    assert reports.waiting.get_nowait()[0] == SwitchResult(result=True)


async def acquainted() -> None:
    """Completes at once."""
