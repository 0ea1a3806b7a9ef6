"""Periodic checkpoints: written by all ranks together, complete or absent, bit-exact to continue from. Called by the session.

`checkpoints/step-00000020/` appears by one rename when everything in it is on the disk, so a folder of that name is complete.
The newest of them is where a restarted job begins; the last two are kept.
"""

import os
import pickle
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.sharding import Ranks
from rekindle_training.adapter.skeleton import destinations, named, put_together, slot_of, taken_apart
from rekindle_training.adapter.trained import Trained

KEEP = 2
_COMMON = "common"
_NAME = re.compile(r"step-(\d{8})")


class CheckpointStore(Protocol):
    """Where training is written down, in a form of the script's own. Every call is made by all ranks of a generation together."""

    def newest(self) -> int:
        """The step of the newest complete checkpoint, 0 if there is none; the same on all ranks."""

    def write(self, step: int) -> None:
        """What training is behind this step."""

    def read(self, step: int) -> None:
        """Everything is as it was when this checkpoint was written: random numbers and positions, too."""


class Checkpoints:
    """The checkpoints of one job, seen from one rank: a `CheckpointStore`."""

    def __init__(self, job_dir: Path | None, rank: int, trained: Trained, declared: Ranks | None) -> None:
        """Args:
        declared: the ranks that have the same state as this one, where the tensors do not tell; None: they do.
        """
        self._folder = (job_dir or Path.cwd()) / "checkpoints"
        self._rank = rank
        self._trained = trained
        self._first = 0 if declared is None else min(declared)
        """Of those that have this rank's state, it writes what is no tensor."""
        self._part = "" if declared is None else f"rank-{self._first:05d}."

    def newest(self) -> int:
        """The step of the newest complete checkpoint, 0 if there is none. Rank 0 looks, so that all ranks see the same."""
        found = torch.zeros(1, dtype=torch.int64)
        if self._rank == 0:
            found[0] = max(self._complete(), default=0)
        dist.broadcast(found, 0)
        return int(found.item())

    def write(self, step: int) -> None:
        """What all ranks have in common, its tensors as other tools read them, and what this rank has for itself."""
        skeleton, tensors = taken_apart(self._trained.collect())
        scratch = self._folder / f".{_name(step)}"
        if self._rank == 0:
            self._clear()
            scratch.mkdir(parents=True)
        dist.barrier()
        if self._rank == self._first:
            _write_durably(scratch / (self._part + _COMMON), pickle.dumps((skeleton, [slot_of(tensor) for tensor in tensors])))
        dcp.save(self._named(skeleton, tensors), checkpoint_id=scratch)
        _write_durably(scratch / self._own_name(), pickle.dumps(self._trained.take_own()))
        dist.barrier()
        if self._rank == 0:
            self._publish(scratch, step)

    def read(self, step: int) -> None:
        """Tensors that are alike are filled in place."""
        folder = self._folder / _name(step)
        skeleton, slots = pickle.loads((folder / (self._part + _COMMON)).read_bytes())  # written by the same job
        tensors = destinations(skeleton, slots, self._trained.collect())
        dcp.load(self._named(skeleton, tensors), checkpoint_id=folder)
        self._trained.place(put_together(skeleton, tensors))
        self._trained.put_own(pickle.loads((folder / self._own_name()).read_bytes()))

    def _named(self, skeleton: Any, tensors: Sequence[torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
        """What others have as well under the same names, and what only replicas of this rank have under names of their own."""
        return {
            part: {name if isinstance(tensor, DTensor) else self._part + name: tensor for name, tensor in content.items()}
            for part, content in named(skeleton, tensors).items()
        }

    def _publish(self, scratch: Path, step: int) -> None:
        _sync_folder(scratch)
        final = self._folder / _name(step)
        shutil.rmtree(final, ignore_errors=True)
        scratch.rename(final)
        _sync_folder(self._folder)
        for old in sorted(self._complete())[:-KEEP]:
            shutil.rmtree(self._folder / _name(old))

    def _complete(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(match[1]) for entry in self._folder.iterdir() if (match := _NAME.fullmatch(entry.name))]

    def _clear(self) -> None:
        """What a killed job left half-written."""
        for leftover in self._folder.glob(".step-*"):
            shutil.rmtree(leftover)

    def _own_name(self) -> str:
        return f"rank-{self._rank:05d}.own"


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
