"""Command lines that `ps` shows of a pod's processes, by which each can be distinguished."""

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rekindle_training import titles
from tests.training.standalone import Standalone

SCRIPT = """
import os, sys, time
rank = os.environ["RANK"]
if rank == "1" and os.fork() == 0:  # as a data loader makes its workers
    time.sleep(1000)
os.write(1, f"ready {rank}\\n".encode())
time.sleep(1000)
"""
FAILS = """
import os, sys, time
rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"ready {rank} {life}\\n".encode())
while life == "0" and not os.path.exists(os.path.join(os.environ["REKINDLE_JOB_DIR"], "fails")):
    time.sleep(0.01)
if life == "0":
    sys.exit(3)
time.sleep(1000)
"""


def shown(pid: int) -> list[str]:
    """Returns the command lines of a process and of all that it has made, itself first."""
    top = psutil.Process(pid)
    return [" ".join(process.cmdline()).strip() for process in (top, *top.children(recursive=True))]


async def shows_its_manager(launcher: int) -> None:
    """Waits for the title of the manager, which starts beside the ranks."""
    async with asyncio.timeout(60):
        while not [line for line in shown(launcher) if line == "rekindle-train: manager"]:
            await asyncio.sleep(0.01)


async def test_forked_processes_of_a_pod_are_told_apart(alone: Standalone, tmp_path: Path) -> None:
    """Processes are distinguished by their rank or role, with the script that they run. A worker has the rank that it works
    for."""
    (tmp_path / "train.py").write_text(SCRIPT)
    launcher = await alone.start("--spares=1", script=str(tmp_path / "train.py"), ranks=2)
    for line in ("ready 0", "ready 1", "spare parked"):
        await alone.prints(line)
    await shows_its_manager(launcher.pid)
    first, *others = shown(launcher.pid)
    roles = ["manager", "zygote", "rank 0", "rank 1", "rank 1 worker", "spare"]
    assert first.startswith("rekindle-train: launcher ")
    assert len(others) == len(roles)
    for role in roles:
        assert [line for line in others if line.startswith(f"rekindle-train: {role}")], others
    assert [line for line in others if line.startswith("rekindle-train: rank 1 worker /")]


async def test_a_spare_that_takes_a_rank_is_shown_as_that_rank(alone: Standalone, tmp_path: Path) -> None:
    """A spare has the title of the rank from the moment at which it takes it."""
    (tmp_path / "train.py").write_text(FAILS)
    launcher = await alone.start("--spares=1", "--max-restarts=1", script=str(tmp_path / "train.py"), ranks=1)
    await alone.prints("spare parked")
    (alone.folder / "fails").touch()
    await alone.prints("spare assigned to a rank")
    await alone.prints("ready 0 1")
    assert [line for line in shown(launcher.pid) if line.startswith("rekindle-train: rank 0 ")]


async def test_ranks_that_are_programs_of_their_own_are_told_apart(alone: Standalone, tmp_path: Path) -> None:
    """The interpreter of a rank has the rank in an option that it ignores."""
    (tmp_path / "train.py").write_text(SCRIPT)
    launcher = await alone.start("--start-method=spawn", script=str(tmp_path / "train.py"), ranks=2)
    for line in ("ready 0", "ready 1"):
        await alone.prints(line)
    await shows_its_manager(launcher.pid)
    lines = shown(launcher.pid)
    for rank in range(2):
        assert [line for line in lines if f"-X rekindle-train=rank-{rank} " in line], lines


@pytest.mark.parametrize("length", [3, 100_000])
def test_a_title_has_as_much_room_as_the_command_line_had(length: int) -> None:
    """One that is longer is cut, and what stood there before is gone."""
    shows = (
        "import os, pathlib, sys; from rekindle_training import titles; place = pathlib.Path('/proc/self/cmdline'); "
        "room = len(place.read_bytes()); titles.show('x' * int(sys.argv[1])); os.write(1, b'%d ' % room + place.read_bytes())"
    )
    shown = subprocess.run([sys.executable, "-c", shows, str(length)], capture_output=True, check=True).stdout
    room, title = shown.split(b" ", 1)
    assert title.rstrip(b"\0") == f"rekindle-train: {'x' * length}".encode()[: int(room) - 1]
    assert len(title) == int(room)


def test_a_process_without_a_known_command_line_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is written where /proc is hidden or has no data."""
    titles._place.cache_clear()
    monkeypatch.setattr(titles, "_is_writable", lambda *_: False)
    before = Path("/proc/self/cmdline").read_bytes()
    titles.show("rank 0")
    assert Path("/proc/self/cmdline").read_bytes() == before
