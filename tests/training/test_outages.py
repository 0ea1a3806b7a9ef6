"""Deaths and outages around a training job: of the gateway, of the manager, of ranks, of the whole job."""

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from rekindle.model.limits import Limits
from rekindle.policy.dialogue.orders import NO_ORDER
from rekindle_training.injection import Injection
from rekindle_training.manager import coordinator, liveness_monitor, procedures
from rekindle_training.manager.coordinator import Coordinator
from rekindle_training.manager.gateway import REPORT_SECONDS
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.reports import Reports
from rekindle_wire import REPORT
from rekindle_wire.recover_pb2 import ProcessFaultRequest
from rekindle_wire.training_pb2 import (
    Failed,
    Held,
    Hello,
    ManagerMessage,
    Paused,
    PodState,
    ProcessState,
    RankMessage,
    Standing,
    Stepped,
)
from tests.training.dialogue import opened, status
from tests.training.gateway_service import JOB, GatewayPeer
from tests.training.job import WORLD, Job
from tests.training.ranks import Answer, ScriptedRank


async def test_a_manager_registers_as_taskd_does(job: Job, gateway: GatewayPeer) -> None:
    """Init, Register and then all streams, in this order and with this role, at once: nothing waits for torch."""
    await job.manager()
    streams = {"SubscribeProcessManageSignal", "SubscribeNotifySwitch", "SubscribeNotifyExecStressTest"}
    await gateway.until(lambda: {name for name, _ in gateway.heard} >= streams)
    names = [name for name, _ in gateway.heard]
    assert names[:2] == ["Init", "Register"]
    assert sorted(names[2:]) == sorted(streams)
    assert {(client.jobId, client.role) for _, client in gateway.heard} == {(JOB, "taskd")}


async def test_a_refused_manager_comes_back_until_it_is_accepted(job: Job, gateway: GatewayPeer) -> None:
    """A code other than 0 is tried again for ever, for the job may be configured in a moment."""
    gateway.refuses["Init"] = 403
    await job.manager()
    await gateway.until(lambda: len(gateway.all("Init")) == 3)
    assert not gateway.all("Register")
    gateway.refuses.clear()
    await gateway.until(lambda: gateway.subscriptions == 1)


async def test_progress_is_told_once_and_until_it_is_accepted(job: Job, gateway: GatewayPeer) -> None:
    """The first completed step of a job is reported by each manager once, repeated until code 0."""
    job.slow_down(100)  # it is reported again after a second
    gateway.refuses["ReportProgress"] = 400
    await job.start()
    await gateway.report("ReportProgress", 2)
    gateway.refuses.clear()
    assert await job.codes() == {0}
    reports = gateway.all("ReportProgress")
    assert len({report.incarnation for report in reports}) == 1
    assert {(report.job_id, report.steps_lost) for report in reports} == {(JOB, 0)}
    assert len(reports) == 3


async def test_a_switch_survives_the_death_of_the_gateway(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """The stream is cut, then the gateway dies: the report of the pause is repeated until the next one has answered it."""
    job.slow_down()
    await job.start()
    await gateway.hot_switch(2, 3)
    await job.printed("actions=hot switch")
    gateway.cut()
    await gateway.until(lambda: gateway.subscriptions == 2)
    await gateway.stop()
    await job.backup(1)
    await job.printed("offered=migration")
    await gateway.start()
    assert await gateway.strategies() == ["migration"]
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0}
    assert job.final() == reference


async def test_a_report_has_an_id_of_its_own() -> None:
    """A report keeps its id each time that it is sent, so that a control plane that has it takes it once."""
    reports = Reports()
    reports.process_fault({3: "1"})
    reports.process_fault({3: "1"})
    ids = [dict(metadata)[REPORT] for _, metadata in (reports.waiting.get_nowait(), reports.waiting.get_nowait())]
    assert len(set(ids)) == 2
    assert all(str(one).isalnum() and len(one) <= 64 for one in ids)


def test_a_report_is_repeated_for_as_long_as_the_control_plane_waits_for_it() -> None:
    """A report is repeated as long as the control plane waits for it, since the control plane may be away itself. An order that
    it repeats then is not answered a second time."""
    limits = Limits()
    for waits in (limits.pause, limits.resume, limits.stop, limits.offers, limits.retry, limits.repair):
        assert waits.total_seconds() <= REPORT_SECONDS


@pytest.mark.parametrize(
    ("paused", "total", "told"),
    [(frozenset(), 9, ["resume"]), (frozenset({1}), 9, ["hold", "pause_at"]), (frozenset({1}), 5, ["hold", "resume"])],
    ids=["held", "paused in part", "released in part, with the last step"],
)
async def test_ranks_do_not_wait_for_a_manager_that_is_gone(
    job: Job, gateway: GatewayPeer, paused: frozenset[int], total: int, told: list[str]
) -> None:
    """The manager died between asking all ranks to hold and telling them where to pause. The next one lets them go, or brings the
    others to the step at which a rank already stands."""

    def answer(message: ManagerMessage) -> RankMessage | None:
        if message.HasField("hold"):
            return RankMessage(held=Held(step=5, total=total))
        return RankMessage(paused=Paused(step=5)) if message.HasField("pause_at") else None

    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        ranks = [
            ScriptedRank(channel, rank, "worker", answer, generation=3, step=5, paused=rank in paused) for rank in range(WORLD)
        ]
        async with asyncio.timeout(60):
            while any(rank.told[: len(told)] != told for rank in ranks):
                await asyncio.sleep(0.02)
        await asyncio.gather(*(rank.finish(3) for rank in ranks))


def stands_behind(step: int) -> Answer:
    def answer(message: ManagerMessage) -> RankMessage | None:
        match message.WhichOneof("kind"):
            case "hold":
                return RankMessage(held=Held(step=step, total=9))
            case "pause_at":
                return RankMessage(paused=Paused(step=step))
            case "stand":
                return RankMessage(standing=Standing(step=step))
        return None

    return answer


@pytest.mark.parametrize("first", ["orders", "ranks"])
async def test_a_manager_that_follows_one_which_died_in_the_rebuild_of_a_migration_ends_it(
    first: str, job: Job, gateway: GatewayPeer
) -> None:
    """The ranks to be replaced are paused, and the others could not join the next generation. The backups take the ranks all the
    same."""
    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        if first == "orders":
            await whole_switch(gateway)
        answer = stands_behind(5)
        ranks = [ScriptedRank(channel, rank, "worker", answer, generation=3, step=5, paused=rank > 1) for rank in range(WORLD)]
        for rank in ranks[:2]:
            rank.say(RankMessage(generation=4, failed=Failed(reason="lost")))
        backups = [ScriptedRank(channel, rank, "backup", answer) for rank in (2, 3)]
        if first == "ranks":
            await job.printed("process replaced by another")
            await whole_switch(gateway)
        assert await gateway.status() == 0
        assert all("rebuild" in rank.told for rank in (*ranks[:2], *backups))
        await asyncio.gather(*(rank.finish(4) for rank in (*ranks[:2], *backups)))


async def test_a_manager_that_follows_in_the_pause_goes_on_without_backups_that_died_meanwhile(
    job: Job, gateway: GatewayPeer
) -> None:
    """The orders of the switch are there before the ranks, which wait for nothing that does not come."""
    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        await whole_switch(gateway)
        answer = stands_behind(5)
        ranks = [ScriptedRank(channel, rank, "worker", answer, generation=3, step=5, paused=True) for rank in range(WORLD)]
        assert await gateway.status("continue") == 0
        await asyncio.gather(*(rank.finish(4) for rank in ranks))


async def whole_switch(gateway: GatewayPeer) -> None:
    """Sends all orders of a switch, as a new stream repeats them when the migration was ordered."""
    await gateway.hot_switch(2, 3)
    await gateway.order("hot-switch", "new pod running")
    await gateway.migrate()


async def test_a_manager_that_follows_one_which_died_in_the_rebuild_of_a_repair_finds_that_training_stands(
    job: Job, gateway: GatewayPeer
) -> None:
    """A manager finds that training stands also where no orders come, since the repair was without orders."""
    job.environment["REKINDLE_ORDER_TIMEOUT"] = "1"
    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        ranks = [ScriptedRank(channel, rank, "worker", stands_behind(5), generation=3, step=5) for rank in range(WORLD)]
        for rank in ranks:
            rank.say(RankMessage(generation=4, failed=Failed(reason="lost")))
        report = await gateway.report("ReportProcessFault")
        assert [one.faultType for one in report.faultRanks] == ["2"]
        await job.printed("training recovered behind=5 by_itself=True")
        await asyncio.gather(*(rank.finish(4) for rank in ranks))


async def test_a_process_whose_rank_a_backup_has_taken_is_no_fault_of_it_for_the_next_manager(
    job: Job, gateway: GatewayPeer
) -> None:
    """The process waits in a pod that is not deleted yet, and the next manager meets it first."""
    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        old = ScriptedRank(channel, 3, "worker", stands_behind(4), generation=2, step=4)
        old.say(RankMessage(generation=2, standing=Standing(step=4)))
        await job.printed("process replaced by another")
        roles = [(0, "worker"), (1, "worker"), (2, "backup"), (3, "backup")]
        ranks = [ScriptedRank(channel, rank, role, stands_behind(5), generation=3, step=5) for rank, role in roles]
        assert await opened(gateway, 3) == ["retry", "recover", "dump", "exit"]
        assert old.told == ["leave"]
        await gateway.retry()
        assert await status(gateway) == ("retry", 0, "training goes on after step 5")
        assert gateway.all("ReportProcessFault") == []
        await asyncio.gather(*(rank.finish(4) for rank in ranks))


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_rank_that_stands_after_another_was_stopped_has_no_fault(stopped: bool) -> None:
    """The rank loses its connections to the one that leaves the step. It may be met after the others were told to."""
    membership = Membership(2)
    membership.enroll(Hello(rank=0, process="a/0"), 3)
    stopping = asyncio.create_task(procedures.stand(membership))
    if stopped:
        await asyncio.sleep(0)
    late, _ = membership.enroll(Hello(rank=1, process="a/1"), 3)
    membership.hear(late, RankMessage(generation=3, standing=Standing(step=5)))
    assert late.stood_unasked is not stopped
    stopping.cancel()


@pytest.mark.parametrize("end", ["it is met", "it has ended", "its launcher is gone too", "time is over"])
async def test_a_manager_waits_for_a_rank_whose_launcher_says_that_it_lives(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank may be slow to reconnect on an overloaded machine, and is not lost."""
    monkeypatch.setattr(liveness_monitor, "MEET_SECONDS", 0)
    monkeypatch.setattr(liveness_monitor, "LATE_SECONDS", 0.1 if end == "time is over" else 600)
    membership, pods = Membership(2), Pods()
    membership.enroll(Hello(rank=0, process="a/0"), 3)
    states = [ProcessState(rank=rank, process=f"a/{rank}") for rank in range(2)]
    pods.hear(pod := pods.attach(), PodState(pod="a", processes=states))
    meeting = asyncio.create_task(liveness_monitor.meet(membership, pods))
    done, _ = await asyncio.wait({meeting}, timeout=0.02)
    assert not done
    if end == "it is met":
        membership.enroll(Hello(rank=1, process="a/1"), 3)
    elif end == "it has ended":
        pods.hear(pod, PodState(pod="a", processes=[states[0], ProcessState(rank=1, process="a/1", ended=1)]))
        membership.ended("a/1")
    elif end == "its launcher is gone too":
        pods.detach(pod)
    async with asyncio.timeout(60):
        await meeting


@pytest.mark.parametrize("end", ["is lost", "stands"])
async def test_a_rank_that_fails_while_a_new_manager_meets_the_others_is_the_fault_that_ends_a_hot_switch(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is loaded already. A switch that fails in its pause would make the control plane restart the whole job."""
    met = asyncio.Event()
    monkeypatch.setattr(coordinator, "meet", lambda *_: met.wait())
    membership, pods, reports = Membership(2), Pods(), Reports()
    means: Any = SimpleNamespace(membership=membership, pods=pods, reports=reports, store=asyncio.Event().wait(), alone=False)
    means.stall_seconds, means.order_timeout, means.injection = 0, 60, Injection()
    running = asyncio.create_task((following := Coordinator(means)).run())
    following.prepare(frozenset({1}))
    ranks = [membership.enroll(Hello(rank=rank, process=f"{rank}/0"), 3)[0] for rank in range(2)]
    for rank in ranks:
        membership.hear(rank, RankMessage(generation=3, stepped=Stepped(step=5)))
    backup, _ = membership.enroll(Hello(rank=1, role="backup", process="2/0"), 0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if end == "is lost":
        membership.ended("0/0")
    else:
        membership.hear(ranks[0], RankMessage(generation=3, standing=Standing(step=5, reason="no memory")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waits = not backup.dismissed
    met.set()
    async with asyncio.timeout(60):
        first, _ = await reports.waiting.get()
    assert isinstance(first, ProcessFaultRequest)
    assert [one.rankId for one in first.faultRanks] == ["0"]
    assert (waits, backup.dismissed) == (True, True)
    running.cancel()
    await asyncio.wait({running})


async def test_training_goes_on_while_the_manager_is_replaced(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """No step waits for the manager; the next one learns the generation from the ranks and can switch them."""
    job.slow_down()
    await job.start(1)
    await job.reached(3)
    job.started["manager"].kill()
    await job.started["manager"].code()
    step = job.steps(0)[-1]["step"]
    await job.reached(step + 5)
    await job.manager()
    await gateway.report("ReportProgress", 2)
    await gateway.hot_switch(2, 3)
    assert await gateway.strategies() == ["migration"]
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0, -9}
    assert job.final() == reference
    first, second = (gateway.all("ReportProgress")[number] for number in (0, 1))
    assert first.incarnation != second.incarnation
    assert second.steps_lost == 0


async def test_a_manager_takes_over_in_the_middle_of_a_switch(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A manager that dies while training is paused is replaced by one that carries out the migration."""
    job.slow_down()
    await job.start(1)
    await job.reached(2)
    await gateway.hot_switch(2, 3)
    assert await gateway.strategies() == ["migration"]
    job.started["manager"].kill()
    await job.started["manager"].code()
    await job.manager()
    await gateway.until(lambda: gateway.subscriptions == 2)
    await gateway.migrate()
    assert await gateway.status() == 0
    assert await job.codes() == {0, -9}
    assert job.final() == reference
    assert job.executed_once()


async def test_a_manager_that_follows_one_which_switched_and_told_nobody_says_that_training_goes_on(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """A new stream brings all orders of the attempt again, and nothing is left to switch."""
    job.slow_down(1000)
    await job.start(1)
    await gateway.hot_switch(2, 3)
    assert await gateway.strategies() == ["migration"]
    await gateway.migrate()
    assert await gateway.status() == 0
    job.started["manager"].kill()
    await job.started["manager"].code()
    await job.manager()
    await gateway.until(lambda: gateway.subscriptions == 2)
    await gateway.hot_switch(2, 3)
    await gateway.order("hot-switch", "new pod running")
    await gateway.migrate()
    again = await gateway.report("ReportRecoverStatus", 2)
    assert (again.strategy, again.status.code) == ("migration", 0)
    job.hurry()
    assert {await job.started[pod].code() for pod in ("worker-0", "backup-1")} == {0}
    assert job.final() == reference


async def test_training_goes_on_by_itself_when_no_order_comes(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A pause without further orders is over after the configured time, on the old ranks."""
    job.environment["REKINDLE_ORDER_TIMEOUT"] = "1"
    job.slow_down()
    await job.start(1)
    await gateway.hot_switch(2, 3)
    assert await gateway.strategies() == ["migration"]
    assert await job.codes() == {0}
    assert job.final() == reference
    assert not gateway.all("ReportRecoverStatus")


async def test_a_migration_that_is_ordered_when_training_has_gone_on_by_itself_says_where_it_is(
    job: Job, gateway: GatewayPeer, reference: list[bytes]
) -> None:
    """The status says that training goes on on the old pod, which would be deleted if the backup passed for the holder of its
    ranks."""
    job.environment["REKINDLE_ORDER_TIMEOUT"] = "1"
    job.slow_down(1000)  # the order comes before the next step
    await job.start(1)
    await gateway.hot_switch(2, 3)
    assert await gateway.strategies() == ["migration"]
    assert await job.started["backup-1"].code() == 0
    await gateway.migrate()
    assert await gateway.status("continue") == 0
    job.hurry()
    assert NO_ORDER in gateway.all("ReportRecoverStatus")[-1].status.info
    assert await job.codes() == {0}
    assert job.final() == reference
    assert job.executed_once()


async def test_the_ranks_of_a_pod_that_died_are_reported(job: Job, gateway: GatewayPeer) -> None:
    """Both ranks are reported as normal faults, in one report if they are seen at the same moment."""
    job.slow_down()
    await job.start()
    await job.reached(2)
    job.started["worker-1"].kill()

    def reported() -> set[tuple[str, str]]:
        reports = gateway.all("ReportProcessFault")
        return {(fault.rankId, fault.faultType) for report in reports for fault in report.faultRanks}

    await gateway.until(lambda: reported() == {("2", "1"), ("3", "1")})
    assert {report.jobId for report in gateway.all("ReportProcessFault")} == {JOB}


async def test_a_frozen_rank_is_reported(job: Job, gateway: GatewayPeer) -> None:
    """A process that is stopped keeps its connection open and answers nothing; that is noticed and reported."""
    job.slow_down()
    await job.start()
    await job.reached(2)
    os.kill(job.children("worker-1")[0], signal.SIGSTOP)
    report = await gateway.report("ReportProcessFault")
    assert [fault.rankId for fault in report.faultRanks] in (["2"], ["3"])


async def test_a_restarted_job_goes_on_from_its_checkpoint(job: Job, gateway: GatewayPeer, reference: list[bytes]) -> None:
    """A killed job repeats the steps after its newest checkpoint, says how many, and ends with the same bits."""
    job.arguments += ["--checkpoint-every", "10"]
    job.slow_down(200)
    await job.start()
    await job.reached(15)
    for pod in ("worker-0", "worker-1"):
        await job.lose(pod)
    await job.end()
    (job.folder / "checkpoints" / ".step-00000020").mkdir(exist_ok=True)
    last = max(job.steps(rank)[-1]["step"] for rank in range(4))
    newest = max(int(path.name.removeprefix("step-")) for path in (job.folder / "checkpoints").glob("step-*"))
    job.generation = 1
    await job.start()
    assert (await gateway.report("ReportProgress", 2)).steps_lost == last - newest
    assert await job.codes() == {0, -9}
    assert job.final() == reference
    assert len(list((job.folder / "checkpoints").iterdir())) == 2


async def test_an_order_to_exit_ends_the_ranks(job: Job, gateway: GatewayPeer) -> None:
    """`exit` makes every rank leave with the code of a job that is to be restarted; the manager stays for the next ranks."""
    job.slow_down()
    await job.start()
    await job.reached(2)
    await gateway.order("changeStrategy", "change_strategy", strategy="exit")
    assert await job.started["worker-0"].code() == 2
    assert await job.started["worker-1"].code() == 2
    for pod_rank in (0, 1):
        await job.worker(pod_rank)
    job.hurry()
    assert [await process.code() for process in job.started.values()] == [0, 0, 0]
