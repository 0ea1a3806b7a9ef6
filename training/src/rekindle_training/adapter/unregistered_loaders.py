"""Finds and refuses a loader from which a script draws batches, but which it did not give to its session.

Its position would not be restored.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rekindle_training.adapter.places import Place, Places
from rekindle_training.adapter.unregistered_state import UnregisteredState
from rekindle_training.data.batches import Batches
from rekindle_training.data.shares import Shares


class Loaders:
    """Watch over iterators of DataLoaders.

    An iterator from which several turns of the loop draw is part of training. An iterator that begins and ends in one turn,
    such as an evaluation's, is not.
    """

    def __init__(self, data: object, turn: Callable[[], int], places: Places) -> None:
        """Takes what the session was given as `data`, and the step whose turn it is; 0: it is none's."""
        self._data, self._turn, self._places = data, turn, places
        self._drawn: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """Turn in which batches were drawn from each iterator."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises TypeError where a loader that was forgotten is drawn from inside."""
        if self._data is not None and not isinstance(self._data, Batches | Shares):  # may have loaders inside
            yield
            return
        draw, begin = _BaseDataLoaderIter.__next__, _BaseDataLoaderIter.__init__

        @wraps(begin)
        def began(iterator: Any, *args: Any) -> None:
            with self._seeding_apart():
                begin(iterator, *args)

        @wraps(draw)
        def noticed(iterator: Any) -> Any:
            self._notice(iterator)
            return draw(iterator)

        _BaseDataLoaderIter.__next__ = noticed  # type: ignore[assignment,method-assign]
        _BaseDataLoaderIter.__init__ = began  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            _BaseDataLoaderIter.__next__ = draw  # type: ignore[method-assign]
            _BaseDataLoaderIter.__init__ = begin  # type: ignore[method-assign]

    @contextmanager
    def _seeding_apart(self) -> Iterator[None]:
        """Restores torch's random state after a loader has drawn a seed for its workers outside of a step.

        A loader there, such as an evaluation's, does not affect training.
        """
        if self._places.now is Place.IN_STEP:
            yield
            return
        before = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(before)

    def _notice(self, iterator: Any) -> None:
        turn = self._turn()
        is_given = isinstance(self._data, Batches | Shares) and self._data.drawing
        if not turn or is_given or threading.current_thread() is not threading.main_thread():
            return
        if iterator._num_yielded == 0:  # workers that stay have one iterator for all of their passes
            self._drawn.pop(iterator, None)
        if self._drawn.setdefault(iterator, turn) != turn:
            raise UnregisteredState(
                "a DataLoader gives batches in step after step, and was not given to the session: a repeated step gets others; "
                "write batches = rekindle_training.batches(loader), session(data=batches), and next(batches) in the loop"
            )
