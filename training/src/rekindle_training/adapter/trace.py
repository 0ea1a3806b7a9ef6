"""Trace: digests of a rank's state after each step, as one JSON line for each, which a drill compares.

Written if `REKINDLE_TRACE` names a folder. Every process of a rank appends to the same file. A repeated step has the line of its
completed try.
"""

import faulthandler
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from rekindle_training.adapter import passes
from rekindle_training.adapter.digest import content_hash, digest
from rekindle_training.adapter.leaves import leaves
from rekindle_training.adapter.own import Own
from rekindle_training.adapter.rank import Rank
from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.step import Attempts
from rekindle_training.injection import BACKWARD, UPDATED

HASH = 16
"""Number of digits of a digest."""
LONGEST_VALUE = 80
"""Maximum number of characters of a value that is written unchanged."""


class Trace:
    """Lines of one process in the trace."""

    def __init__(self, rank: Rank, attempts: Attempts, folder: Path) -> None:
        self._rank, self._attempts = rank, attempts
        self._path = folder / f"rank-{rank.environment.rank:05d}.jsonl"
        self._losses: list[str] = []
        self._places: dict[str, list[int]] = {}
        """Steps in whose turns each place was reached, since the line before."""
        faulthandler.enable()  # a process that hangs is ended by SIGABRT, and says where it stood
        if rank.trained.accelerator is not None:
            torch.use_deterministic_algorithms(mode=True, warn_only=True)
        passes.watch(rank.trained.modules, self._reached)
        attempts.on_repeat.append(self._losses.clear)
        attempts.on_done.append(lambda: self._reached(UPDATED, None))
        self._write({"given": _given(rank), "devices": _devices(rank.trained.accelerator)})

    @classmethod
    def of(cls, rank: Rank, attempts: Attempts) -> "Callable[[int], None]":
        """Returns the function that records a completed step. It does nothing if no trace is requested."""
        folder = rank.environment.trace
        return _nothing if folder is None else cls(rank, attempts, folder).record

    def record(self, step: int) -> None:
        self._rank.sharded.reshard()
        common = {name: dict(_digests(name, part)) for name, part in self._rank.trained.collect().items()}
        own = self._rank.trained.take_own()
        self._write(
            {
                "step": step,
                "losses": self._losses,
                "scoped": self._attempts.guarded,
                "places": self._places,
                "state": {path: found for part in common.values() for path, found in part.items()},
                "own": dict(_own(own)),
            }
        )
        self._losses.clear()
        self._places.clear()

    def _reached(self, place: str, tensors: Any) -> None:
        turns = self._places.setdefault(place, [])
        if self._attempts.turn not in turns:
            turns.append(self._attempts.turn)
        if place == BACKWARD:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            self._losses += [repr(float(root.detach())) for root in roots if root.numel() == 1]

    def _write(self, line: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _nothing(_step: int) -> None:
    pass


def _given(rank: Rank) -> dict[str, str | None]:
    """Returns the types of the objects that the session was given, by their names there."""
    trained = rank.trained
    given = {"model": trained.model, "optimizer": trained.optimizer, **trained.shared, "data": trained.data}
    return {name: None if thing is None else type(thing).__name__ for name, thing in given.items()}


def _devices(accelerator: str | None) -> int:
    return 0 if accelerator is None else int(getattr(torch, accelerator).device_count())


def _digests(name: str, part: Any) -> Iterator[tuple[str, str]]:
    """Yields the path of each value in a part of the state, with the value, or with its digest."""
    for path, leaf in leaves(part, ""):
        if isinstance(leaf, dict | list | tuple):  # an empty one
            continue
        keys = path.replace("'", "").split("/")[1:]
        yield " ".join([name, *keys]), _short(leaf)


def _short(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        held = local(leaf)
        return repr(held.detach().reshape(()).item()) if held.numel() == 1 else "#" + content_hash(held).hex()[:HASH]
    if leaf is None or (isinstance(leaf, bool | int | float | str) and len(repr(leaf)) <= LONGEST_VALUE):
        return repr(leaf)
    return "#" + digest(leaf).hex()[:HASH]


def _own(own: Own) -> Iterator[tuple[str, str]]:
    for name in ("python", "numpy"):
        if (content := getattr(own, name)) is not None:
            yield f"random numbers of {name}", "#" + digest(pickle.loads(content)).hex()[:HASH]
    for name in ("torch", "accelerator"):
        if (content := getattr(own, name)) is not None:
            yield f"random numbers of {name}", "#" + digest(content).hex()[:HASH]
    if own.data is not None:
        yield from _digests("data", pickle.loads(own.data))
