"""Batches of what keeps its own state, such as torchdata's StatefulDataLoader over a stream, or a graph of torchdata.nodes.

The state that these give belongs to the iterator in use, and the state that they are given to the next one.
"""

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from rekindle_training.adapter.trained import LARGEST_OWN
from rekindle_training.data.random_numbers import Start, isolated, mixed
from rekindle_training.data.workers import tell_epoch


class Keeping:
    KEYS = frozenset({"seed", "generators", "loader"})

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._seed = torch.initial_seed()
        self._start = Start(loader)
        self._iterator: Iterator[Any] | None = None
        self._epoch = 0
        self._state: bytes | None = b""
        """At the batch to come; nothing at the very beginning, None: it has not been asked for."""
        self._first = b""

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        if self._state is None:
            self._state = self._dumped()
        return {"seed": self._seed, "generators": self._start.state, "loader": self._state}

    def load_state_dict(self, state: dict[str, Any], epoch: int, _number: int) -> None:
        self._seed, self._state = state["seed"], state["loader"] or self._first
        self._start.load(state["generators"], epoch)
        self._iterator = None

    def draw(self, epoch: int, number: int) -> Any:
        """Raises StopIteration at the end of the epoch."""
        seed = mixed(self._seed, "batch", epoch, number)
        iterator = self._iterator
        if iterator is None or self._epoch != epoch:
            with isolated(mixed(self._seed, "batch", epoch, 0)):  # what is put off is drawn by the first batch
                iterator = self._begin(epoch)
        with isolated(seed):
            batch = next(iterator)
        self._state = None
        return batch

    def _begin(self, epoch: int) -> Iterator[Any]:
        tell_epoch(epoch, self._loader, getattr(self._loader, "dataset", None))
        self._start.begin(epoch)
        if self._iterator is None and self._state:
            self._loader.load_state_dict(pickle.loads(self._state))
        begun: Iterator[Any] = iter(self._loader) if hasattr(self._loader, "__iter__") else self._loader
        self._iterator, self._epoch = begun, epoch
        self._first = self._first or self._dumped()
        return begun

    def _dumped(self) -> bytes:
        state = pickle.dumps(self._loader.state_dict())
        if len(state) > LARGEST_OWN:
            raise ValueError(
                f"batches(loader): the state of {type(self._loader).__name__} has {len(state) / 1e6:.1f} MB; accepted are "
                f"{LARGEST_OWN / 1e6:.1f} MB. Keep what it is made from, such as a seed and a position"
            )
        return state
