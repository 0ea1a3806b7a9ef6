"""Ways to end ranks. A script may finish what it does at SIGTERM, and a rank that cannot react does not hold the pod for ever."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest_asyncio

from rekindle_training.launcher.grace import Grace
from rekindle_training.launcher.timers import GraceOver, StillEnding
from tests.training.processes import Process, Zygote

SAVES = """
import os, signal, sys, time

def say(text):
    os.write(1, f"{text}\\n".encode())

def wait_for(name):
    while not os.path.exists(os.path.join(os.environ["REKINDLE_JOB_DIR"], name)):
        time.sleep(0.01)

def save(*_):
    say("saving")
    wait_for("written")
    say("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
say(f"ready {os.environ['RANK']} {os.getpid()}")
while True:
    time.sleep(0.01)  # a signal just before `signal.pause` would be handled only after the next one
"""
"""A script that writes at SIGTERM until the test lets it go on."""
FAILS = SAVES.replace(
    "while True:",
    """if os.environ["RANK"] == "1":
    wait_for("fails")
    sys.exit(7)
while True:""",
)
BEGINS_AGAIN = FAILS.replace(
    "if os",
    """if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    wait_for("ends")
    sys.exit(0)
if os""",
    1,
)

SHORT = "launcher.grace.FAILED_SECONDS=0.2"
SOON = "launcher.grace.STILL_SECONDS=1"

Start = Callable[..., Awaitable["Pod"]]


class Pod:
    """A running pod."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def printed(self) -> str:
        return self.process.output.read_text()

    async def prints(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.printed.count(text) < times:
                await asyncio.sleep(0.01)

    def pid(self, rank: int) -> int:
        found = re.search(rf"^ready {rank} (\d+)$", self.printed, re.MULTILINE)
        assert found is not None
        return int(found.group(1))

    def let(self, name: str) -> None:
        """Lets the script go on where it waits for this."""
        self.process.output.with_name(name).touch()


@pytest_asyncio.fixture
async def start(tmp_path: Path, zygote: Zygote) -> AsyncIterator[Start]:
    """Starts a pod of two ranks, each of which is ready. The fixture kills what a failed test leaves."""
    started: list[Pod] = []

    async def start(*flags: str, script: str = SAVES, ready: int = 2, **environment: str) -> Pod:
        (tmp_path / "train.py").write_text(script)
        (tmp_path / "output.log").touch()
        argv = ["--standalone", "--nproc-per-node=2", "--start-method=fork", *flags, str(tmp_path / "train.py")]
        variables = {"REKINDLE_JOB_DIR": str(tmp_path), **environment}
        process = await zygote.run("train", argv, variables, tmp_path / "output.log")
        started.append(Pod(process))
        await started[-1].prints("ready", ready)
        return started[-1]

    yield start
    for pod in started:
        pod.process.kill()
        await pod.process.code()
        print(pod.printed)


async def test_an_emergency_save_takes_as_long_as_it_takes(start: Start) -> None:
    """The pod's owner kills it when its patience is over, and the launcher does not before; it says whom it waits for."""
    pod = await start(LIMITS=f"{SHORT} {SOON}")
    pod.process.kill(signal.SIGTERM)
    await pod.prints("ranks not ended yet, a second signal to rekindle-train kills them ranks=[0, 1]")
    assert "rank killed" not in pod.printed
    pod.let("written")
    assert await pod.process.code() == 128 + signal.SIGTERM
    assert pod.printed.count("saved") == 2


async def test_ranks_that_take_longer_than_their_grace_are_killed_and_named(start: Start) -> None:
    """The grace period that the user sets is --grace-seconds."""
    pod = await start("--grace-seconds=1")
    pod.process.kill(signal.SIGTERM)
    assert await pod.process.code() == 128 + signal.SIGTERM
    assert "rank killed rank=0 reason=its grace of 1 s is over" in pod.printed
    assert "rank killed rank=1 reason=its grace of 1 s is over" in pod.printed
    assert "saved" not in pod.printed


async def test_a_second_signal_ends_all_ranks_at_once(start: Start) -> None:
    """A second signal means that the user does not want to wait."""
    pod = await start(LIMITS="launcher.grace.REPEATED_SECONDS=0")
    pod.process.kill(signal.SIGTERM)
    await pod.prints("saving", 2)
    pod.process.kill(signal.SIGINT)
    assert await pod.process.code() == 128 + signal.SIGTERM
    assert "rank killed rank=1 reason=a second signal came" in pod.printed


async def test_a_signal_that_comes_twice_in_a_moment_is_one(start: Start) -> None:
    """`timeout` sends it to its child and to the group of it."""
    pod = await start(LIMITS="launcher.grace.REPEATED_SECONDS=1000")
    pod.process.kill(signal.SIGTERM)
    await pod.prints("saving", 2)
    pod.process.kill(signal.SIGTERM)
    pod.process.kill(signal.SIGHUP)  # which is passed on
    await pod.prints("all ranks stopped signal=SIGHUP")
    assert "rank killed" not in pod.printed
    assert pod.printed.count("all ranks stopped signal=SIGTERM") == 1


async def test_ranks_that_outlive_the_failure_of_another_one_are_killed(start: Start) -> None:
    """A pod that waits for ranks which would never end kills them. The exit code is that of the failure."""
    pod = await start(script=FAILS, LIMITS=SHORT)
    pod.let("fails")
    assert await pod.process.code() == 7
    assert "rank killed rank=0 reason=its grace of 0.2 s is over" in pod.printed


def test_a_grace_is_over_when_all_ranks_have_ended() -> None:
    """The ranks that follow them in a restart are not killed by it."""
    said: list[GraceOver | StillEnding] = []
    grace = Grace(3, lambda _, event: said.append(event))
    grace.give(limited=True)
    assert all(map(grace.is_meant, said))
    grace.settle()
    assert not any(map(grace.is_meant, said))


async def test_ranks_that_hold_a_restart_up_are_killed(start: Start) -> None:
    """All ranks begin again without them."""
    pod = await start("--max-restarts=1", script=BEGINS_AGAIN, LIMITS=SHORT)
    pod.let("fails")
    await pod.prints("ready", 4)
    pod.let("ends")
    assert await pod.process.code() == 0
    assert pod.printed.count("rank killed") == 1
    assert "all ranks restarted" in pod.printed


async def test_a_rank_that_is_stopped_while_it_ends_is_killed(start: Start) -> None:
    """A stopped rank cannot go on by itself, and is killed whatever its grace period is."""
    pod = await start(LIMITS="launcher.grace.STOPPED_SECONDS=0.2")
    pod.process.kill(signal.SIGTERM)
    await pod.prints("saving", 2)
    os.kill(pod.pid(0), signal.SIGSTOP)
    await pod.prints("rank killed rank=0 reason=it is stopped, and does not end")
    pod.let("written")
    assert await pod.process.code() == 128 + signal.SIGTERM
    assert pod.printed.count("saved") == 1
