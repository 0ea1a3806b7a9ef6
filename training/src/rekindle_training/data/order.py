"""Order of a loader's batches: the indices of each batch of an epoch. They are the same whenever they are asked for."""

import zlib
from array import array
from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from rekindle_training.data.random_numbers import Start, isolated, mixed
from rekindle_training.data.workers import tell_epoch

CHUNK = 64
"""Number of batches whose indices are drawn at once, apart from the random numbers of the step."""


class Order:
    """Samplers of a loader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self.seed = (loader.generator or torch.default_generator).initial_seed()
        self.start = Start(loader.generator, self._sampler, without=loader.dataset)

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]  # some have a length

    def prove(self) -> None:
        """Raises TypeError where the sampler gives other indices when it is gone through again."""
        once, again = ([digest(one, 0) for one in islice(self._indices(0), CHUNK)] for _ in range(2))
        if once != again:
            raise TypeError(
                f"batches(loader): {type(self._sampler).__name__} gives other indices when it is gone through again, so that "
                "batches could not be drawn again; let its order follow from `set_epoch`, or from a generator in its attributes"
            )

    @property
    def is_torchs(self) -> bool:
        """Returns whether the samplers are torch's own, which give the same indices again."""
        inner = self._sampler.sampler if type(self._sampler) is BatchSampler else self._sampler
        return all(type(one).__module__.startswith("torch.utils.data.") for one in (self._sampler, inner))

    def indices(self, epoch: int, first: int, expected: int) -> Iterator[Any]:
        """Returns the indices of an epoch's batches, beginning with one of them.

        Args:
            epoch: its number, from 0.
            first: number of the batch, from 0.
            expected: digest of the indices of the batches before it.

        Raises:
            RuntimeError: the batches before it have other indices.
        """
        indices = self._indices(epoch)
        found = 0
        for skipped in islice(indices, first):
            found = digest(skipped, found)
        if found != expected:
            raise RuntimeError(
                f"batches(loader): {type(self._sampler).__name__} gives other indices in epoch {epoch} than before, so that "
                "training cannot go on where it was; the data or the sampler has changed"
            )
        return indices

    def _indices(self, epoch: int) -> Iterator[Any]:
        tell_epoch(epoch, self._loader.batch_sampler, self._loader.sampler, self._loader.dataset)
        self.start.begin(epoch)
        if self._loader.generator is not None and (epoch == 0 or not self._loader.persistent_workers):
            generator = self._loader.generator
            torch.empty((), dtype=torch.int64, device=generator.device).random_(generator=generator)  # as a plain loader does
        return chain.from_iterable(self._chunks(epoch))

    def _chunks(self, epoch: int) -> Iterator[list[Any]]:
        indices: Iterator[Any] | None = None
        for number in count():
            with isolated(mixed(self.seed, "order", epoch, number)):
                indices = iter(self._sampler) if indices is None else indices
                chunk = list(islice(indices, CHUNK))
            yield chunk
            if len(chunk) < CHUNK:
                return


def digest(indices: Any, before: int) -> int:
    """Returns a digest of indices and of those before them. Indices that are no whole numbers do not count."""
    try:
        content = array("q", indices if isinstance(indices, list) else [indices])
    except (TypeError, OverflowError):
        return before
    return zlib.crc32(content.tobytes(), before)
