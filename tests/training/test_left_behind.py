"""Processes that a rank has started end with the rank, and a pod survives the end of the process that makes all others."""

import asyncio
import os
import re
import signal
from pathlib import Path
from unittest.mock import Mock, call

import psutil
import pytest

from rekindle_training.launcher.own_manager import STARTS
from rekindle_training.launcher.pod import Pod
from tests.training.job import children
from tests.training.standalone import Standalone, last_words
from tests.training.test_standalone import Undisturbed, found, undisturbed

__all__ = ["found", "undisturbed"]

PROTECTED = str(Path(__file__).with_name("scripts").joinpath("protected.py"))
NO_TORCH = """
import os, signal, subprocess, sys, time

def say(text):
    os.write(1, f"{text}\\n".encode())

def wait_for(name):
    while not os.path.exists(os.path.join(os.environ["REKINDLE_JOB_DIR"], name)):
        time.sleep(0.01)

rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
"""
FAMILY = (
    NO_TORCH
    + """
# In a session of its own; an orphan; an orphan in a session of its own, without the rank's environment.
say(f"child {rank} {subprocess.Popen(['sleep', '1000'], start_new_session=True).pid}")
say(f"child {rank} " + subprocess.run("sleep 1000 >/dev/null & echo $!", shell=True, stdout=subprocess.PIPE, text=True).stdout)
orphan = subprocess.run("setsid sh -c 'sleep 1000 >/dev/null & echo $!'", shell=True, stdout=subprocess.PIPE, text=True, env={})
say(f"child {rank} " + orphan.stdout)
"""
)
WORKERS = """
import torch, torch.multiprocessing
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    batches = iter(DataLoader(TensorDataset(torch.arange(8)), num_workers=1, multiprocessing_context="forkserver"))
    say(f"batch {next(batches)}")
    for child in open(f"/proc/self/task/{os.getpid()}/children").read().split():
        say(f"child {rank} {child}")
        for grandchild in open(f"/proc/{child}/task/{child}/children").read().split():
            say(f"child {rank} {grandchild}")
    say(f"ready {rank} {os.getpid()}")
    time.sleep(1000)
"""
WAITS = "\nsay(f'ready {rank} {os.getpid()}')\n"


def pids(alone: Standalone, word: str, rank: int) -> list[int]:
    return [int(pid) for pid in re.findall(rf"^{word} {rank} (\d+)$", alone.printed, re.MULTILINE)]


def script(folder: Path, text: str) -> str:
    (folder / "rank.py").write_text(text)
    return str(folder / "rank.py")


async def gone(*processes: psutil.Process) -> bool:
    """Waits until all these processes are gone."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=60)
    return not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


async def ready(alone: Standalone, *ranks: int) -> dict[int, list[psutil.Process]]:
    """Waits until these ranks are ready, and returns the processes that each has started."""
    for rank in ranks:
        await alone.prints(f"ready {rank}")
    return {rank: [psutil.Process(pid) for pid in pids(alone, "child", rank)] for rank in ranks}


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_what_a_killed_rank_has_started_ends_with_it(method: str, alone: Standalone, tmp_path: Path) -> None:
    """A process ends even if it has left its session, its parent or its environment. Processes of another rank live on."""
    text = FAMILY + WAITS + "time.sleep(1000) if life == '0' else sys.exit(0)"
    launcher = await alone.start(f"--start-method={method}", script=script(tmp_path, text), ranks=2)
    started = await ready(alone, 0, 1)
    assert len(started[0]) == 3
    os.kill(pids(alone, "ready", 0)[0], signal.SIGKILL)
    assert await gone(*started[0])
    assert [process.status() for process in started[1]] == [psutil.STATUS_SLEEPING] * 3
    launcher.kill()
    assert await gone(*started[1])


async def test_workers_and_their_server_end_with_their_rank(alone: Standalone, tmp_path: Path) -> None:
    """A data loader that is not forked ends with its rank: the server, its workers and what looks after their resources."""
    await alone.start(script=script(tmp_path, NO_TORCH + WORKERS), ranks=1)
    started = (await ready(alone, 0))[0]
    assert len(started) >= 3
    os.kill(pids(alone, "ready", 0)[0], signal.SIGKILL)
    assert await gone(*started)


@pytest.mark.parametrize("victim", ["launcher", "zygote"])
async def test_nothing_is_left_of_a_pod_that_is_killed(victim: str, alone: Standalone, tmp_path: Path) -> None:
    """No process of a pod or of its ranks is left, whichever of the two that hold them is killed."""
    launcher = await alone.start(script=script(tmp_path, FAMILY + WAITS + "time.sleep(1000)"), ranks=1)
    started = (await ready(alone, 0))[0]
    (zygote,) = children(launcher.pid)
    processes = [psutil.Process(pid) for pid in (zygote, *children(zygote))]
    os.kill(launcher.pid if victim == "launcher" else zygote, signal.SIGKILL)
    assert await gone(*processes, *started)


async def test_what_a_rank_leaves_behind_that_ended_well_is_left_alone(alone: Standalone, tmp_path: Path) -> None:
    """Processes of a rank that ended well are left alone, as with torchrun, so that an upload goes on."""
    await alone.run(script=script(tmp_path, FAMILY), ranks=1)
    left = [psutil.Process(pid) for pid in pids(alone, "child", 0)]
    assert [process.status() for process in left] == [psutil.STATUS_SLEEPING] * 3
    for process in left:
        process.kill()


# The process that makes all others. Another one loads torch anew.

LOADS_ANEW = pytest.mark.timeout(400)
LIMIT = 300


@LOADS_ANEW
async def test_a_job_whose_zygote_is_killed_before_its_first_step_begins_again(alone: Standalone, tmp_path: Path) -> None:
    """No step is lost, and --max-restarts is not used."""
    text = NO_TORCH + WAITS + "time.sleep(1000) if life == '0' else sys.exit(0)"
    launcher = await alone.start(script=script(tmp_path, text), ranks=2)
    await ready(alone, 0, 1)
    os.kill(children(launcher.pid)[0], signal.SIGKILL)
    assert await launcher.code(LIMIT) == 0
    assert "zygote ended with all processes of the pod, starting another" in alone.printed


@LOADS_ANEW
@pytest.mark.parametrize("flags", [["--spares=1"], []], ids=["beside a spare", "without spares"])
async def test_a_job_whose_zygote_is_killed_goes_on_at_its_checkpoint(
    flags: list[str], alone: Standalone, undisturbed: Undisturbed
) -> None:
    """A job begins again as often as --max-restarts allows, and ends with the bits of an undisturbed run."""
    launcher = await alone.start("--max-restarts=1", *flags, EVERY="2", PACE_MS="1000")
    await alone.prints("progress report sent step=1")
    async with asyncio.timeout(60):
        while not list(alone.folder.glob("checkpoints/step-*")):
            await asyncio.sleep(0.01)
    os.kill(children(launcher.pid)[0], signal.SIGKILL)
    alone.hurry()
    assert await launcher.code(LIMIT) == 0
    assert "all ranks restarted from the last checkpoint" in alone.printed
    assert last_words(alone.printed) == await undisturbed()


@LOADS_ANEW
async def test_a_job_whose_zygote_is_killed_and_that_may_not_begin_again_ends_with_a_reason(alone: Standalone) -> None:
    """The exit code is that of its ranks, which were killed with it."""
    launcher = await alone.start(PACE_MS="1000")
    await alone.prints("progress report sent step=1")
    os.kill(children(launcher.pid)[0], signal.SIGKILL)
    assert await launcher.code(LIMIT) == 128 + signal.SIGKILL
    assert re.search(r"training abandoned reason=rank \d ended with -9, and no other one trains restarts=0", alone.printed)


async def test_a_rank_that_is_lost_while_the_zygote_is_stopped_is_replaced(alone: Standalone) -> None:
    """The zygote goes on, and reports the end that it has missed. No rank begins again for it."""
    launcher = await alone.start("--spares=1", script=PROTECTED, ranks=2, EVERY="0", WAITS="3")
    async with asyncio.timeout(60):
        while len(list(alone.folder.glob("waits-3-*"))) < 2:
            await asyncio.sleep(0.01)
    (zygote,) = children(launcher.pid)
    (rank,) = [process for process in children(zygote) if "rank 1" in " ".join(psutil.Process(process).cmdline())]
    os.kill(zygote, signal.SIGSTOP)
    os.kill(rank, signal.SIGKILL)
    await alone.prints("zygote stopped, continuing it")
    (alone.folder / "go-3").touch()
    assert await launcher.code() == 0
    assert "repaired step=2" in alone.printed


def test_a_zygote_that_is_stopped_again_and_again_is_ended() -> None:
    """The zygote is followed by another one, as after each end of a zygote. One that has gone on by itself is left alone."""
    pod = Mock(_is_zygote_stopped=True, _zygote_stops=[])
    for _ in range(STARTS):
        Pod._rouse_zygote(pod)
    assert pod._processes.signal_zygote.mock_calls == [*(STARTS - 1) * [call(signal.SIGCONT)], call(signal.SIGKILL)]
    pod._is_zygote_stopped = False
    Pod._rouse_zygote(pod)
    assert pod._processes.signal_zygote.call_count == STARTS


# Spares.


async def test_a_spare_that_is_killed_while_it_waits_is_followed_by_another_one(alone: Standalone, tmp_path: Path) -> None:
    """A killed spare is followed by another one in a moment, and not at the next fault."""
    text = "import os\nos.write(1, f'spare {os.getpid()}\\n'.encode())\n" + NO_TORCH + WAITS + "wait_for('ends')"
    launcher = await alone.start("--spares=1", script=script(tmp_path, text), ranks=1, LIMITS="launcher.pod.SPARE_SECONDS=0.1")
    await alone.prints("spare parked")
    await ready(alone, 0)
    (spare,) = set(map(int, re.findall(r"^spare (\d+)$", alone.printed, re.MULTILINE))) - set(pids(alone, "ready", 0))
    os.kill(spare, signal.SIGKILL)
    await alone.prints("spare ended early, starting another code=-9")
    async with asyncio.timeout(60):
        while alone.printed.count("spare parked") < 2:
            await asyncio.sleep(0.01)
    (alone.folder / "ends").touch()
    assert await launcher.code() == 0


async def test_spares_that_fail_again_and_again_are_given_up(alone: Standalone, tmp_path: Path) -> None:
    """Spares that fail are given up with the code of the last one, and the job goes on without spares."""
    text = 'import os, sys\nif b"RANK" not in os.environ._data:\n    sys.exit(5)\n' + NO_TORCH + "wait_for('ends')"
    launcher = await alone.start("--spares=1", script=script(tmp_path, text), ranks=1, LIMITS="launcher.pod.SPARE_SECONDS=0.1")
    await alone.prints("spare ended early, not replaced code=5")
    assert alone.printed.count("spare ended early, starting another code=5") == 3
    (alone.folder / "ends").touch()
    assert await launcher.code() == 0


# Processes of the script's own.

MAKES = """
import os, sys, torch, torch.multiprocessing
from torch.utils.data import DataLoader, TensorDataset
import rekindle_training

def help(index, text):
    os.write(1, f"{text} {index}\\n".encode())

def train(_index=0):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rekindle_training.session(model, optimizer, checkpoint_every=0) as training:
        for step in training.steps(1):
            with step:
                if sys.argv[1] == "helpers":
                    torch.multiprocessing.spawn(help, ("helped",), nprocs=2)
                elif sys.argv[1] in ("forkserver", "spawn", "fork"):
                    data = TensorDataset(torch.arange(4))
                    batches = DataLoader(data, num_workers=1, multiprocessing_context=sys.argv[1])
                    help(len(list(batches)), "batches")
                model(torch.ones(2)).sum().backward()
                optimizer.step()

if __name__ == "__main__":
    if sys.argv[1] == "ranks":
        torch.multiprocessing.spawn(train, nprocs=2)
    else:
        train()
"""


@pytest.mark.parametrize(
    ("makes", "said"),
    [("helpers", "helped 1"), ("forkserver", "batches 4"), ("spawn", "batches 4"), ("fork", "batches 4")],
)
async def test_a_rank_makes_processes_in_every_way(makes: str, said: str, alone: Standalone, tmp_path: Path) -> None:
    """A rank can make processes by torch's `spawn` and by a data loader, in any context."""
    await alone.start("--spares=1", script=script(tmp_path, MAKES.replace("sys.argv[1]", repr(makes))), ranks=1)
    assert await alone.started[0].code() == 0
    assert said in alone.printed
    assert "training is complete" in alone.printed


async def test_a_script_that_starts_its_ranks_itself_is_refused(alone: Standalone, tmp_path: Path) -> None:
    """The script is refused, since the launcher has started its ranks."""
    printed = await alone.run(code=1, script=script(tmp_path, MAKES.replace("sys.argv[1]", repr("ranks"))), ranks=1)
    assert "this process was made by rank 0 and is none itself: `rekindle-train --nproc-per-node N` starts the ranks" in printed
