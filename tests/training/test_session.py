"""What a script writes: its loop over steps and epochs, and what the session says of a wrong one."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rekindle_training
from rekindle_training.adapter.step import Step
from rekindle_training.environment import EnvironmentIncomplete

SCRIPT = """
import sys
import torch
import rekindle_training

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def say(*words):
    print("say", *words, flush=True)

def train():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

with rekindle_training.session(model, optimizer, checkpoint_every=2) as training:
    {loop}
"""

REPAIRED = str(Path(__file__).with_name("repaired.py"))
LAUNCHED = {
    "REKINDLE_LAUNCHER": "rekindle-train",
    "REKINDLE_PROCESS": "a-process",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


def run(folder: Path, loop: str) -> list[str]:
    """What one rank says that trains with this loop; a second run goes on at the newest checkpoint."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(loop=loop.strip().replace("\n", "\n    ")))
    command = [sys.executable, "-m", "rekindle_training.launcher.main", "--standalone", str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("say ") for line in done.stdout.splitlines() if line.startswith("say ")]


def opened(**arguments: object) -> None:
    model = torch.nn.Linear(1, 1)
    with rekindle_training.session(model, torch.optim.SGD(model.parameters()), **arguments):  # type: ignore[arg-type]
        raise AssertionError("it did not refuse")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REKINDLE_CHECKPOINT_EVERY", raising=False)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)


def test_a_loop_over_epochs_goes_on_where_a_checkpoint_was_written(tmp_path: Path) -> None:
    """Each epoch has its steps, counted over the whole training; a restarted job begins inside the epoch of its checkpoint."""
    loop = """
for epoch in training.epochs({epochs}, 3):
    for step in epoch:
        train()
        say(epoch, step)
    say("evaluates", epoch)
"""
    assert run(tmp_path, loop.format(epochs=2)) == ["0 1", "0 2", "0 3", "evaluates 0", "1 4", "1 5", "1 6", "evaluates 1"]
    (tmp_path / "checkpoints" / "step-00000006").rename(tmp_path / "later")
    assert run(tmp_path, loop.format(epochs=3)) == ["1 5", "1 6", "evaluates 1", "2 7", "2 8", "2 9", "evaluates 2"]


def test_steps_that_are_counted_anew_in_each_epoch_are_refused(tmp_path: Path) -> None:
    """`steps` counts over the whole training: a second loop over it would train nothing, without a word. One that goes further
    trains on."""
    loop = """
import gc
say(gc.get_freeze_count() > 100_000)
for total in (2, 4, 4):
    try:
        for step in training.steps(total):
            train()
            say(step)
    except RuntimeError as error:
        say(error)
"""
    frozen, *steps, refusal = run(tmp_path, loop)
    assert frozen == "True", "no collection walks over all of torch"
    assert steps == ["1", "2", "3", "4"]
    assert refusal.startswith("training.steps(4): 4 steps are done")
    assert "training.epochs(" in refusal


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("given", "words"), [({}, "missing"), ({"checkpoint_every": -1}, "-1 is not accepted")])
def test_a_session_wants_to_know_how_often_a_checkpoint_is_written(given: dict[str, int], words: str) -> None:
    """None at all is a choice that costs the whole training once there is no replica: nobody makes it by forgetting."""
    with pytest.raises(ValueError, match=rf"session\(checkpoint_every\): {words}; .*REKINDLE_CHECKPOINT_EVERY"):
        opened(**given)


@pytest.mark.usefixtures("launched")
def test_a_process_group_of_the_scripts_own_is_refused() -> None:
    """The session makes the group: a left-over `init_process_group` is named."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="leave `init_process_group` out"):
            opened(checkpoint_every=0)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("launched")
def test_a_rank_that_torchrun_started_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has every variable that a rank needs, and no manager: it waited for one without a word."""
    monkeypatch.delenv("REKINDLE_LAUNCHER")
    with pytest.raises(EnvironmentIncomplete, match="was not started by `rekindle-train`"):
        opened(checkpoint_every=0)


def test_a_step_is_entered_once_and_in_its_turn(tmp_path: Path) -> None:
    """What a step goes back to is remembered when it is entered."""
    loop = """
for step in training.steps(2):
    with step:
        train()
    try:
        with step:
            train()
    except RuntimeError as error:
        say(error)
"""
    assert run(tmp_path, loop) == [f"with step: step {step} is entered once, in its own turn of the loop" for step in (1, 2)]


def test_a_step_travels_as_its_number() -> None:
    """Into a file, or to another process: the session stays where it is."""
    step = Step(7, None)  # type: ignore[arg-type]
    assert (pickle.loads(pickle.dumps(step)), type(copy.deepcopy(step))) == (7, int)


@pytest.mark.same_path("a rank leaves its loop in the middle of a step")
@pytest.mark.parametrize(
    ("place", "words"),
    [("leaving", "training did not get beyond step 4 in 3 tries"), ("breaking", "the loop was left in step 5")],
)
def test_a_rank_that_leaves_the_loop_in_a_step_ends_the_job(place: str, words: str, tmp_path: Path) -> None:
    """With an exit code of 0, or by `break` while another rank has failed: nobody waits for it, nor does who replaces it get
    further, and the job ends."""
    launcher = (sys.executable, "-m", "rekindle_training.launcher.main")
    command = [*launcher, "--standalone", "--nproc-per-node=2", "--start-method=fork", REPAIRED]
    environment = {**os.environ, "REKINDLE_JOB_DIR": str(tmp_path), "FAULTS": f"1:5:{place}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
