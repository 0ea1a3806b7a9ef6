"""Periodic checkpoints: written by all ranks together, complete or absent, bit-exact to continue from. Called by the session.

`checkpoints/step-00000020/` appears by one rename when everything in it is on the disk, so a folder of that name is complete.
The newest of them is where a restarted job begins; the last two are kept.
"""

import os
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.legacy import Legacy
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.sharding import Ranks
from rekindle_training.adapter.skeleton import destinations, named, put_together, slot_of, taken_apart
from rekindle_training.adapter.state import State
from rekindle_training.adapter.trained import Trained
from rekindle_training.adapter.words import FAILURES, in_words

KEEP = 2
_COMMON = "common"
_NAME = re.compile(r"step-(\d{8})")


T = TypeVar("T")


class CheckpointUnreadable(RuntimeError):
    """On some rank; the message names it, the checkpoint, and what is wrong. Raised by all ranks."""


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

    def __init__(  # noqa: PLR0913  # who writes what where
        self, job_dir: Path | None, rank: int, world_size: int, trained: Trained, declared: Ranks | None, legacy: Legacy
    ) -> None:
        """Args:
        legacy: where a rank leaves what it has read for itself, should it end before its first step.
        declared: the ranks that have the same state as this one, where the tensors do not tell; None: they do.
        """
        self._folder = (job_dir or Path.cwd()) / "checkpoints"
        self._rank, self._world_size = rank, world_size
        self._trained, self._legacy = trained, legacy
        self._first = 0 if declared is None else min(declared)
        """Of those that have this rank's state, it writes what is no tensor."""
        self._part = "" if declared is None else f"rank-{self._first:05d}."

    def newest(self) -> int:
        """The step of the newest complete checkpoint, 0 if there is none. Rank 0 looks, so that all ranks see the same."""
        return self._newest_of(lambda _: True)

    def older(self, step: int) -> int:
        """The step of the newest complete one before this; 0 if there is none."""
        return self._newest_of(lambda found: found < step)

    def _newest_of(self, counts: Callable[[int], bool]) -> int:
        found = torch.zeros(1, dtype=torch.int64)
        if self._rank == 0:
            found[0] = max(filter(counts, self._complete()), default=0)
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
            slots = [slot_of(tensor) for tensor in tensors]
            _write_durably(scratch / (self._part + _COMMON), pickle.dumps((self._kinds(), skeleton, slots)))
        _by_torch(lambda: dcp.save(self._named(skeleton, tensors), checkpoint_id=scratch))
        _write_durably(scratch / self._own_name(), self._trained.take_own().pickled)
        dist.barrier()
        if self._rank == 0:
            self._publish(scratch, step)

    def read(self, step: int) -> None:
        """Tensors that are alike are filled in place.

        Raises:
            CheckpointUnreadable: on all ranks, if one cannot read its part; some of it may be in place.
        """
        folder = self._folder / _name(step)
        skeleton, tensors, mine = self._together(folder, lambda: self._opened(folder))
        self._together(folder, lambda: _by_torch(lambda: dcp.load(self._named(skeleton, tensors), checkpoint_id=folder)))
        self._together(folder, lambda: self._place(step, put_together(skeleton, tensors), mine))

    def set_aside(self, damaged: Sequence[int]) -> None:
        """These steps have no checkpoint any more; what could not be read is kept under another name."""
        for step in damaged if self._rank == 0 else ():
            folder = self._folder / _name(step)
            shutil.rmtree(aside := folder.with_suffix(".damaged"), ignore_errors=True)
            folder.rename(aside)

    def _place(self, step: int, common: State, mine: Own) -> None:
        self._trained.place(common)
        self._trained.put_own(mine)
        self._legacy.leave(step, mine.pickled)

    def _opened(self, folder: Path) -> tuple[Any, list[torch.Tensor], Own]:
        wrote = len(list(folder.glob("rank-*.own")))
        if wrote != self._world_size:
            raise ValueError(f"written by {wrote} ranks, and there are {self._world_size}")
        kinds, skeleton, slots = pickle.loads((folder / (self._part + _COMMON)).read_bytes())  # written by the same job
        if kinds != (here := self._kinds()):
            theirs, ours = (", ".join(f"{name}: {kind}" for name, kind in one.items()) for one in (kinds, here))
            raise ValueError(f"written of other objects ({theirs}) than the session was given ({ours})")
        mine: Own = pickle.loads((folder / self._own_name()).read_bytes())
        return skeleton, destinations(skeleton, slots, self._trained.collect()), mine

    def _kinds(self) -> dict[str, str]:
        """What the session was given, by its name there."""
        given = {"model": self._trained.model, "optimizer": self._trained.optimizer, **self._trained.shared}
        return {name: type(thing).__name__ for name, thing in given.items()}

    def _together(self, folder: Path, work: Callable[[], T]) -> T:
        """What it returns here, once it has succeeded on all ranks."""
        done: T | None = None
        failure = ""
        try:
            done = work()
        except FAILURES as error:  # pickle and whatever loads a state may raise anything
            failure = f"rank {self._rank}: {in_words(error)}"
        failures: list[str] = [""] * self._world_size
        dist.all_gather_object(failures, failure)
        if failed := [one for one in failures if one]:
            raise CheckpointUnreadable(f"checkpoint {folder}: {failed[0]}")
        return cast("T", done)

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


def _by_torch(work: Callable[[], object]) -> None:
    """Raises RuntimeError where it fails on some rank: torch says so on all of them, by what is no `Exception`."""
    try:
        work()
    except CheckpointException as error:
        rank, (failure, _) = min(error.failures.items())
        raise RuntimeError(f"on rank {rank}: {in_words(failure)}") from None


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
