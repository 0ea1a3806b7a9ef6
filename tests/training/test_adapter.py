"""The PyTorch adapter: state, checkpoints, the step log and what a user's script has to change."""

import difflib
import json
import pickle
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from rekindle_training import examples
from rekindle_training.adapter import own
from rekindle_training.adapter.checkpoint import Checkpoints
from rekindle_training.adapter.communicator import Communicator, warm
from rekindle_training.adapter.comparison import Comparison
from rekindle_training.adapter.data_parallel import DataParallel
from rekindle_training.adapter.entry import Entry
from rekindle_training.adapter.fully_sharded import FullySharded
from rekindle_training.adapter.launcher_memory import LauncherMemory
from rekindle_training.adapter.loop import Training
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.step_log import StepLog
from rekindle_training.adapter.team import Team
from rekindle_training.adapter.trained import Trained
from rekindle_training.environment import RankEnvironment
from rekindle_training.examples.gpt_model import at_least
from rekindle_training.processor.processor import Processor
from rekindle_training.processor.stretches import Stretch

EXAMPLES = Path(examples.__path__[0])

STRETCH = Stretch(began=1.0, ended=2.5, steps=1)


def rank_environment(folder: Path) -> RankEnvironment:
    return RankEnvironment.read(
        {
            "REKINDLE_LAUNCHER": "rekindle-train",
            "REKINDLE_PROCESS": "a-process",
            "RANK": "2",
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "REKINDLE_JOB_DIR": str(folder),
            "REKINDLE_POD_NAME": "pod",
            "REKINDLE_POD_UID": "uid",
            "REKINDLE_NODE": "node",
        }
    )


def test_an_adapted_script_differs_in_a_handful_of_lines() -> None:
    """The example with the session is the plain one with few lines replaced, none of them inside the training step."""
    plain, adapted = ((EXAMPLES / name).read_text().splitlines() for name in ("gpt_plain.py", "gpt.py"))
    code = [line for line in difflib.ndiff(plain, adapted) if line[:2] in ("+ ", "- ")]
    added = [line for line in code if line.startswith("+ ") and line[2:].strip()]
    assert len(added) <= 14, "\n".join(added)


def test_a_step_of_the_example_keeps_its_pace_until_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for the rest of its time, and for the rest of another time once the file has one."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    for told in ("2e6", "0", ""):
        with at_least(1e6, str(tmp_path / "told")):
            pass
        (tmp_path / "told").write_text(told)
    assert [round(wait, -1) for wait in waits] == [1000, 2000, 0]


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_own_state_brings_every_random_number_back() -> None:
    """Python, numpy and torch draw the same numbers after a restoration as they would have drawn before."""
    content = own.take(None, None)
    drawn = draw()
    own.put(content, None, None)
    assert draw() == drawn


DRAWS: list[Callable[[], float]] = [
    random.random,
    lambda: random.gauss(0, 1),
    lambda: float(np.random.rand()),
    lambda: float(np.random.randn()),
    lambda: float(torch.rand(1)),
    lambda: float(torch.randn(1)),
    lambda: float(torch.randn(1, dtype=torch.float64)),
    lambda: float(torch.randn(16)[0]),
    lambda: float(torch.randperm(5)[0]),
    lambda: float(torch.nn.functional.dropout(torch.ones(3)).sum()),
]


@pytest.mark.parametrize("seed", range(20))
def test_a_generator_that_was_not_read_again_has_not_moved(seed: int) -> None:
    """A generator draws the same again, whatever was drawn before, and also after it was set back to an earlier position."""
    order = random.Random(seed)
    for _ in range(50):
        for way in order.choices(DRAWS, k=order.randrange(3)):
            way()
        if order.random() < 0.1:
            random.seed(order.randrange(3))
            np.random.seed(order.randrange(3))
            torch.manual_seed(order.randrange(3))
        content = own.take(None, None)
        ways = order.choices(DRAWS, k=order.randrange(5))
        drawn = [way() for way in ways]
        own.put(content, None, None)
        assert [way() for way in ways] == drawn


def test_own_state_that_has_not_moved_is_taken_once() -> None:
    """Own state is taken twice in each step. The same object is returned, with its bytes, until something moves."""
    before = own.take(None, None)
    assert own.take(None, None) is before
    assert own.take(None, None).pickled is before.pickled
    torch.rand(1)
    after = own.take(None, None)
    assert after != before
    assert pickle.loads(after.pickled) == after


@pytest.mark.parametrize("completed", [0, 5])
def test_the_loop_begins_with_the_random_numbers_that_it_is_to_have(
    completed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that goes on in the middle draws what comes next there, whatever is drawn before the loop, such as a data loader's
    seed."""
    monkeypatch.setattr(Communicator, "watch", lambda _: None)
    monkeypatch.setattr(DataParallel, "watch", lambda _: None)
    monkeypatch.setattr(Processor, "start", lambda _: None)
    model = torch.nn.Linear(1, 1)
    trained = Trained(model, torch.optim.SGD(model.parameters(), lr=1))
    entry = Entry.of(rank_environment(tmp_path))
    rank = Rank.of(entry, trained, DataParallel(), FullySharded([model]), None, None, keeps_own_checkpoints=False)
    training = Training(
        rank,
        Checkpoints(tmp_path, 0, 1, trained, None, LauncherMemory(None)),
        0,
        Comparison(trained, 0, lambda: Team.of((), 1), None),
        repeats_updates=False,
    )
    training._processor.generation = 1
    training._gate.complete(completed)
    training._gate.open()
    training.begin()
    before = own.take(None, None)
    expected = [draw() for _ in range(2)]
    own.put(before, None, None)
    draw()
    next(training.steps(10))
    training._step_log.close()
    assert draw() == (expected[0] if completed else expected[1])


def test_what_is_warmed_draws_no_random_number() -> None:
    """A script seeds before its session, and trains as it would without one."""
    content = own.take(None, None)
    drawn = draw()
    own.put(content, None, None)
    warm()
    assert draw() == drawn


def test_a_step_is_logged_with_who_where_and_when(tmp_path: Path) -> None:
    """One JSON line a step; a line that a killed process left torn neither counts nor swallows the next one."""
    path = tmp_path / "steps" / "rank-00002.jsonl"
    with closing(StepLog(rank_environment(tmp_path))) as log:
        log.record(7, 1.5, 2.5, 3, STRETCH)
    with path.open("a") as torn:
        torn.write('{"rank": 2, "st')
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_step() == 7
        assert log.last_stretch() == STRETCH
        log.record(8, 3.0, 4.0, 4, STRETCH)
        assert log.last_step() == 8
    first, _, third = path.read_text().splitlines()
    assert json.loads(first).items() >= {
        "rank": 2, "step": 7, "start": 1.5, "end": 2.5, "pod": "pod", "pod_uid": "uid", "node": "node", "generation": 3,
    }.items()  # fmt: skip
    assert json.loads(third)["step"] == 8


@pytest.mark.parametrize("wrong", [{"end": float("nan")}, {"end": 0.5}, {"began": -1}, {"again": float("inf")}, {"steps": None}])
def test_a_stretch_that_cannot_be_is_not_read(tmp_path: Path, wrong: dict[str, object]) -> None:
    """The line of a stretch in a damaged step log. The gateway would refuse a report with it."""
    path = tmp_path / "steps" / "rank-00002.jsonl"
    path.parent.mkdir()
    line = {"step": 7, "end": 2.5, "began": 1.0, "steps": 1, "checkpoint": 0.0, "again": 0.0}
    path.write_text(json.dumps(line) + "\n")
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_stretch() == STRETCH
    path.write_text(json.dumps({**line, **wrong}) + "\n")
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_stretch() is None


def test_a_step_log_that_cannot_be_written_costs_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on when its disk is full or its folder belongs to another user. The log reports that once."""
    (tmp_path / "steps").touch()
    with closing(StepLog(rank_environment(tmp_path))) as log:
        for step in (1, 2):
            log.record(step, 0.0, 1.0, 1, STRETCH)
        assert log.last_step() == 0
    (said,) = caplog.records
    assert "not written, training goes on without it" in said.getMessage()


def test_a_step_log_that_cannot_be_read_costs_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The job begins without knowing which steps it executes again."""
    (tmp_path / "steps" / "rank-00002.older").mkdir(parents=True)
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_step() == 0
    assert "training goes on without it: Is a directory" in caplog.text


def test_of_a_long_step_log_only_the_end_is_read(tmp_path: Path) -> None:
    """A process that starts after a million steps reads no more than any other process. The part before is not even text."""
    path = tmp_path / "steps" / "rank-00002.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"\xff" * 100_000 + b'\n{"step": 41}\n{"step": 42}\n')
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_step() == 42


def test_a_step_log_does_not_grow_beyond_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full file is put aside and the one before it is removed. The last step is known at any time, also right after the
    change."""
    monkeypatch.setattr("rekindle_training.adapter.step_log.LARGEST", 2000)
    with closing(StepLog(rank_environment(tmp_path))) as log:
        for step in range(1, 101):
            log.record(step, 0.0, 0.0, 1, STRETCH)
            assert log.last_step() == step
    sizes = [path.stat().st_size for path in (tmp_path / "steps").iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 2500
    (tmp_path / "steps" / "rank-00002.jsonl").write_text("")
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_step() > 80


def test_steps_that_are_done_again_are_those_of_the_last_process(tmp_path: Path) -> None:
    """A job that went back to its checkpoint twice has lost the second time what it did since the first."""
    for steps in (range(1, 151), range(101, 121)):
        with closing(StepLog(rank_environment(tmp_path))) as log:
            for step in steps:
                log.record(step, 0.0, 0.0, 1, STRETCH)
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_step() == 120
