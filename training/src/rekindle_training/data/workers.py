"""Setup of a batch in a worker of a DataLoader: it gets its own random numbers, whichever worker loads it."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from rekindle_training.data import random_numbers


def tell_epoch(epoch: int, *things: object) -> None:
    """Calls `set_epoch` of samplers and datasets, and of the samplers inside them."""
    for thing in things:
        if callable(tell := getattr(thing, "set_epoch", None)):
            tell(epoch)
        for inside in ("batch_sampler", "sampler"):
            if (inner := getattr(thing, inside, None)) is not None:
                tell_epoch(epoch, inner)


class Sent:
    """Indices of a batch on their way to a worker. They arrive as they were given, and seed the worker's generators."""

    def __init__(self, indices: Any, epoch: int, seed: int) -> None:
        self._indices, self._epoch, self._seed = indices, epoch, seed

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _arrived, (self._indices, self._epoch, self._seed)


class Asked:
    """Request for the next batch of a stream on its way to a worker, which seeds its generators by its own count."""

    def __init__(self, indices: Any, epoch: int, seed: int, before: int) -> None:
        """Takes the number of batches that the worker has given before, if no other worker has ended."""
        self._indices, self._epoch, self._seed, self._before = indices, epoch, seed, before

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _counted, (self._indices, self._epoch, self._seed, self._before)


class Begun:
    """`worker_init_fn` of a loader, around the script's own."""

    def __init__(self, given: Callable[[int], object] | None, collate: object) -> None:
        self._given, self._collate = given, collate

    def __call__(self, worker: int) -> None:
        if self._given is not None:
            self._given(worker)
        info = get_worker_info()
        assert info is not None
        _here.worker, _here.roots = worker, [info.dataset, self._collate]


class _Here:
    """State of this worker."""

    worker: int
    roots: list[Any]
    held: list[random_numbers.Held] | None = None
    epoch: int | None = None
    given = 0


_here = _Here()


def _arrived(indices: Any, epoch: int, seed: int) -> Any:
    if _here.held is None:
        _here.held = random_numbers.held_by(*_here.roots)
    if epoch != _here.epoch:
        tell_epoch(epoch, _here.roots[0])
        _here.epoch = epoch
    random_numbers.seed_all(seed, _here.held)
    return indices


def _counted(indices: Any, epoch: int, seed: int, before: int) -> Any:
    """Counts requests in this worker. When a worker has ended, timing decides which request another worker gets."""
    _here.given = before if epoch != _here.epoch else _here.given + 1
    return _arrived(indices, epoch, random_numbers.mixed(seed, "part", epoch, _here.worker, _here.given))
