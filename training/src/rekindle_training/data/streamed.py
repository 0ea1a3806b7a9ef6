"""Batches of a DataLoader over an IterableDataset without a state. To go back, an epoch is loaded again from its beginning."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from rekindle_training.data.random_numbers import Start, isolated, mixed
from rekindle_training.data.stateful import ended_early
from rekindle_training.data.workers import tell_epoch


class Streamed:
    """Batches that a copy of the loader loads. Those before a position are loaded and thrown away."""

    KEYS = frozenset({"seed", "generators"})

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._given = loader
        self._seed = (loader.generator or torch.default_generator).initial_seed()
        self._start = Start(loader.dataset)
        self._place: tuple[int, int] | None = None
        self._loaded: Iterator[Any] = iter(())
        self._twin = copy.copy(loader)
        # A worker that stays begins an epoch with random numbers that a new worker does not have.
        vars(self._twin).update({"persistent_workers": False, "_iterator": None})

    def __len__(self) -> int:
        return len(self._given)

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed, "generators": self._start.state}

    def load_state_dict(self, state: dict[str, Any], epoch: int, number: int) -> None:
        if (epoch, number) != self._place or self._seed != state["seed"]:
            self._place = None
        self._seed = state["seed"]
        self._start.load(state["generators"], epoch)

    def draw(self, epoch: int, number: int) -> Any:
        """Raises StopIteration at the end of the epoch."""
        if self._place != (epoch, number):
            self._begin(epoch)
            self._skip(epoch, number)
        self._place = None  # a worker that fails loses what it had to load
        batch = self._next(epoch, number)
        self._place = epoch, number + 1
        return batch

    def _begin(self, epoch: int) -> None:
        tell_epoch(epoch, self._given.dataset)
        self._start.begin(epoch)
        self._twin.generator = torch.Generator().manual_seed(mixed(self._seed, "workers", epoch))
        self._loaded = iter(())  # the old workers end first
        with isolated(mixed(self._seed, "batch", epoch, 0)):  # the seed of the first batch, which may draw some of it
            self._loaded = iter(self._twin)

    def _skip(self, epoch: int, batches: int) -> None:
        for number in range(batches):
            try:
                self._next(epoch, number)
            except StopIteration:
                raise ended_early(self._given.dataset, epoch, number, batches) from None

    def _next(self, epoch: int, number: int) -> Any:
        if self._given.num_workers:
            return next(self._loaded)
        with isolated(mixed(self._seed, "batch", epoch, number)):
            return next(self._loaded)
