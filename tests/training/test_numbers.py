"""Numbers of steps and epochs in the files that a script writes."""

import copy
import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml

from rekindle_training.adapter.loop import Epoch
from rekindle_training.adapter.step import Step

STEP, EPOCH = Step(7, None), Epoch(3, iter([]))  # type: ignore[arg-type]

READER = """
import json, pickle, sys, warnings
from pathlib import Path
import torch, yaml
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
found = {
    "zip": torch.load(folder / "zip"),
    "legacy": torch.load(folder / "legacy"),
    "pickle": pickle.loads((folder / "pickle").read_bytes()),
    "yaml": yaml.safe_load((folder / "yaml").read_text()),
    "safe yaml": yaml.safe_load((folder / "safe yaml").read_text()),
    "json": json.loads((folder / "json").read_text()),
}
kept = {"step": 0, "nested": {"epoch": 0}}
dcp.load(kept, checkpoint_id=folder / "dcp")
found["dcp"] = kept
assert "rekindle_training" not in sys.modules
def kinds(value):
    return {key: kinds(item) for key, item in value.items()} if isinstance(value, dict) else [type(value).__name__, value]
print(json.dumps({name: kinds(content) for name, content in found.items()}))
"""


def test_a_file_with_a_step_or_an_epoch_holds_plain_integers(tmp_path: Path) -> None:
    """Each writer puts an `int` into its file, which a process without a session reads with the reader's defaults."""
    numbers: dict[str, Any] = {"step": STEP, "nested": {"epoch": EPOCH}}
    torch.save(numbers, tmp_path / "zip")
    torch.save(numbers, tmp_path / "legacy", _use_new_zipfile_serialization=False)
    (tmp_path / "pickle").write_bytes(pickle.dumps(numbers))
    (tmp_path / "yaml").write_text(yaml.dump(numbers))
    (tmp_path / "safe yaml").write_text(yaml.safe_dump(numbers))
    (tmp_path / "json").write_text(json.dumps(numbers))
    with warnings.catch_warnings(action="ignore"):  # there is no process group
        dcp.save(numbers, checkpoint_id=tmp_path / "dcp")
    printed = subprocess.run([sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=True).stdout
    plain = {"step": ["int", 7], "nested": {"epoch": ["int", 3]}}
    assert json.loads(printed) == dict.fromkeys(("zip", "legacy", "pickle", "yaml", "safe yaml", "json", "dcp"), plain)


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_and_numbers_are_saved_side_by_side(tmp_path: Path, zipped: bool) -> None:
    """A scheduler keeps the epoch that it was given, and what is one tensor in two places stays one."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with warnings.catch_warnings(action="ignore"):  # torch would rather have no epoch
        scheduler.step(EPOCH)
    saved = {"scheduler": scheduler.state_dict(), "model": model.state_dict(), "tied": model.weight, EPOCH: [(STEP,), STEP]}
    torch.save(saved, tmp_path / "file", _use_new_zipfile_serialization=zipped)
    found = torch.load(tmp_path / "file")
    assert type(found["scheduler"]["last_epoch"]) is int
    assert (found["scheduler"]["last_epoch"], found[3]) == (3, [(7,), 7])
    assert torch.equal(found["tied"], model.weight)
    assert found["tied"].data_ptr() == found["model"]["weight"].data_ptr()


@pytest.mark.parametrize("number", [STEP, EPOCH])
def test_a_number_of_a_step_or_an_epoch_is_used_as_an_integer(number: int) -> None:
    """Functions that want an `int` take it, and a copy of it is one."""
    plain = int(number)
    assert (number % 2, f"{number:04d}", [*range(number)], {plain: "found"}[number]) == (
        plain % 2,
        f"{plain:04d}",
        [*range(plain)],
        "found",
    )
    assert torch.tensor([number]).tolist() == torch.arange(10)[number].reshape(1).tolist() == [plain]
    assert type(copy.deepcopy(number)) is type(copy.copy(number)) is type(pickle.loads(pickle.dumps(number))) is int
