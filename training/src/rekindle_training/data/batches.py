"""Batches of a loader over all epochs, as a session takes them: `session(..., data=rekindle_training.batches(loader))`."""

import threading
from collections.abc import Iterator
from typing import Any, Protocol, Self

from rekindle_training.data import kinds


class Source(Protocol):
    """One kind of loader, which gives any batch of any epoch."""

    KEYS: frozenset[str]
    """Of its state."""

    def __len__(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], epoch: int, number: int, /) -> None: ...

    def draw(self, epoch: int, number: int) -> Any:
        """Raises StopIteration at the end of the epoch."""


class Batches(Iterator[Any]):
    """One batch after the other, with a position that a session can put back. Made by `rekindle_training.batches`."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self._epoch = self._position = 0
        self._owner: int | None = None
        self._drawing = False

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0, to which the last batch belongs."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many batches of this epoch have been drawn."""
        return self._position

    @property
    def drawing(self) -> bool:
        """Whether a batch is being drawn at this moment."""
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
        """What ranks have to have in common, by its name; None: not known."""
        try:
            return {"batches of an epoch": len(self)}
        except TypeError:
            return {"batches of an epoch": None}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Goes on in the next epoch where one ends.

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
        """Returns the position and what the loader's order is made from; no data."""
        self._owner = threading.get_ident()
        return {"epoch": self._epoch, "position": self._position, **self._source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the batches follow that followed when this state was taken.

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
    """Gives a loader's batches to a session and to its loop: `data=batches`, and `next(batches)` in a step.

    Args:
        loader: A `torch.utils.data.DataLoader`, a `StatefulDataLoader` or a `nodes.Loader` of torchdata, a loader that accelerate
            has prepared, or anything that can be iterated and has `state_dict` and `load_state_dict`.

    Raises:
        TypeError: it is something else, or its batches could not be drawn again; the message names it and says what to write.
    """
    return Batches(kinds.source(loader), type(loader).__name__)
