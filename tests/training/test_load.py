"""`rekindle_training.load`: a checkpoint as plain state dicts, in a process that has no job."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

import rekindle_training
from rekindle_training.adapter.checkpoint import Checkpoints, CheckpointUnreadable
from rekindle_training.adapter.launcher_memory import LauncherMemory
from rekindle_training.adapter.trained import Trained
from tests.training.loaded import CONTEXT
from tests.training.scripts.exported import build, evaluated
from tests.training.standalone import Standalone
from tests.training.trained_ranks import adam, torch_optimizer

SCRIPT = str(Path(__file__).with_name("scripts").joinpath("exported.py"))


def read(path: str) -> tuple[int, dict[int, list[Any]]]:
    """Step, and what the bare model and its optimizer make of each part; run in a process of its own."""
    found = rekindle_training.load(path)
    assert not dist.is_initialized()
    parts: dict[int, dict[str, Any]] = found.get("ranks", {0: found})
    return found["step"], {rank: used(part) for rank, part in parts.items()}


def used(state: dict[str, Any]) -> list[Any]:
    model = build()
    model.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(model.parameters())
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    torch.nn.Linear(2, 2).load_state_dict(state["state[1]"])
    moment = optimizer.state[model.get_parameter("0.weight")]["exp_avg"].numpy().tobytes().hex()
    kinds = {type(tensor).__name__ for tensor in state["model"].values()}
    return [evaluated(model), moment, state["state[0]"]["last_epoch"], state["model"]["1._extra_state"], kinds]


def said(printed: str, what: str, rank: int) -> str:
    return next(line.split()[2] for line in printed.splitlines() if line.startswith(f"{what} {rank} "))


@pytest.mark.parametrize(("kind", "parts"), [("ddp", [0]), ("hsdp", [0]), ("parts", [0, 2])])
async def test_a_plain_process_evaluates_what_a_job_has_trained(kind: str, parts: list[int], alone: Standalone) -> None:
    """Tensors are whole, whichever rank held which shard. The bare model computes the same bits, and the optimizer has its
    moments."""
    printed = await alone.run(script=SCRIPT, KIND=kind)
    with CONTEXT.Pool(1) as plain:
        step, found = plain.apply(read, (str(alone.folder),))
    assert step == 4
    assert found == {
        rank: [said(printed, "evaluated", rank), said(printed, "moment", rank), 4, 2.0, {"Tensor", "float"}] for rank in parts
    }


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Folder of a job with two checkpoints."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank = Trained(model := torch.nn.Linear(2, 2), adam(model))
    checkpoints = Checkpoints(tmp_path, 0, 1, rank, None, LauncherMemory(None))
    for step in (1, 2):
        model(torch.ones(1, 2)).sum().backward()
        torch_optimizer(rank).step()
        checkpoints.write(step)
    dist.destroy_process_group()
    return tmp_path


def test_the_newest_checkpoint_of_a_folder_is_loaded(job: Path) -> None:
    """The folder is that of the job, or that of its checkpoints. A single checkpoint is loaded whatever its folder is called."""
    older = shutil.copytree(job / "checkpoints" / "step-00000001", job / "kept")
    paths: dict[str | Path, int] = {str(job): 2, job / "checkpoints": 2, job / "checkpoints" / "step-00000001": 1, older: 1}
    assert {path: rekindle_training.load(path)["step"] for path in paths} == paths


def test_a_process_that_has_a_group_loads_alone(job: Path) -> None:
    """The other ranks of that group need not do so."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group: Any = dist.group.WORLD
    said = group._get_sequence_number_for_group()
    try:
        assert rekindle_training.load(job)["step"] == 2
        assert group._get_sequence_number_for_group() == said
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("nowhere", FileNotFoundError, "it is not there; accepted are a checkpoint"),
        ("file", FileNotFoundError, "it is a file; accepted are"),
        ("empty", FileNotFoundError, "no complete checkpoint is in it; accepted are"),
        ("other", CheckpointUnreadable, "other was not written by a session of Rekindle; accepted are"),
        ("checkpoints/.step-00000003", CheckpointUnreadable, "this checkpoint was not written to its end; accepted are"),
        ("old", CheckpointUnreadable, "old: ValueError: written by an earlier release; let the job go on from it"),
        ("torn", CheckpointUnreadable, "torn: EOFError"),
        ("partial", CheckpointUnreadable, r"partial: FileNotFoundError: .*__0_0\.distcp"),
    ],
)
def test_a_path_without_a_checkpoint_is_refused(path: str, error: type[Exception], words: str, job: Path) -> None:
    """The error says what is wrong with the path, and what is accepted."""
    (job / "file").touch()
    (job / "empty").mkdir()
    step = job / "checkpoints" / "step-00000002"
    shutil.copytree(step, job / "checkpoints" / ".step-00000003")
    for name in ("other", "old", "torn", "partial"):
        shutil.copytree(step, job / name)
    (job / "other" / "common").unlink()
    (job / "old" / "common").write_bytes(b"\x80\x04N\x88K\x00\x87.")  # three values
    (job / "torn" / "common").write_bytes(b"")
    (job / "partial" / "__0_0.distcp").unlink()
    with pytest.raises(error, match=words):
        rekindle_training.load(job / path)
