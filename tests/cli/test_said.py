"""Messages on the terminal of the person who started a process that fails."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.cli import disk
from rekindle.cli.stack import Addresses, Member, Stack
from rekindle.errors import Unavailable
from rekindle.temporal import connect, in_words
from tests.cli.test_recover import FORCED, ended, typed
from tests.fakes.peer import Script
from tests.support.harness import a_job, training

NOWHERE = Addresses(temporal="", ui="", gateway="127.0.0.1:1", socket="", state_dir="/nowhere")


async def test_a_part_that_dies_is_said_and_so_is_its_return(tmp_path: Path) -> None:
    """The name, how it ended, its log, and that it runs again."""
    said: asyncio.Queue[str] = asyncio.Queue()
    stack = Stack(NOWHERE, lambda _: None, said.put_nowait)
    command = [sys.executable, "-c", "print('ready', flush=True); import signal; signal.pause()"]
    member = Member("gateway", command, dict(os.environ), tmp_path / "gateway.log")
    await stack.start(member)
    assert member.process
    os.kill(member.process.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await said.get() == f"gateway has died (signal SIGKILL, log: {member.log}): it is started again"
        assert await said.get() == "gateway runs again"
    await stack.stop()
    assert said.empty()


async def test_a_state_directory_that_cannot_be_written_is_said_once_and_so_is_its_return(tmp_path: Path) -> None:
    """A full or lost disk: Temporal stores nothing, and its log is not read."""
    directory, away = tmp_path / "state", tmp_path / "away"
    directory.mkdir()
    said: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.timeout(60), disk.watched(directory, said.put_nowait, look=0.001):
        directory.rename(away)
        assert await said.get() == (
            f"{directory} cannot be written (No such file or directory): nothing is stored until it can, and recoveries wait"
        )
        away.rename(directory)
        assert await said.get() == f"{directory} can be written again"
        assert said.empty()


def test_a_disk_that_is_almost_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning comes before it is full."""
    monkeypatch.setattr(disk, "LOW", 2**62)
    assert "almost full" in disk.problem(tmp_path)


async def test_a_temporal_that_is_away_is_said_in_words() -> None:
    """No structure of the client's core is shown."""
    with pytest.raises(Unavailable, match=r"127.0.0.1:9 \(set TEMPORAL_ADDRESS\): Connection refused$"):
        await connect("127.0.0.1:9", started_here=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workflow not found for ID: job/x", "workflow not found for ID: job/x"),
        (
            'Status { code: Internal, message: "h2 error", source: Some(tonic::transport::Error(Transport)) }',
            "h2 error",
        ),
        ("Server connection error: tonic::transport::Error(Transport)", "Server connection error"),
    ],
)
def test_the_innermost_reason_of_the_core_is_shown(text: str, words: str) -> None:
    """Text before its structures is left where it has none in quotes."""
    assert in_words(RuntimeError(text)) == words


async def test_a_cancellation_that_came_too_late_is_not_called_one(temporal: WorkflowEnvironment) -> None:
    """The outcome is said in place of `cancelled`, since a switch goes to its end after the pause."""
    async with training(temporal, a_job(), Script(resumes=False)) as (world, peer):
        command = await typed(world, "hot-switch", world.job.id, *FORCED)
        await peer.until(lambda: "migration" in peer.orders)
        cancelling = await typed(world, "cancel", world.job.id)
        code, words = await ended(cancelling)
        assert (code, "asked to cancel: request/" in words, "cancelled:" in words) == (0, True, False), words
        assert "the hot switch still runs" in words
        command.send_signal(signal.SIGINT)
        await ended(command)
