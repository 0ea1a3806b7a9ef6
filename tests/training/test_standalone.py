"""`rekindle-train --standalone`: a rank that is lost is replaced where there is no control plane, and training ends bit-equal."""

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.training.job import WORLD, children
from tests.training.processes import Zygote
from tests.training.standalone import Standalone, last_words
from tests.training.test_repair import at_places

NO_TORCH = """
import os, signal, sys, time

def say(text):  # in one write: all ranks share the file
    os.write(1, f"{text}\\n".encode())
"""


Undisturbed = Callable[[], Awaitable[list[str]]]


@pytest.fixture(scope="module")
def found() -> list[str]:
    """Keeps how an undisturbed run ended, once there was one."""
    return []


@pytest.fixture
def undisturbed(tmp_path: Path, zygote: Zygote, found: list[str]) -> Undisturbed:
    async def undisturbed() -> list[str]:
        if not found:
            found.extend(last_words(await Standalone(tmp_path / "undisturbed", zygote).run()))
        return found

    return undisturbed


@pytest.mark.parametrize(
    "faults",
    [
        *at_places(
            "a rank is killed before the update of its step",
            in_the_first_step="0:1:beginning",
            in_an_evaluation="0:4:evaluating",
            inside_an_asynchronous_collective="3:5:communicating",
            two_at_once="0:5:backward,3:5:backward",
        ),
        *at_places(
            "a rank is killed when the update of its step has begun",
            behind_the_agreement="2:5:agreed",
            behind_the_update="0:7:updated",
            at_the_end_of_the_last_step="1:12:ending",
            in_the_step_that_repeats="2:5:updated,2:6:backward,1:6:updated",
        ),
    ],
)
async def test_a_rank_that_is_killed_is_replaced(faults: str, alone: Standalone, undisturbed: Undisturbed) -> None:
    """A spare takes its place, at the same step and to the same bits, wherever it was killed; without one another process."""
    printed = await alone.run("--spares=1", KIND="kill", FAULTS=faults)
    assert last_words(printed) == await undisturbed()
    assert "spare assigned to a rank" in printed
    assert "repaired" in printed


@pytest.mark.same_path("a rank is lost in another way")
async def test_a_rank_is_replaced_where_no_spare_waits(alone: Standalone, undisturbed: Undisturbed) -> None:
    """The process of the rank is started cold."""
    assert last_words(await alone.run(KIND="kill", FAULTS="1:5:backward")) == await undisturbed()


@pytest.mark.same_path("a rank is lost in another way")
async def test_a_rank_that_is_stopped_is_replaced(alone: Standalone, undisturbed: Undisturbed) -> None:
    """The kernel informs the launcher of the stopped rank, and the rank that holds all others up is killed."""
    printed = await alone.run("--spares=1", KIND="stop", FAULTS="1:5:backward")
    assert "reason=stopped" in printed
    assert last_words(printed) == await undisturbed()


@pytest.mark.same_path("a rank is lost in another way")
async def test_a_rank_that_is_stuck_is_replaced(alone: Standalone, undisturbed: Undisturbed) -> None:
    """A rank that is stuck lives and sends heartbeats. The others have begun one collective more, and wait."""
    printed = await alone.run("--spares=1", "--stall-seconds=1", KIND="spin", FAULTS="1:5:backward")
    assert "the others have waited for it in step 5" in printed
    assert last_words(printed) == await undisturbed()


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, marks=pytest.mark.same_path("the manager of a job without a control plane is killed"))
        for moment in ("progress report sent step=1", "pod told its rank order=replace", "rebuild started generation=2")
    ],
)
async def test_a_manager_that_is_killed_is_followed_by_another(moment: str, alone: Standalone, undisturbed: Undisturbed) -> None:
    """A manager is killed between two faults, while a rank is replaced, or while ranks join the next generation. The next one
    learns from the ranks and the launcher what is to be done."""
    launcher = await alone.start("--spares=1", KIND="kill", FAULTS="1:5:backward,2:9:updated", PACE_MS="500")
    await alone.prints(moment)
    os.kill(alone.manager(), signal.SIGKILL)
    alone.hurry()
    assert await launcher.code() == 0
    assert last_words(alone.printed) == await undisturbed()
    assert "manager ended, starting another" in alone.printed


@pytest.mark.same_path("the manager of a job without a control plane is killed")
async def test_a_manager_that_is_stopped_is_followed_by_another(alone: Standalone, undisturbed: Undisturbed) -> None:
    """A stopped manager receives no fault, and is ended after a moment."""
    launcher = await alone.start(KIND="kill", FAULTS="1:9:backward", PACE_MS="500")
    await alone.prints("progress report sent step=1")
    os.kill(alone.manager(), signal.SIGSTOP)
    alone.hurry()
    assert await launcher.code() == 0
    assert last_words(alone.printed) == await undisturbed()
    assert "manager ended, starting another" in alone.printed


EVERYBODY = ",".join(f"{rank}:5:updated" for rank in range(WORLD))


@pytest.mark.same_path("all ranks are lost")
async def test_all_ranks_begin_again_at_the_checkpoint(alone: Standalone, undisturbed: Undisturbed) -> None:
    """All ranks begin again as often as --max-restarts allows when no rank has the state."""
    printed = await alone.run("--max-restarts=1", KIND="kill", FAULTS=EVERYBODY, EVERY="2")
    assert "all ranks restarted from the last checkpoint" in printed
    assert last_words(printed) == await undisturbed()


@pytest.mark.same_path("all ranks are lost")
async def test_without_restarts_the_loss_of_all_ranks_ends_the_job(alone: Standalone) -> None:
    """The job ends as by torchrun's default, and the exit code is that of the first rank that failed."""
    printed = await alone.run(code=128 + signal.SIGKILL, KIND="kill", FAULTS=EVERYBODY)
    assert printed.count("training given up") == 1


async def test_a_rank_that_is_killed_again_and_again_ends_the_job(alone: Standalone) -> None:
    """The rank is replaced three times in one step, then the script is at fault."""
    printed = await alone.run(code=128 + signal.SIGKILL, KIND="kill", FAULTS="2:5:backward", ONCE="no")
    assert "training did not get beyond step 4 in 3 tries" in printed
    assert "training abandoned" in printed


# What the launcher does by itself, with scripts that need no torch.


async def test_a_script_that_fails_before_its_session_ends_the_job(alone: Standalone, tmp_path: Path) -> None:
    """The script fails on one rank while the others start. No rank waits for a session that one of them will never enter."""
    (tmp_path / "rank.py").write_text(f'{NO_TORCH}\nsys.exit(7) if os.environ["RANK"] == "1" else signal.pause()')
    assert "rank 1 ended with 7, and no other one trains" in await alone.run(code=7, script=str(tmp_path / "rank.py"))


async def test_a_spare_waits_where_its_rank_is_read(alone: Standalone, tmp_path: Path) -> None:
    """The spare does ahead what the script does before it reads its rank. From there on the spare is the rank, in every
    variable."""
    (tmp_path / "rank.py").write_text(f"""{NO_TORCH}
say(f"loaded {{os.getpid()}}")
environment = dict(os.environ)
assert environment["RANK"] == os.environ["RANK"] == os.environ["ROLE_RANK"]
say(f"rank {{os.getpid()}} {{environment['RANK']}} {{environment['TORCHELASTIC_RESTART_COUNT']}}")
while environment["TORCHELASTIC_RESTART_COUNT"] == "0" and not os.path.exists({str(tmp_path / "fails")!r}):
    time.sleep(0.01)
sys.exit(3 if environment["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
""")
    launcher = await alone.start("--spares=1", "--max-restarts=1", script=str(tmp_path / "rank.py"), ranks=1)
    async with asyncio.timeout(60):
        while alone.printed.count("loaded") < 2 or "rank" not in alone.printed:
            await asyncio.sleep(0.01)
    (tmp_path / "fails").touch()
    assert await launcher.code() == 0
    words = [line.split() for line in alone.printed.splitlines() if line.startswith(("loaded", "rank "))]
    loaded = [word[1] for word in words if word[0] == "loaded"]
    first, second = ([word[2:], word[1]] for word in words if word[0] == "rank")
    assert first[0] == ["0", "0"]
    assert second[0] == ["0", "1"]
    assert second[1] in loaded[:2], "the spare that was there from the beginning"


@pytest.mark.parametrize(
    "way",
    [
        'subprocess.run("echo heard $RANK", shell=True)',
        'os.system("echo heard $RANK")',
        'os.waitpid(multiprocessing.util.spawnv_passfds(b"/bin/sh", ["sh", "-c", "echo heard $RANK"], [1]), 0)',
        'os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "echo heard $RANK"], os.environ), 0)',
        """if (pid := os.fork()) == 0:
    say("heard " + os.environ["RANK"])
    os._exit(0)
os.waitpid(pid, 0)""",
        'say("heard " + os.environb[b"RANK"].decode())',
        'say("heard 0" if os.environ["TORCHELASTIC_RESTART_COUNT"] in "01" else "")',
    ],
    ids=["subprocess", "system", "multiprocessing", "posix_spawn", "fork", "bytes", "restart count"],
)
async def test_a_spare_knows_its_rank_before_anybody_hears_of_it(way: str, alone: Standalone, tmp_path: Path) -> None:
    """A process that the spare makes, and any other way to read the environment, wait for the rank as well."""
    (tmp_path / "rank.py").write_text(f"""{NO_TORCH}
import multiprocessing.util, subprocess
say("loaded")
{way}
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists({str(tmp_path / "fails")!r}):
        time.sleep(0.01)
    sys.exit(3)
""")
    launcher = await alone.start("--spares=1", "--max-restarts=1", script=str(tmp_path / "rank.py"), ranks=1)
    async with asyncio.timeout(60):
        while alone.printed.count("loaded") < 2 or "heard" not in alone.printed:
            await asyncio.sleep(0.01)
    (tmp_path / "fails").touch()
    assert await launcher.code() == 0
    assert alone.printed.count("heard 0\n") == 2
    assert "spare assigned to a rank" in alone.printed


async def test_a_spare_that_is_stopped_is_left_alone(alone: Standalone, tmp_path: Path) -> None:
    """A process is started in place of the stopped spare."""
    (tmp_path / "rank.py").write_text(f"""{NO_TORCH}
say(f"loaded {{os.getpid()}}.")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    say(f"rank {{os.getpid()}}.")
    while not os.path.exists({str(tmp_path / "fails")!r}):
        time.sleep(0.01)
    sys.exit(3)
""")
    launcher = await alone.start("--spares=1", "--max-restarts=1", script=str(tmp_path / "rank.py"), ranks=1)
    async with asyncio.timeout(60):
        while alone.printed.count("loaded") < 2 or not re.search(r"^rank \d+\.$", alone.printed, re.MULTILINE):
            await asyncio.sleep(0.01)
    pids = {word: re.findall(rf"^{word} (\d+)\.$", alone.printed, re.MULTILINE) for word in ("loaded", "rank")}
    (spare,) = set(pids["loaded"]) - set(pids["rank"])
    os.kill(int(spare), signal.SIGSTOP)
    await alone.prints("spare stopped, not used")
    (tmp_path / "fails").touch()
    assert await launcher.code() == 0
    assert "spare assigned to a rank" not in alone.printed


async def test_threads_are_waited_for_at_the_end_of_a_forked_rank(alone: Standalone, tmp_path: Path) -> None:
    """Threads of a forked rank are waited for as in the interpreter, so that their work after the script is not lost."""
    (tmp_path / "rank.py").write_text(f"""{NO_TORCH}
import threading
threading.Thread(target=lambda: (threading.main_thread().join(), say("work is done"))).start()
if os.environ["RANK"] == "1":
    sys.exit(0)
""")
    assert (await alone.run(script=str(tmp_path / "rank.py"), ranks=2)).count("work is done") == 2


async def test_forked_ranks_draw_other_numbers(alone: Standalone, tmp_path: Path) -> None:
    """Forked ranks draw different numbers where the script sets no seed, like fresh processes."""
    (tmp_path / "rank.py").write_text(f"""{NO_TORCH}
import numpy, random
say(f"drawn {{numpy.random.rand()}} {{random.random()}}")
""")
    printed = await alone.run(script=str(tmp_path / "rank.py"), ranks=2)
    drawn = [line.split()[1:] for line in printed.splitlines() if line.startswith("drawn")]
    assert len({number for numbers in drawn for number in numbers}) == 4


async def test_output_that_cannot_be_written_is_said(alone: Standalone, tmp_path: Path) -> None:
    """The error is one sentence that names the file."""
    (tmp_path / "rank.py").write_text("")
    (tmp_path / "taken").touch()
    printed = await alone.run(f"--log-dir={tmp_path / 'taken'}", "-r3", code=127, script=str(tmp_path / "rank.py"), ranks=1)
    assert f"rekindle-train: cannot write to {tmp_path / 'taken'}/none/0/stdout.log: Not a directory" in printed


async def test_a_script_that_ends_in_a_spare_is_said(alone: Standalone, tmp_path: Path) -> None:
    """A script that never asks for its rank cannot have a waiting spare. The job goes on without one."""
    (tmp_path / "rank.py").write_text(
        f"""{NO_TORCH}
while b"RANK" in os.environ._data and "spare ended early" not in open({str(alone.folder / "output.log")!r}).read():
    time.sleep(0.01)
"""
    )
    printed = await alone.run("--spares=1", script=str(tmp_path / "rank.py"), ranks=1)
    assert "spare ended early" in printed


async def test_an_interrupted_job_ends_with_its_manager_and_spares(alone: Standalone, tmp_path: Path) -> None:
    """SIGTERM reaches all of them, and nothing is left."""
    (tmp_path / "rank.py").write_text(f'{NO_TORCH}\nsay("there"); os.environ["RANK"]; time.sleep(100)')
    launcher = await alone.start("--spares=2", script=str(tmp_path / "rank.py"), ranks=1)
    async with asyncio.timeout(60):
        while alone.printed.count("there") < 3:
            await asyncio.sleep(0.01)
    (zygote,) = children(launcher.pid)
    pods = children(zygote)
    launcher.kill(signal.SIGTERM)
    assert await launcher.code() == 128 + signal.SIGTERM
    assert not [process for process in (zygote, *pods) if Path(f"/proc/{process}").exists()]
