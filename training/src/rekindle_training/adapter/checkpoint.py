"""Periodic checkpoints: written by all ranks together, complete or absent, bit-exact to continue from. Called by the session.

`checkpoints/step-00000020/` appears by one rename when everything in it is on the disk, so a folder of that name is complete.
The newest of them is where a restarted job begins; the last two are kept.
"""

import os
import pickle
import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from rekindle_training.adapter.skeleton import destinations, named, put_together, slot_of, taken_apart
from rekindle_training.adapter.state import State

KEEP = 2
_COMMON = "common"
_NAME = re.compile(r"step-(\d{8})")


class Checkpoints:
    """The checkpoints of one job, seen from one rank. Every call is made by all ranks of a generation together."""

    def __init__(self, job_dir: Path | None, rank: int) -> None:
        self._folder = (job_dir or Path.cwd()) / "checkpoints"
        self._rank = rank

    def newest(self) -> int:
        """The step of the newest complete checkpoint, 0 if there is none. Rank 0 looks, so that all ranks see the same."""
        found = torch.zeros(1, dtype=torch.int64)
        if self._rank == 0:
            found[0] = max(self._complete(), default=0)
        dist.broadcast(found, 0)
        return int(found.item())

    def write(self, step: int, state: State, own: bytes) -> None:
        """What all ranks have in common, its tensors as other tools read them, and what this rank has for itself."""
        skeleton, tensors = taken_apart(state)
        scratch = self._folder / f".{_name(step)}"
        if self._rank == 0:
            self._clear()
            scratch.mkdir(parents=True)
            _write_durably(scratch / _COMMON, pickle.dumps((skeleton, [slot_of(tensor) for tensor in tensors])))
        dist.barrier()
        dcp.save(named(skeleton, tensors), checkpoint_id=scratch)
        _write_durably(scratch / self._own_name(), own)
        dist.barrier()
        if self._rank == 0:
            self._publish(scratch, step)

    def read(self, step: int, mine: State) -> tuple[State, bytes]:
        """What all ranks have in common, and this rank's own state.

        Args:
            mine: this rank's state; tensors of it that are alike are filled in place.
        """
        folder = self._folder / _name(step)
        skeleton, slots = pickle.loads((folder / _COMMON).read_bytes())  # written by the same job
        tensors = destinations(skeleton, slots, mine)
        dcp.load(named(skeleton, tensors), checkpoint_id=folder)
        return put_together(skeleton, tensors), (folder / self._own_name()).read_bytes()

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
