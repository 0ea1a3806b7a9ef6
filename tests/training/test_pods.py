"""Handling of the states that launchers report, and reports of a zygote about what it cannot do."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rekindle_training.launcher.child import CANNOT_START
from rekindle_training.launcher.rank_environment import Place
from rekindle_training.launcher.zygote import Bind, End, Ended, Program, Start, Waits
from rekindle_training.manager import procedures, rank_process, watch
from rekindle_training.manager.liveness_monitor import LivenessMonitor
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rank_process import RankProcess
from rekindle_training.manager.recovery import Kind, Order, Recovery
from rekindle_training.manager.repair import Repair
from rekindle_training.manager.replacements import CannotRepair, InPlace
from rekindle_training.manager.reports import Reports
from rekindle_wire.training_pb2 import Goodbye, Hello, PodState, ProcessState, RankMessage


def a_state(*processes: ProcessState) -> PodState:
    return PodState(pod="a-pod", processes=processes)


def test_a_launcher_that_comes_back_is_one_pod() -> None:
    """A launcher's state on a broken stream does not count, even if the end of the stream is noticed later."""
    pods = Pods()
    before, after = pods.attach(), pods.attach()
    pods.hear(before, a_state(ProcessState(rank=0, process="old", ended=-9)))
    pods.hear(after, a_state(ProcessState(rank=0, process="new")))
    assert pods.ended == {}
    assert pods.vouches_for("new")
    pods.detach(before)
    assert pods.vouches_for("new")
    pods.detach(after)
    assert not pods.vouches_for("new")


def test_what_was_not_carried_out_is_said_again_on_the_next_stream() -> None:
    """An order names the process to which it is the answer, so that it is carried out once."""
    pods = Pods()
    pods.replace(ProcessState(rank=0, process="old", ended=-9))
    order = pods.attach().outbox.get_nowait()
    assert order is not None
    assert order.replace.process == "old"


def test_a_restart_that_is_ordered_before_a_launcher_speaks_is_told_to_it() -> None:
    """A job may fail while its launcher is still on its way to the manager."""
    pods = Pods()
    pods.restart("it fails", futile=True)
    pod = pods.attach()
    pods.hear(pod, PodState(pod="a-pod", restarts=2))
    order = pod.outbox.get_nowait()
    assert order is not None
    assert (order.restart.restarts, order.restart.reason, order.restart.futile) == (2, "it fails", True)
    pods.hear(pod, PodState(pod="a-pod", restarts=3))
    assert pod.outbox.empty()


@pytest.mark.parametrize("lives", [True, False])
async def test_a_silent_process_is_lost_only_if_its_launcher_does_not_know_better(
    lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that keeps the interpreter's lock silences a process, which is no fault."""
    monkeypatch.setattr(rank_process, "LOST_SECONDS", 0)
    membership = Membership(1)
    membership.lives = lambda _: lives
    process, outbox = membership.enroll(Hello(rank=0, role="worker", process="a-process"), 0)
    membership.install({0: process})
    membership.depart(process, outbox)
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0, later.set_result, None)
    await later
    assert process.lost is not lives
    membership.follow(0, "")
    assert process.lost
    assert membership.vacant == {0}


async def test_a_silent_process_that_others_say_is_lost_is_not_waited_for() -> None:
    """The cluster has seen the end of the silent process's pod. A process that sends heartbeats is left alone."""
    membership = Membership(2)
    membership.enroll(Hello(rank=0, role="worker", process="speaks"), 1)
    process, outbox = membership.enroll(Hello(rank=1, role="worker", process="silent"), 1)
    membership.depart(process, outbox)
    membership.give_up((0, 1, 7))
    assert membership.vacant == {1}


ASKS = [kind for kind in Kind if kind is not Kind.AGAIN]
"""Orders for which ranks are asked where they stand. A restart of ranks asks none."""


@pytest.mark.parametrize(("kind", "vacant"), [(kind, set() if kind is Kind.ELSEWHERE else {1}) for kind in ASKS])
async def test_whichever_order_comes_first_says_who_is_not_waited_for(kind: Kind, vacant: set[int]) -> None:
    """A silent rank is lost at once, unless its pod is to be replaced: the rank may then still live."""
    membership = Membership(2)
    _, outbox = membership.enroll(Hello(rank=0, role="worker", process="speaks"), 1)
    membership.depart(*membership.enroll(Hello(rank=1, role="worker", process="silent"), 1))
    means: Any = SimpleNamespace(membership=membership, pods=Pods(), reports=Reports(), order_timeout=60)
    met = asyncio.Event()
    recovery = Recovery(means, met.wait, None)
    met.set()
    recovery.order(Order(kind, "attempt-1", frozenset({1})))
    recovering = asyncio.ensure_future(recovery.run())
    await outbox.get()
    assert membership.vacant == vacant
    recovering.cancel()
    await asyncio.wait({recovering})


async def test_a_silent_process_is_lost_when_its_launcher_is_silent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is frozen or cut off silences both."""
    monkeypatch.setattr(rank_process, "LOST_SECONDS", 0)
    membership, pods = Membership(1), Pods()
    LivenessMonitor(membership, pods, patience=0, break_off=lambda: None)
    pod = pods.attach()
    pods.hear(pod, a_state(ProcessState(rank=0, process="a-process")))
    process, outbox = membership.enroll(Hello(rank=0, role="worker", process="a-process"), 1)
    membership.depart(process, outbox)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not process.lost
    pods.detach(pod)
    await membership.until(lambda: bool(membership.vacant))
    assert process.lost


async def test_a_process_whose_end_its_launcher_has_seen_is_lost_at_once() -> None:
    """A job with a control plane reports the lost rank to it. The loss of a backup is not reported."""
    membership, pods = Membership(1), Pods()
    lost: list[RankProcess] = []
    LivenessMonitor(membership, pods, patience=0, break_off=lambda: None)
    membership.on_lost = lost.append
    member, _ = membership.enroll(Hello(rank=0, role="worker", process="a-member"), 1)
    membership.enroll(Hello(rank=0, role="backup", process="a-backup"), 0)
    for process in ("a-backup", "a-member"):
        pods.hear(pods.attach(), a_state(ProcessState(rank=0, process=process, ended=-9)))
    assert lost == [member]
    assert not membership.backups


async def test_a_rank_that_holds_training_up_is_lost() -> None:
    """A rank that holds training up is lost like one that ended. Its process is stopped, or all others wait for it, which no
    heartbeat shows."""
    membership, pods = Membership(1), Pods()
    lost: list[RankProcess] = []
    monitor = LivenessMonitor(membership, pods, patience=0, break_off=lambda: None)
    membership.on_lost = lost.append
    member, _ = membership.enroll(Hello(rank=0, role="worker", process="a-member"), 1)
    monitor._watch._kill(0, "stopped")
    assert lost == [member]


async def test_a_backup_that_is_stopped_is_not_the_rank_that_trains() -> None:
    """A backup and the rank that trains have the same number in two pods, and are not mixed up."""
    membership, pods = Membership(1), Pods()
    pods.hear(pods.attach(), a_state(ProcessState(rank=0, process="a-member")))
    pods.hear(pods.attach(), PodState(pod="backup", processes=[ProcessState(rank=0, process="a-backup", stopped=True)]))
    assert watch.stopped(membership, pods) == {0}
    member, _ = membership.enroll(Hello(rank=0, role="worker", process="a-member"), 1)
    assert watch.stopped(membership, pods) == set()
    member.lose()
    assert watch.stopped(membership, pods) == {0}


async def test_a_rank_that_is_lost_when_others_have_finished_is_not_repaired() -> None:
    """Ranks that have finished stand nowhere, so that only the checkpoint is left."""
    membership = Membership(2)
    for rank in range(2):
        membership.enroll(Hello(rank=rank, role="worker", process=f"process-{rank}"), 1)
    membership.members[0].hear("goodbye", RankMessage(generation=1, goodbye=Goodbye()), stopped=False)
    for rank in range(2):
        membership.follow(rank, "")
    nowhere: Any = None
    with pytest.raises(CannotRepair, match=r"ended on ranks \[0\]"):
        await Repair(membership, nowhere, InPlace(membership, Pods()), limit=1).run()


async def test_a_backup_that_comes_when_training_is_complete_is_told_to_leave() -> None:
    """A late backup is ordered to leave when the manager ends, since it would look for a manager for ever."""
    membership = Membership(1)
    turning = asyncio.create_task(procedures.turn_away(membership, "training is complete"))
    await asyncio.sleep(0)
    backup, outbox = membership.enroll(Hello(rank=0, role="backup", process="late"), 0)
    message = await asyncio.wait_for(outbox.get(), 60)
    assert message is not None
    assert message.leave.reason == "training is complete"
    assert backup.dismissed
    turning.cancel()


ZYGOTE = """
import sys
from multiprocessing.connection import Connection
from rekindle_training.launcher import zygote
sys.exit(zygote._Zygote(Connection(int(sys.argv[1]))).run(preload=False))
"""


@pytest.fixture
def launcher() -> Iterator[Connection]:
    """Yields the launcher's end of the way to a zygote. The zygote is no fork of this process, whose other threads may hold
    locks."""
    way, its = Pipe()
    running = subprocess.Popen([sys.executable, "-c", ZYGOTE, str(its.fileno())], pass_fds=[its.fileno()])
    its.close()
    yield way
    way.send(End())
    running.wait()


def test_a_spare_that_ended_before_it_was_given_a_rank_is_a_rank_that_ended(launcher: Connection) -> None:
    """The end of a spare and the launcher's order cross. The rank is reported as ended, so that no wait begins for a missing
    process."""
    program = Program(("/dev/null",), interpreted=True)
    launcher.send(Start("a-spare", program, {}, is_spare=True))
    assert launcher.recv() == Ended("a-spare", 0)
    launcher.send(Bind("a-spare", "rank-0", Place({}, {})))
    assert launcher.recv() == Ended("rank-0", CANNOT_START)


def test_a_program_that_is_not_there_ends_as_in_a_shell(launcher: Connection) -> None:
    """The program ends with 127, and the process that starts others goes on."""
    for name in ("first", "second"):
        launcher.send(Start(name, Program(("/no/such/program",)), {}))
        assert launcher.recv() == Ended(name, 127)


def test_a_spare_says_that_it_waits_once_it_reads_its_rank(launcher: Connection, tmp_path: Path) -> None:
    """A spare reports that it waits by whatever way it reads its rank, also in a copy of the environment."""
    ways = ("os.environ['RANK']", "os.getenv('LOCAL_RANK')", "'RANK' in os.environ", "dict(os.environ)", "os.environ.copy()")
    for number, way in enumerate(ways):
        script = tmp_path / f"{number}.py"
        script.write_text(f"import os\n{way}\nassert os.environ['RANK'] == '{number}' == os.environ.copy()['RANK']")
        launcher.send(Start(f"spare-{number}", Program((str(script),), interpreted=True), {}, is_spare=True))
        assert launcher.recv() == Waits(f"spare-{number}")
        launcher.send(Bind(f"spare-{number}", f"rank-{number}", Place({"RANK": str(number), "LOCAL_RANK": "0"}, {})))
        assert launcher.recv() == Ended(f"rank-{number}", 0)
