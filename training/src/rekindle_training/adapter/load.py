"""Reads a checkpoint as plain state dicts: without a session, a process group, the ranks that wrote it, or their devices."""

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from rekindle_training.adapter.checkpoint import COMMON, CheckpointUnreadable, complete, name_of
from rekindle_training.adapter.failure_text import FAILURES, cause_in_words
from rekindle_training.adapter.skeleton import named, put_together

ACCEPTED = (
    "accepted are a checkpoint (a folder such as step-00000020), a folder of checkpoints, and a job's folder (REKINDLE_JOB_DIR)"
)
_COMMON = re.compile(rf"(rank-\d+\.)?{COMMON}")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the state dicts of a checkpoint, with whole tensors in the host's memory.

    A checkpoint is read by `pickle`: load none from an untrusted source.

    Args:
        path: a checkpoint; or a folder of checkpoints, or that of a job, of which the newest is read.

    Returns:
        `step`; `model` as `load_state_dict` of the bare model takes it; `optimizer`, one of torch's with the names of its
        parameters; `state[0]` and so on, as the session was given them. Where ranks had different parts of the state
        (`session(replicas=...)`): `step`, and in `ranks` all this of each part, by the lowest rank that had it.

    Raises:
        FileNotFoundError: no checkpoint is there.
        CheckpointUnreadable: the checkpoint is damaged, or of another program.
    """
    folder = _checkpoint(Path(path))
    parts = [common for common in folder.iterdir() if _COMMON.fullmatch(common.name)]
    if not parts:
        raise CheckpointUnreadable(f"load({str(path)!r}): {folder} was not written by a session of Rekindle; {ACCEPTED}")
    try:
        tensors: dict[str, Any] = {}
        _load_state_dict(tensors, FileSystemReader(folder), no_dist=True, planner=_EmptyStateDictLoadPlanner())
        states = {common.name.removesuffix(COMMON): _state(common, tensors) for common in sorted(parts)}
    except FAILURES as error:
        raise CheckpointUnreadable(f"checkpoint {folder}: {cause_in_words(error)}") from error
    if [*states] == [""]:
        return states[""]
    step = {state.pop("step") for state in states.values()}.pop()
    return {"step": step, "ranks": {int(prefix[len("rank-") : -1]): state for prefix, state in states.items()}}


def _checkpoint(path: Path) -> Path:
    if not path.is_dir():
        problem = "a file" if path.exists() else "not there"
        raise FileNotFoundError(f"load({str(path)!r}): it is {problem}; {ACCEPTED}")
    if path.name.startswith(".step-"):
        raise CheckpointUnreadable(f"load({str(path)!r}): this checkpoint was not written to its end; {ACCEPTED}")
    if (path / ".metadata").exists():
        return path
    for folder in (path / "checkpoints", path):
        if steps := complete(folder):
            return folder / name_of(max(steps))
    raise FileNotFoundError(f"load({str(path)!r}): no complete checkpoint is in it; {ACCEPTED}")


def _state(common: Path, tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """State that one rank has written for all ranks that have the same.

    Args:
        tensors: of all ranks, by the part of the state, and by their names there.
    """
    _, skeleton, slots, *more = pickle.loads(common.read_bytes())
    if not more:
        raise ValueError("written by an earlier release; let the job go on from it, and load the next one")
    (about,) = more
    prefix = common.name.removesuffix(COMMON)
    whole: list[Any] = [None] * len(slots)
    for part, content in named(skeleton, range(len(slots))).items():
        for name, index in content.items():
            whole[index] = tensors[part][name if slots[index].spread is not None else prefix + name]
    state = put_together(skeleton, whole)
    model = {name: tensor for name, tensor in state["model"].items() if name not in about["transient"]}
    extra = {f"{name}._extra_state".removeprefix("."): content for name, content in state["extra"].items()}
    given = {name: content for name, content in state.items() if name.startswith("state[")}
    shared = {name: content["state"] if name in about["modules"] else content for name, content in given.items()}
    return {"step": about["step"], "model": {**model, **extra}, "optimizer": state["optimizer"], **shared}
