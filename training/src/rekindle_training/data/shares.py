"""Data of a job whose number of ranks may change: `session(..., data=rekindle_training.shares(make_loader))`.

The data is divided among the ranks of the job at full size, and stays divided so. A rank that carries the share of a missing one
draws from that share's loader too. So no sample is lost or drawn twice, whatever ranks leave and come back. If each rank has
several parts, the parts of a missing one are spread over the others.
"""

from collections.abc import Callable, Collection
from typing import Any, Never

from torch.utils.data import IterableDataset

from rekindle_training.data import process_generators
from rekindle_training.data.batches import Batches, batches


class Shares:
    """Batches of this rank's own share, with a position that a session puts back, and of further shares that it carries."""

    def __init__(self, make_loader: Callable[[int, int], Any], parts: int) -> None:
        self._make, self.parts = make_loader, parts
        self._rank = self._world_size = -1
        self._opened: dict[int, Batches] = {}
        self._loaders: dict[int, Any] = {}

    def attach(self, rank: int, world_size: int) -> None:
        """Says which share is this rank's own. Called by the session."""
        self._rank, self._world_size = rank, world_size

    def of(self, share: int) -> Batches:
        """Returns the batches of a share. Its loader is made when it is first asked for, and draws no random numbers.

        Raises:
            ValueError: it is the loader of another share.
        """
        if self._world_size < 0:
            raise RuntimeError("shares(make_loader): the share of a rank is known inside the session that has these shares")
        if share not in self._opened:
            before = process_generators.take(None)
            loader = self._make(share, self._world_size * self.parts)
            self._refuse_same(share, loader)
            self._opened[share], self._loaders[share] = batches(loader), loader
            process_generators.put(before, None)
        return self._opened[share]

    def _refuse_same(self, share: int, loader: object) -> None:
        """Raises ValueError where a loader draws from the position of another share's, so that samples are lost or seen twice."""
        other = next((number for number, made in self._loaders.items() if _source(made) is _source(loader)), None)
        if other is not None:
            kind = type(_source(loader)).__name__
            raise ValueError(
                f"shares(make_loader): the {kind} of share {share} is not accepted, since it is that of share {other}; accepted "
                "is one of its own for each share"
            )

    @property
    def further(self) -> range:
        """Shares that this rank carries besides its own one at full size."""
        return range(self._rank + self._world_size, self._world_size * self.parts, self._world_size)

    def close(self, keep: Collection[int]) -> None:
        """Drops the loaders of shares that this rank carries no more."""
        kept = {*keep, self._rank}
        self._opened = {share: opened for share, opened in self._opened.items() if share in kept}
        self._loaders = {share: loader for share, loader in self._loaders.items() if share in kept}

    @property
    def epoch(self) -> int:
        """Number of the epoch of the last batch of this rank, counted from 0."""
        return self.of(self._rank).epoch

    @property
    def drawing(self) -> bool:
        """Returns whether a batch is being drawn at this moment."""
        return any(opened.drawing for opened in self._opened.values())

    @property
    def same_on_all_ranks(self) -> dict[str, int | None]:
        """Returns values that have to be the same on all ranks, by their names. None: a value is not known."""
        return self.of(self._rank).same_on_all_ranks

    def __len__(self) -> int:
        """Returns the number of batches of one epoch of this rank. Raises TypeError where the loader does not say it."""
        return len(self.of(self._rank))

    def __next__(self) -> Never:
        raise TypeError(
            "next(shares): the batches of shares are drawn by `for batch in training.batches():`, which also gives those of "
            "missing ranks"
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this rank's own share."""
        return self.of(self._rank).state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to the position of a state. Raises ValueError where it is the state of another kind of loader."""
        self.of(self._rank).load_state_dict(state)


def shares(make_loader: Callable[[int, int], Any], parts: int = 1) -> Shares:
    """Returns data for a job that may go on with fewer ranks, for `session(data=...)` and `training.batches()` in its loop.

    Args:
        make_loader: Is given the number of a share and the number of all shares, and returns the loader of that share, as
            `batches` accepts it. Of W ranks, rank r has the shares r, r + W, r + 2W and so on. It is also called for shares of
            missing ranks.
        parts: Shares of each rank at full size. With more than one, those of a missing rank are spread over all others. The
            loop gets a batch of each share, and the optimizer the mean over all of them: divide the size of a batch by `parts`.

    Raises:
        TypeError: what is given is no function, or `parts` is no whole number.
        ValueError: there is less than one part.
    """
    if not callable(make_loader):
        raise TypeError(
            f"shares(make_loader): {type(make_loader).__name__} is not accepted; give a function of a rank and the number of "
            "ranks that returns a loader, as in shares(lambda rank, world_size: DataLoader(...))"
        )
    return Shares(make_loader, _count(parts))


def _source(loader: Any) -> object:
    """Returns what has the position of a loader: a stream that is read in this process, or the loader itself."""
    stream = getattr(loader, "dataset", None)
    return stream if isinstance(stream, IterableDataset) and not getattr(loader, "num_workers", 0) else loader


def _count(parts: object) -> int:
    if isinstance(parts, bool) or not isinstance(parts, int):
        raise TypeError(f"shares(parts): {parts!r} is not accepted; give a whole number from 1")
    if parts < 1:
        raise ValueError(f"shares(parts): {parts} is not accepted; give a whole number from 1")
    return parts
