"""The PyTorch adapter: state, checkpoints, the step log and what a user's script has to change."""

import difflib
import json
from contextlib import closing
from pathlib import Path

import pytest
import torch

from rekindle_training import examples
from rekindle_training.adapter import own, state
from rekindle_training.adapter.step_log import StepLog
from rekindle_training.environment import RankEnvironment
from rekindle_training.examples.gpt_model import at_least

EXAMPLES = Path(examples.__path__[0])


def rank_environment(folder: Path) -> RankEnvironment:
    return RankEnvironment.read(
        {
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


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_an_adapted_script_differs_in_a_handful_of_lines() -> None:
    """The example with the session is the plain one with few lines replaced, none of them inside the training step."""
    plain, adapted = ((EXAMPLES / name).read_text().splitlines() for name in ("gpt_plain.py", "gpt.py"))
    code = [line for line in difflib.ndiff(plain, adapted) if line[:2] in ("+ ", "- ")]
    added = [line for line in code if line.startswith("+ ") and line[2:].strip()]
    assert len(added) <= 14, "\n".join(added)


def test_a_step_of_the_example_keeps_its_pace_until_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the rest of its time, and no more once the file is there."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    for _ in range(2):
        with at_least(1e6, str(tmp_path / "told")):
            pass
        (tmp_path / "told").touch()
    assert len(waits) == 1


def test_the_digest_sees_every_tensor_and_number() -> None:
    """One changed bit of a parameter, of an optimizer's moment or of a learning rate changes the digest."""
    digests = set()
    for change in range(4):
        model, optimizer = trained()
        moment = next(iter(optimizer.state.values()))["exp_avg"]
        with torch.no_grad():
            if change == 1:
                model.weight.view(-1)[:1].view(torch.uint8)[0] ^= 1  # type: ignore[operator]
            if change == 2:
                moment.view(-1)[:1].view(torch.uint8)[0] ^= 1
        if change == 3:
            optimizer.param_groups[0]["lr"] *= 1.0000001
        digests.add(state.digest(state.collect(model, optimizer, None)))
    assert len(digests) == 4


def test_own_state_brings_every_random_number_back() -> None:
    """After a restoration python, numpy and torch draw what they would have drawn."""
    import random

    import numpy as np

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    content = own.capture(None, None)
    drawn = draw()
    own.restore(content, None, None)
    assert draw() == drawn


def test_a_step_is_logged_with_who_where_and_when(tmp_path: Path) -> None:
    """One JSON line a step; a line that a killed process left torn neither counts nor swallows the next one."""
    path = tmp_path / "steps" / "rank-00002.jsonl"
    with closing(StepLog(rank_environment(tmp_path))) as log:
        log.record(7, 1.5, 2.5, 3)
    with path.open("a") as torn:
        torn.write('{"rank": 2, "st')
    with closing(StepLog(rank_environment(tmp_path))) as log:
        assert log.last_step() == 7
        log.record(8, 3.0, 4.0, 4)
        assert log.last_step() == 8
    first, _, third = path.read_text().splitlines()
    assert json.loads(first).items() >= {
        "rank": 2, "step": 7, "start": 1.5, "end": 2.5, "pod": "pod", "pod_uid": "uid", "node": "node", "generation": 3,
    }.items()  # fmt: skip
    assert json.loads(third)["step"] == 8
