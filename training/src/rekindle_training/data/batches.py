"""Batches of a loader over all epochs, as a session takes them: `session(..., data=rekindle_training.batches(loader))`."""

import threading
from collections.abc import Iterator
from typing import Any, Self

from rekindle_training.data import kinds


class Batches(Iterator[Any]):
    """Iterator over the batches of all epochs, with a position that a session puts back. `rekindle_training.batches` makes it."""

    def __init__(self, source: kinds.Source, name: str) -> None:
        self._source, self._name = source, name
        self._epoch = self._position = 0
        self._owner: int | None = None
        self._drawing = False

    @property
    def epoch(self) -> int:
        """Number of the epoch of the last batch, counted from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """Number of batches that were drawn in this epoch."""
        return self._position

    @property
    def drawing(self) -> bool:
        """Returns whether a batch is being drawn at this moment."""
        return self._drawing

    def __len__(self) -> int:
        """Returns the number of batches of one epoch.

        Raises:
            TypeError: the loader does not say it.
        """
        try:
            return len(self._source)
        except TypeError as error:
            raise TypeError(
                f"len(batches): {self._name} does not say how many batches an epoch has ({error}); write the number, as in "
                "training.epochs(count, steps=1000)"
            ) from error

    @property
    def same_on_all_ranks(self) -> dict[str, int | None]:
        """Returns values that have to be the same on all ranks, by their names. None: a value is not known."""
        try:
            return {"batches of an epoch": len(self)}
        except TypeError:
            return {"batches of an epoch": None}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Draws a batch. At the end of an epoch the next one begins.

        Raises:
            RuntimeError: an epoch has no batches, or another thread draws than the one that trains.
        """
        if self._owner not in {None, threading.get_ident()}:
            raise RuntimeError(
                "next(batches): another thread draws than the one that trains, so that the position is not that of training; "
                "let the workers of the loader load ahead"
            )
        self._drawing = True
        try:
            batch = self._draw()
        finally:
            self._drawing = False
        self._position += 1
        return batch

    def _draw(self) -> Any:
        for _ in range(2):
            try:
                return self._source.draw(self._epoch, self._position)
            except StopIteration:
                if self._position == 0:
                    break
                self._epoch, self._position = self._epoch + 1, 0
        raise RuntimeError(f"next(batches): {self._name} gives no batch in epoch {self._epoch}")

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and what the order of the loader is made from."""
        self._owner = threading.get_ident()
        return {"epoch": self._epoch, "position": self._position, **self._source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to the position of a state: the batches that follow are those that followed then.

        Raises:
            ValueError: it is the state of another kind of loader.
        """
        expected = {"epoch", "position", *self._source.KEYS}
        if state.keys() != expected:
            raise ValueError(
                f"batches(loader): a state with {', '.join(sorted(map(str, state)))} is not accepted for {self._name}: it is "
                f"another kind of loader's, and has to have {', '.join(sorted(expected))}"
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self._source.load_state_dict(state, self._epoch, self._position)


def batches(loader: Any) -> Batches:
    """Returns the batches of a loader, for `session(data=batches)` and for `next(batches)` in its loop.

    Args:
        loader: A `torch.utils.data.DataLoader`, a `StatefulDataLoader` or a `nodes.Loader` of torchdata, a loader that accelerate
            has prepared, or anything that can be iterated and has `state_dict` and `load_state_dict`.

    Raises:
        TypeError: the loader is something else, or its batches cannot be drawn again. The message says what to write.
    """
    return Batches(kinds.source(loader), type(loader).__name__)
