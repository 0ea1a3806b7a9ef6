"""State that a restarted job reads from its checkpoint, with optimizers of every kind, and other readers of a checkpoint."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from rekindle_training.adapter.checkpoint import Checkpoints, CheckpointUnreadable
from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.launcher_memory import LauncherMemory
from rekindle_training.adapter.trained import Trained
from tests.training.trained_ranks import adam, torch_optimizer, written_and_read


class Plain(torch.optim.Optimizer):
    """An optimizer that does not support closures."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter].setdefault("kept", torch.zeros_like(parameter))
            parameter.data -= 0.01 * kept.add_(parameter.grad)


def a_table(optimizer_of: Callable[..., torch.optim.Optimizer], *, sparse: bool) -> Trained:
    torch.manual_seed(0)
    model = torch.nn.Embedding(5, 3, sparse=sparse)
    return Trained(model, optimizer_of(model.parameters()))


def look_up(rank: Trained) -> None:
    def loss() -> torch.Tensor:
        torch_optimizer(rank).zero_grad()
        found: torch.Tensor = rank.model(torch.tensor([0, 3])).pow(2).sum()
        found.backward()
        return found

    if isinstance(rank.optimizer, torch.optim.LBFGS):
        rank.optimizer.step(loss)
    else:
        loss()
        torch_optimizer(rank).step()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("optimizer_of", [torch.optim.LBFGS, torch.optim.SparseAdam, Plain])
def test_optimizers_that_cannot_step_without_a_gradient_go_on_from_a_checkpoint(
    tmp_path: Path, optimizer_of: Callable[..., torch.optim.Optimizer]
) -> None:
    """Optimizers that cannot make the empty step with which torch's own reader begins are restored from a checkpoint."""
    before, after = (a_table(optimizer_of, sparse=optimizer_of is torch.optim.SparseAdam) for _ in range(2))
    for _ in range(2):
        look_up(before)
    written_and_read(before, after, tmp_path)
    for rank in (before, after):
        look_up(rank)
    assert digest(after.collect()) == digest(before.collect())


@pytest.mark.usefixtures("group")
def test_a_checkpoint_of_other_objects_is_not_taken(tmp_path: Path) -> None:
    """A checkpoint of other objects is refused. State of removed objects would be lost in silence, and new objects would have no
    state."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    Checkpoints(tmp_path, 0, 1, Trained(model, optimizer, shared={"state[0]": scheduler}), None, LauncherMemory(None)).write(3)
    for others in (Trained(model, optimizer), Trained(model, adam(model), shared={"state[0]": scheduler})):
        with pytest.raises(
            CheckpointUnreadable, match=r"step-00000003: rank 0: ValueError: written of other objects \(model: Linear"
        ):
            Checkpoints(tmp_path, 0, 1, others, None, LauncherMemory(None)).read(3)


@pytest.mark.usefixtures("group")
def test_a_checkpoint_of_another_number_of_ranks_is_not_taken(tmp_path: Path) -> None:
    """Positions in the data would be lost."""
    model = torch.nn.Linear(2, 2)
    rank = Trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    Checkpoints(tmp_path, 0, 1, rank, None, LauncherMemory(None)).write(3)
    (tmp_path / "checkpoints" / "step-00000003" / "rank-00001.own").touch()
    with pytest.raises(CheckpointUnreadable, match="written by 2 ranks, and there are 1"):
        Checkpoints(tmp_path, 0, 1, rank, None, LauncherMemory(None)).read(3)


@pytest.mark.usefixtures("group")
def test_a_checkpoint_is_read_by_other_tools(tmp_path: Path) -> None:
    """Torch's own reader of distributed checkpoints reads it, with the names that parameters have in the model, tied ones
    included."""
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "last": torch.nn.Linear(2, 2)})
    model["last"].weight = model["first"].weight
    rank = Trained(model, adam(model))
    model["first"](model["last"](torch.ones(1, 2))).sum().backward()
    torch_optimizer(rank).step()
    Checkpoints(tmp_path, 0, 1, rank, None, LauncherMemory(None)).write(3)
    found = {"model": {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}}
    moment = {"state.first.weight.exp_avg": torch.zeros(2, 2)}
    dcp.load({**found, "optimizer": moment}, checkpoint_id=tmp_path / "checkpoints" / "step-00000003")
    assert digest(found["model"]) == digest(dict(model.state_dict()))
    expected = torch_optimizer(rank).state[model.get_parameter("first.weight")]["exp_avg"]
    assert torch.equal(moment["state.first.weight.exp_avg"], expected)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Function that mounts something on a folder, so that it cannot be renamed."""
    mounted: list[Path] = []

    def busy(folder: Path) -> None:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        mounted.append(folder)

    yield busy
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.usefixtures("group")
def test_an_older_checkpoint_that_cannot_be_removed_keeps_no_newer_one_from_being_written(
    tmp_path: Path, busy: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The old one stays, and the log says so."""
    model = torch.nn.Linear(2, 2)
    checkpoints = Checkpoints(tmp_path, 0, 1, Trained(model, adam(model)), None, LauncherMemory(None))
    checkpoints.write(1)
    busy(tmp_path / "checkpoints" / "step-00000001")
    for step in (2, 3):
        checkpoints.write(step)
    assert checkpoints.newest() == 3
    assert "step-00000001 cannot be removed: Device or resource busy" in caplog.text


@pytest.mark.usefixtures("group")
def test_a_damaged_checkpoint_that_cannot_be_renamed_does_not_count(
    tmp_path: Path, busy: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The next checkpoint after the same step is written nevertheless."""
    model = torch.nn.Linear(2, 2)
    checkpoints = Checkpoints(tmp_path, 0, 1, Trained(model, adam(model)), None, LauncherMemory(None))
    for step in (1, 2):
        checkpoints.write(step)
    (damaged := tmp_path / "checkpoints" / "step-00000002").joinpath("common").write_bytes(b"")
    busy(damaged)
    checkpoints.set_aside([2])
    assert checkpoints.newest() == 1
    assert "step-00000002 cannot be renamed, it is ignored: Device or resource busy" in caplog.text


@pytest.mark.usefixtures("group")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A job does not begin again from the start where its checkpoints cannot be read."""
    (tmp_path / "checkpoints").symlink_to("checkpoints")
    model = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointUnreadable, match=rf"checkpoints in {tmp_path}/checkpoints: rank 0: OSError: .*symbolic links"):
        Checkpoints(tmp_path, 0, 1, Trained(model, adam(model)), None, LauncherMemory(None)).newest()
