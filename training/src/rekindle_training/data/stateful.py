"""Batches of loaders that have their own state, such as torchdata's StatefulDataLoader over a stream.

The state that such a loader returns is that of its iterator. The state that it loads is that of its next iterator.
"""

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from rekindle_training.data import pickled
from rekindle_training.data.random_numbers import Start, isolated, mixed
from rekindle_training.data.workers import tell_epoch
from rekindle_training.wire import LARGEST_OWN

_END = object()


class Keeping:
    """Loader with `state_dict` and `load_state_dict`."""

    KEYS = frozenset({"seed", "generators", "loader", "skip"})

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._seed = torch.initial_seed()
        self._start = Start(loader)
        self._iterator: Iterator[Any] | None = None
        self._epoch = 0
        self._state = b""
        """State of the loader; empty before the first batch."""
        self._skip = 0
        """Number of batches since that state."""
        self._first = b""

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        if self._skip and self._iterator is not None:
            self._look()
        return {"seed": self._seed, "generators": self._start.state, "loader": self._state, "skip": self._skip}

    def load_state_dict(self, state: dict[str, Any], epoch: int, _number: int) -> None:
        self._seed, self._state, self._skip = state["seed"], state["loader"], state["skip"]
        self._start.load(state["generators"], epoch)
        self._iterator = None

    def draw(self, epoch: int, number: int) -> Any:
        """Raises StopIteration at the end of the epoch."""
        if self._iterator is None and (self._state or self._first):
            iterator = self._go_back(epoch, number)
        elif self._iterator is None or self._epoch != epoch:
            iterator = self._begin(epoch)
            self._look()
            self._first = self._first or self._state
        else:
            iterator = self._iterator
        with isolated(mixed(self._seed, "batch", epoch, number)):
            batch = next(iterator)
        self._skip += 1
        return batch

    def _go_back(self, epoch: int, number: int) -> Iterator[Any]:
        self._state = self._state or self._first
        iterator = self._begin(epoch, pickle.loads(self._state))
        for skipped in range(number - self._skip, number):
            with isolated(mixed(self._seed, "batch", epoch, skipped)):
                if next(iterator, _END) is _END:
                    raise ended_early(self._loader, epoch, skipped, number)
        return iterator

    def _begin(self, epoch: int, state: Any = None) -> Iterator[Any]:
        self._start.begin(epoch)
        with isolated(mixed(self._seed, "batch", epoch, 0)):  # the seed of the first batch, which may draw some of it
            tell_epoch(epoch, self._loader, getattr(self._loader, "dataset", None))
            if state is not None:
                self._loader.load_state_dict(state)
            begun: Iterator[Any] = iter(self._loader) if hasattr(self._loader, "__iter__") else self._loader
        self._iterator, self._epoch = begun, epoch
        return begun

    def _look(self) -> None:
        """Takes the state of the loader, if the right batches follow after it is loaded."""
        state = self._loader.state_dict()
        if not self._is_whole(state):
            return
        self._state, self._skip = pickled.dumps(state), 0
        if len(self._state) > LARGEST_OWN:
            raise ValueError(
                f"batches(loader): the state of {type(self._loader).__name__} has {len(self._state) / 1e6:.1f} MB; accepted are "
                f"{LARGEST_OWN / 1e6:.1f} MB. Keep what it is made from, such as a seed and a position"
            )

    def _is_whole(self, _state: Any) -> bool:
        return True


def ended_early(loader: object, epoch: int, found: int, expected: int) -> RuntimeError:
    """Returns the error of a loader that has fewer batches in an epoch than training has drawn."""
    return RuntimeError(
        f"batches(loader): {type(loader).__name__} has {found} batches in epoch {epoch}, and training has drawn {expected}; "
        "the data has changed"
    )
