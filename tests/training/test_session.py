"""Loops that a script writes over steps and epochs, and the errors of the session for a wrong one."""

import pytest
import torch

import rekindle_training
from rekindle_training.environment import EnvironmentIncomplete
from tests.training.standalone import Standalone

SCRIPT = """
import sys
import torch
import rekindle_training

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def say(*words):
    print(" ".join(["say", *map(str, words)]) + "\\n", end="", flush=True)

def train():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

with rekindle_training.session(model, optimizer, checkpoint_every=2) as training:
    {loop}
"""


async def run(alone: Standalone, loop: str) -> list[str]:
    """Runs one rank with this loop, and returns what it says. A second run goes on at the newest checkpoint."""
    alone.folder.mkdir(exist_ok=True)
    (alone.folder / "output.log").unlink(missing_ok=True)
    script = alone.folder / "train.py"
    script.write_text(SCRIPT.format(loop=loop.strip().replace("\n", "\n    ")))
    printed = await alone.run(script=str(script), ranks=1)
    return [line.removeprefix("say ") for line in printed.splitlines() if line.startswith("say ")]


def opened(**arguments: object) -> None:
    model = torch.nn.Linear(1, 1)
    with rekindle_training.session(model, torch.optim.SGD(model.parameters()), **arguments):  # type: ignore[arg-type]
        raise AssertionError("it did not refuse")


async def test_a_loop_over_epochs_goes_on_where_a_checkpoint_was_written(alone: Standalone) -> None:
    """Each epoch has its steps, counted over the whole training; a restarted job begins inside the epoch of its checkpoint."""
    loop = """
for epoch in training.epochs({epochs}, 3):
    for step in epoch:
        train()
        say(epoch, step)
    say("evaluates", epoch)
"""
    assert await run(alone, loop.format(epochs=2)) == ["0 1", "0 2", "0 3", "evaluates 0", "1 4", "1 5", "1 6", "evaluates 1"]
    (alone.folder / "checkpoints" / "step-00000006").rename(alone.folder / "later")
    assert await run(alone, loop.format(epochs=3)) == ["1 5", "1 6", "evaluates 1", "2 7", "2 8", "2 9", "evaluates 2"]


async def test_steps_that_are_counted_anew_in_each_epoch_are_refused(alone: Standalone) -> None:
    """`steps` counts over the whole training. A second loop over it would train nothing in silence. A loop that goes further
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
    frozen, *steps, refusal = await run(alone, loop)
    assert frozen == "True", "no collection walks over all of torch"
    assert steps == ["1", "2", "3", "4"]
    assert refusal.startswith("training.steps(4): 4 steps are done")
    assert "training.epochs(" in refusal


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("given", "words"), [({}, "missing"), ({"checkpoint_every": -1}, "-1 is not accepted")])
def test_a_session_wants_to_know_how_often_a_checkpoint_is_written(given: dict[str, int], words: str) -> None:
    """A missing value is an error, since no checkpoint at all costs the whole training without a replica and must not be
    forgotten."""
    with pytest.raises(ValueError, match=rf"session\(checkpoint_every\): {words}; .*REKINDLE_CHECKPOINT_EVERY"):
        opened(**given)


@pytest.mark.usefixtures("launched")
def test_a_process_group_of_the_scripts_own_is_refused() -> None:
    """The left-over `init_process_group` is named, since the session makes the group."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="leave `init_process_group` out"):
            opened(checkpoint_every=0)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("launched")
def test_a_rank_that_torchrun_started_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that torchrun started has every variable that it needs but no manager. It would otherwise wait for one in
    silence."""
    monkeypatch.delenv("REKINDLE_LAUNCHER")
    with pytest.raises(EnvironmentIncomplete, match="was not started by `rekindle-train`"):
        opened(checkpoint_every=0)


async def test_a_step_is_entered_once_and_in_its_turn(alone: Standalone) -> None:
    """State to go back to is remembered when a step is entered."""
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
    said = dict.fromkeys(await run(alone, loop))  # the second step is rehearsed
    assert list(said) == [f"with step: step {step} is entered once, in its own turn of the loop" for step in (1, 2)]


@pytest.mark.same_path("a rank leaves its loop in the middle of a step")
@pytest.mark.parametrize(
    ("place", "words"),
    [("leaving", "training did not get beyond step 4 in 3 tries"), ("breaking", "the loop was left in step 5")],
)
async def test_a_rank_that_leaves_the_loop_in_a_step_ends_the_job(place: str, words: str, alone: Standalone) -> None:
    """The rank leaves with an exit code of 0, or by `break` while another rank has failed. No rank waits for it, its replacement
    gets no further, and the job ends."""
    launcher = await alone.start(ranks=2, FAULTS=f"1:5:{place}", LIMITS="adapter.shared_vote.VOTE_SECONDS=1")
    assert await launcher.code() != 0
    assert words in alone.printed
