"""Batches of a DataLoader over a dataset that has indices.

A batch depends on its indices, and on the seed, the epoch and its number, from which its random numbers come. It is the same
whichever worker loads it, so the workers are asked again for a batch that is drawn again.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from rekindle_training.data.order import Order, digest
from rekindle_training.data.random_numbers import Held, held_by, kept_apart, mixed, seed_all
from rekindle_training.data.workers import Begun, Sent

KEPT = 64
"""Number of batches whose indices are kept. To go back further, the epoch's indices are drawn again."""


class Indexed:
    """Batches that a copy of the loader loads, in an order that it is given from here."""

    KEYS = frozenset({"seed", "generators", "order"})

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._given, self._order = loader, Order(loader)
        self._digest = 0
        """Digest of the indices of this epoch's batches so far."""
        self._pass: _Pass | None = None
        self._slot = _Slot()
        self._loaded: Iterator[Any] = iter(())
        self._twin = copy.copy(loader)  # the script may go through its loader as well
        slot = "sampler" if loader.batch_sampler is None else "batch_sampler"
        vars(self._twin).update({slot: self._slot, "worker_init_fn": Begun(loader.worker_init_fn, loader.collate_fn)})
        self._stop()

    def __len__(self) -> int:
        return len(self._order)

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._order.seed, "generators": self._order.start.state, "order": self._digest}

    def load_state_dict(self, state: dict[str, Any], epoch: int, number: int) -> None:
        goes_on = self._pass is not None and self._pass.epoch == epoch and self._order.seed == state["seed"]
        if not (goes_on and self._pass is not None and self._pass.go_back(number)):
            self._pass = None
        self._order.seed, self._digest = state["seed"], state["order"]
        self._order.start.load(state["generators"], epoch)

    def draw(self, epoch: int, number: int) -> Any:
        """Raises StopIteration at the end of the epoch."""
        try:
            return self._take(epoch, number)
        except StopIteration:
            if self._pass is None or number >= self._pass.next:
                raise
            self._pass = None  # the loader had given all when it was asked for some of them again
            return self._take(epoch, number)
        except BaseException:
            self._stop()  # a worker may be dead, and what it was to load is lost
            raise

    def _take(self, epoch: int, number: int) -> Any:
        if self._pass is None or self._pass.epoch != epoch:
            self._pass = self._begin(epoch, number)
        batch, indices = self._pass.take(number, self._loaded)
        self._digest = digest(indices, self._digest)
        return batch

    def _begin(self, epoch: int, number: int) -> "_Pass":
        order = self._order
        if number == 0:
            self._digest = 0
            if epoch == 0 and not order.is_torchs:
                order.prove()
        held = [] if self._given.num_workers else held_by(self._given.dataset, self._given.collate_fn)
        send = partial(_to_workers if self._given.num_workers else partial(_to_this_process, held), order.seed, epoch)
        begun = self._slot.now = _Pass(epoch, number, order.indices(epoch, number, self._digest), send)
        of_workers = 0 if self._given.persistent_workers else epoch
        self._twin.generator = torch.Generator().manual_seed(mixed(order.seed, "workers", of_workers))
        self._loaded = iter(())  # the old workers end first
        self._loaded = iter(self._twin) if self._given.num_workers else _kept_apart(iter(self._twin), held)
        return begun

    def _stop(self) -> None:
        self._pass, self._loaded = None, iter(())
        vars(self._twin).update({"_iterator": None, "next_iter_state": None, "_initial_iter_for_state_dict": False})


def _to_workers(seed: int, epoch: int, number: int, indices: Any) -> Sent:
    return Sent(indices, epoch, mixed(seed, "batch", epoch, number))


def _to_this_process(held: list[Held], seed: int, epoch: int, number: int, indices: Any) -> Any:
    """Seeds this process for a batch that a loader without workers loads now."""
    seed_all(mixed(seed, "batch", epoch, number), held)
    return indices


def _kept_apart(loaded: Iterator[Any], held: list[Held]) -> Iterator[Any]:
    while True:
        with kept_apart(held):
            try:
                batch = next(loaded)
            except StopIteration:
                return
        yield batch


class _Slot:
    """Sampler of the loader's copy."""

    now: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.now


class _Pass:
    """Way through an epoch, or through the rest of it. The loader asks it for indices, ahead of training."""

    def __init__(self, epoch: int, first: int, indices: Iterator[Any], send: Callable[[int, Any], Any]) -> None:
        self.epoch = epoch
        self.next = first
        """Number of the next batch that the loader asks for."""
        self._indices, self._send = indices, send
        self._known: dict[int, Any] = {}
        self._asked: deque[int] = deque()
        """Numbers of the batches that are being loaded, in their order."""
        self._again: deque[int] = deque()
        self._ahead: dict[int, Any] = {}
        """Batches that were loaded before others that are drawn again."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        number = self._again.popleft() if self._again else self._advance()
        self._asked.append(number)
        return self._send(number, self._known[number])

    def _advance(self) -> int:
        self._known[self.next] = next(self._indices)
        self.next += 1
        return self.next - 1

    def take(self, number: int, loaded: Iterator[Any]) -> tuple[Any, Any]:
        """Returns a batch and its indices."""
        while number not in self._ahead:
            batch = next(loaded)
            came = self._asked.popleft()
            if came >= number:
                self._ahead[came] = batch
        self._known.pop(number - KEPT, None)
        return self._ahead.pop(number), self._known[number]

    def go_back(self, number: int) -> bool:
        """Asks again for the batches from this one on; returns whether that is possible."""
        if number not in self._known and number != self.next:
            return False
        self._ahead = {one: batch for one, batch in self._ahead.items() if one >= number}
        coming = {*self._asked, *self._again, *self._ahead}
        self._again.extend(one for one in range(number, self.next) if one not in coming)
        return True
