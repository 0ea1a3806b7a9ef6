"""Batches of torchdata's StatefulDataLoader over a stream, which may be too long to be loaded again.

Its states lack the random numbers of its workers, so each batch of a worker gets its own random numbers. A worker whose part
has ended begins that part again when it is restored, so such a state is not used. Batches are counted from an older state.
"""

import copy
from collections.abc import Iterator
from itertools import count
from typing import Any

from rekindle_training.data.stateful import Keeping
from rekindle_training.data.workers import Asked, Begun


class Resumed(Keeping):
    """Copy of a StatefulDataLoader."""

    def __init__(self, loader: Any, kind: type) -> None:
        """Takes the loader, and torchdata's class. A class that is derived from it may have states of another form."""
        twin = copy.copy(loader)  # the script may go through its loader as well
        twin.__class__ = kind
        super().__init__(twin)
        if loader.num_workers:
            slot = "sampler" if loader.batch_sampler is None else "batch_sampler"
            self._requests = _Requests(loader.batch_size, loader.num_workers)
            vars(twin).update({slot: self._requests, "worker_init_fn": Begun(loader.worker_init_fn, loader.collate_fn)})

    def _begin(self, epoch: int, state: Any = None) -> Iterator[Any]:
        if self._loader.num_workers:
            self._requests.place = self._seed, epoch
        return super()._begin(epoch, state)

    def _is_whole(self, state: Any) -> bool:
        snapshot = state.get("_snapshot")
        parts = snapshot["_worker_snapshots"].values() if snapshot else [state]
        given = snapshot["_snapshot_step"] + state["_steps_since_snapshot"] if snapshot else state["_num_yielded"]
        ended = any(part["fetcher_state"]["fetcher_ended"] for part in parts)
        kept = any(
            one is not None for part in parts for one in (part["dataset_state"], part["fetcher_state"]["dataset_iter_state"])
        )
        return not given or (kept and not ended)


class _Requests:
    """Sampler of a loader over a stream. It numbers the batches."""

    place = 0, 0

    def __init__(self, size: int | None, workers: int) -> None:
        self._size, self._workers = size, workers

    def __iter__(self) -> Iterator[Any]:
        seed, epoch = self.place
        indices = None if self._size is None else [None] * self._size
        return (Asked(indices, epoch, seed, number // self._workers) for number in count())
