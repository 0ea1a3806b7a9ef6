"""How a batch begins in a worker of a DataLoader: with random numbers that are its own, whichever worker loads it, and when."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from rekindle_training.data import random_numbers


def tell_epoch(epoch: int, *things: object) -> None:
    """Calls `set_epoch` of samplers and datasets, and of the samplers inside of them."""
    for thing in things:
        if callable(tell := getattr(thing, "set_epoch", None)):
            tell(epoch)
        for inside in ("batch_sampler", "sampler"):
            if (inner := getattr(thing, inside, None)) is not None:
                tell_epoch(epoch, inner)


class Sent:
    """The indices of a batch on their way to a worker. They arrive as they were given, and seed the worker's generators."""

    def __init__(self, indices: Any, epoch: int, seed: int) -> None:
        self._indices, self._epoch, self._seed = indices, epoch, seed

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _arrived, (self._indices, self._epoch, self._seed)


class Asked:
    """The request for the next batch of a worker's part of a stream, which seeds its generators by its own count."""

    def __init__(self, indices: Any, epoch: int, seed: int, before: int) -> None:
        """Takes how many batches the worker has given before, if none has ended."""
        self._indices, self._epoch, self._seed, self._before = indices, epoch, seed, before

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _counted, (self._indices, self._epoch, self._seed, self._before)


class Begun:
    """The `worker_init_fn` of a loader's workers, around the script's own."""

    def __init__(self, given: Callable[[int], object] | None, collate: object) -> None:
        self._given, self._collate = given, collate

    def __call__(self, worker: int) -> None:
        if self._given is not None:
            self._given(worker)
        info = get_worker_info()
        assert info is not None
        _here.worker, _here.roots = worker, [info.dataset, self._collate]


class _Here:
    """What this worker loads with, and how far it is."""

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
    """Requests are numbered by how many were sent: once a worker has ended, which request another one gets depends on timing."""
    _here.given = before if epoch != _here.epoch else _here.given + 1
    return _arrived(indices, epoch, random_numbers.mixed(seed, "part", epoch, _here.worker, _here.given))
