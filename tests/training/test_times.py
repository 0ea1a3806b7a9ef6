"""Reports of a manager for how long its job trains, and the stretches of a rank on which they are based."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle_training.examples.gpt_model import GPT
from rekindle_training.manager import times
from rekindle_training.manager.gateway import Gateway
from rekindle_training.manager.identity import Identity
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.reports import Reports
from rekindle_training.manager.times import Times
from rekindle_training.processor.stretches import Stretch, Stretches
from rekindle_wire.training_pb2 import Goodbye, Heartbeat, Hello, Holding, RankMessage, Stepped, TimeReport
from rekindle_wire.training_pb2 import Stretch as Message
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job as RealJob


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


class Job:
    """Membership of two ranks that say what the test wants, and the reports of their manager."""

    def __init__(self) -> None:
        self.membership, self.reports = Membership(2), Reports()
        self.times = Times(self.membership, self.reports)
        for rank in range(2):
            self.joins(rank, f"process-{rank}")

    def joins(self, rank: int, process: str) -> None:
        self.membership.enroll(Hello(rank=rank, role="worker", process=process), 1)

    def says(self, rank: int, **kind: Any) -> None:
        self.membership.hear(self.membership.members[rank], RankMessage(generation=1, **kind))

    async def reported(self, began: float) -> TimeReport:
        await until(lambda: began in self.reports.times)
        return self.reports.times[began]


async def test_a_stretch_is_reported_when_all_ranks_have_begun_it() -> None:
    """A stretch begins with its first rank. The one before it ended with its last rank, which may not be there any more."""
    job = Job()
    running = asyncio.create_task(job.times.run())
    job.says(0, stepped=Stepped(step=1, now=Message(began=10, ended=11, steps=1)))
    assert not job.reports.times
    job.says(1, stepped=Stepped(step=1, now=Message(began=9, ended=11.5, steps=1)))
    first = await job.reported(9)
    assert (first.now.ended, first.step, first.world_size, first.HasField("before")) == (11.5, 1, 2, False)
    job.says(0, heartbeat=Heartbeat(step=40, now=Message(began=10, ended=50, steps=40)))
    job.says(0, stepped=Stepped(step=41, now=Message(began=61, ended=62), before=Message(began=10, ended=50, steps=40)))
    told = Message(began=9, ended=50.5, steps=40, checkpoint_seconds=2, again_seconds=1)
    job.says(1, stepped=Stepped(step=41, now=Message(began=60, ended=62), before=told))
    second = await job.reported(60)
    assert second.before == told
    for rank in range(2):
        job.says(rank, goodbye=Goodbye(step=50, now=Message(began=60, ended=70 + rank, steps=10)))
    await running
    last = job.reports.times[60]
    assert (last.final, last.now.ended, last.step) == (True, 71, 50)
    assert list(job.reports.times) == [9, 60], "the oldest stretch is sent first, and one report of each"


async def test_what_the_ranks_hold_is_reported() -> None:
    """The rank that holds most counts. Nothing is said for ranks of an earlier version, which say nothing."""
    job = Job()
    running = asyncio.create_task(job.times.run())
    for began in (10, 20):
        job.says(0, stepped=Stepped(step=1, now=Message(began=began, ended=began + 1, steps=1)))
        holding = Holding(state_bytes=7, checkpoint_every=5) if began == 20 else None
        job.says(1, stepped=Stepped(step=1, now=Message(began=began, ended=began + 1, steps=1), holding=holding))
        report = await job.reported(began)
        assert report.HasField("holding") is (began == 20)
        assert (report.holding.state_bytes, report.holding.checkpoint_every) == ((7, 5) if began == 20 else (0, 0))
    running.cancel()


async def test_real_ranks_report_what_they_hold(job: RealJob, gateway: GatewayPeer) -> None:
    """Parameters, and two moments of each, are known after the first step."""
    job.arguments += ["--checkpoint-every", "30"]
    await job.start()
    report = await gateway.report("ReportTime")
    whole = 3 * sum(parameter.nbytes for parameter in GPT().parameters())
    assert whole <= report.holding.state_bytes < 1.01 * whole
    assert report.holding.checkpoint_every == 30
    assert await job.codes() == {0}


async def test_the_wait_for_the_last_rank_belongs_to_the_step_that_is_done_again() -> None:
    """Ranks load at different speeds after a restart. The first ones wait in the step that all of them do again."""
    job = Job()
    running = asyncio.create_task(job.times.run())
    job.says(0, stepped=Stepped(step=9, now=Message(began=10, ended=14.9, steps=1, again_seconds=4.9)))
    job.says(1, stepped=Stepped(step=9, now=Message(began=13, ended=15, steps=1, again_seconds=2)))
    first = await job.reported(10)
    assert (first.now.ended, first.now.again_seconds) == (15, 5)
    running.cancel()


async def test_a_stretch_that_goes_on_is_reported_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane learns the present step, and how much of the time went into checkpoints."""
    monkeypatch.setattr(times, "EVERY_SECONDS", 0.01)
    job = Job()
    for rank in range(2):
        job.says(rank, stepped=Stepped(step=1, now=Message(began=10, ended=11, steps=1)))
    running = asyncio.create_task(job.times.run())
    await job.reported(10)
    for rank in range(2):
        job.says(rank, heartbeat=Heartbeat(step=5, now=Message(began=10, ended=15, steps=5, checkpoint_seconds=1)))
    await until(lambda: job.reports.times[10].step == 5)
    assert job.reports.times[10].now.checkpoint_seconds == 1
    running.cancel()


async def test_a_manager_of_new_processes_reports_on_after_their_long_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is due while all of them load a checkpoint. There is no stretch to report then."""
    monkeypatch.setattr(times, "EVERY_SECONDS", 0.001)
    job = Job()
    for rank in range(2):
        job.says(rank, stepped=Stepped(step=1, now=Message(began=10, ended=11, steps=1)))
    running = asyncio.create_task(job.times.run())
    await job.reported(10)
    due, of_members = asyncio.Event(), job.times._of_members

    def asked() -> Any:
        due.set()
        return of_members()

    monkeypatch.setattr(job.times, "_of_members", asked)
    for rank in range(2):
        job.membership.members.pop(rank, None)
        job.joins(rank, f"new-process-{rank}")
    due.clear()
    await due.wait()
    assert not running.done()
    for rank in range(2):
        job.says(rank, stepped=Stepped(step=9, now=Message(began=900, ended=901, steps=1)))
    await job.reported(900)
    running.cancel()


@pytest.mark.timeout(20)
async def test_a_report_that_is_never_taken_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway refuses a time that cannot be. The reason is logged, and the next report is sent at once."""
    peer, reports = GatewayPeer(), Reports()  # type: ignore[abstract]  # it serves what is called here
    await peer.start()
    peer.refuses["ReportTime"] = 409
    for began in (20, 10):
        reports.time(TimeReport(now=Message(began=began, ended=began + 1)))
    gateway = Gateway(f"127.0.0.1:{peer.port}", Identity("a-job", tmp_path / "token"), reports, lambda _: None, {})
    running = asyncio.create_task(gateway.run())
    try:
        await reports.times_told.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peer.stop()
    assert [told.now.began for told in peer.all("ReportTime")] == [10, 20]
    assert caplog.messages.count("time report refused") == 2


async def test_a_report_is_kept_until_its_latest_form_was_received() -> None:
    """A stretch that was reported again while the first report was on its way is sent once more."""
    reports = Reports()
    now = Message(began=10, ended=11)
    reports.time(TimeReport(now=now))
    on_its_way = reports.times[10]
    reports.time(TimeReport(now=now, final=True))
    reports.time_told(on_its_way)
    assert reports.times[10].final
    reports.time_told(reports.times[10])
    assert not reports.timed.is_set()


def test_a_stretch_ends_where_training_stands() -> None:
    """Checkpoints and repeated steps are parts of it. Time of a checkpoint that was written while training stood is not."""
    rank = Stretches()
    rank.follow(lambda: Stretch(began=1.0, ended=5.0, steps=4))
    rank.repeat(furthest=2)
    rank.wrote(9.0)
    rank.stand()
    assert rank.stepped(1, 10.0, 11.0) == Stretch(began=10.0, ended=11.0, steps=1, again=1.0)
    assert rank.before == Stretch(began=1.0, ended=5.0, steps=4)
    rank.wrote(0.5)
    rank.stepped(2, 11.0, 12.5)
    rank.stepped(3, 12.5, 13.0)
    assert rank.now == Stretch(began=10.0, ended=13.0, steps=3, checkpoint=0.5, again=2.0)
    rank.stand()
    rank.stepped(4, 20.0, 21.0)
    assert rank.before == Stretch(began=10.0, ended=13.0, steps=3, checkpoint=0.5, again=2.0)
    rank.wrote(1.0)
    rank.end(22.5)
    assert rank.now == Stretch(began=20.0, ended=22.5, steps=1, checkpoint=1.0)


def test_a_stretch_has_the_share_of_ranks_that_are_missing_in_it() -> None:
    """The number of ranks changes while training stands. What was trained before belongs to the number of then."""
    rank = Stretches()
    rank.stepped(1, 10.0, 11.0)
    rank.stand()
    rank.missing = 0.25
    assert rank.stepped(2, 12.0, 13.0).sent().missing_share == 0.25
    assert rank.before == Stretch(began=10.0, ended=11.0, steps=1)


def test_a_clock_that_is_set_back_does_not_turn_a_stretch_round() -> None:
    """A stretch ends no earlier than it began, and the next one does not begin before it."""
    rank = Stretches()
    rank.stepped(1, 1000.0, 1010.0)
    assert rank.stepped(2, 1010.0, 11.0) == Stretch(began=1000.0, ended=1010.0, steps=2)
    rank.stand()
    assert rank.stepped(3, 20.0, 21.0) == Stretch(began=1010.0, ended=1010.0, steps=1)
