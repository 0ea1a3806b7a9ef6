"""What both versions of the example with DDP share, and batches of a DataLoader that can be drawn again."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Batch = tuple[torch.Tensor, torch.Tensor]


class Patterns(Dataset[Batch]):
    """Noise over one of ten patterns; each is made from its index, so that all workers make the same."""

    def __init__(self, seed: int, count: int) -> None:
        self._seed, self._count = seed, count
        self._patterns = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Batch:
        noise = torch.randn(1, 12, 12, generator=torch.Generator().manual_seed(self._seed * 1_000_003 + index))
        return self._patterns[index % 10] + noise, torch.tensor(index % 10)


class _Rest:
    """The batches of an epoch behind the first ones, as the indices of their samples."""

    def __init__(self, sampler: DistributedSampler[Batch], size: int, first: int) -> None:
        self._sampler, self._size, self._first = sampler, size, first

    def __iter__(self) -> Iterator[list[int]]:
        indices: Iterator[Any] = islice(iter(self._sampler), self._first * self._size, None)
        while len(batch := list(islice(indices, self._size))) == self._size:
            yield batch


class Batches:
    """One batch after the other over all epochs, with a position: that of training, of which the workers are ahead.

    What they have loaded ahead is dropped when training goes back. The loader has a generator of its own: it draws a number at
    the beginning of each epoch, and would take it from those of the step otherwise.
    """

    def __init__(self, data: Dataset[Batch], sampler: DistributedSampler[Batch], size: int, workers: int) -> None:
        self._data, self._sampler, self._size, self._workers = data, sampler, size, workers
        self._drawn = 0
        self._loaded: Iterator[Batch] | None = None

    def __len__(self) -> int:
        """Of one epoch."""
        return len(self._sampler) // self._size

    def __next__(self) -> Batch:
        epoch, first = divmod(self._drawn, len(self))
        if self._loaded is None or first == 0:
            self._sampler.set_epoch(epoch)
            rest = _Rest(self._sampler, self._size, first)
            self._loaded = iter(
                DataLoader(self._data, batch_sampler=rest, num_workers=self._workers, generator=torch.Generator())
            )
        batch = next(self._loaded)
        self._drawn += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._drawn = state["drawn"]
        self._loaded = None


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(1024, 10)),
    )


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, batches: list[Batch]
) -> None:
    """Gradients of all batches are added up, and summed over the ranks with the last one."""
    *first, last = batches
    with model.no_sync():
        for batch in first:
            scaler.scale(_loss(model, batch) / len(batches)).backward()
    scaler.scale(_loss(model, last) / len(batches)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def _loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    images, classes = batch
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.cross_entropy(model(images), classes)


@torch.no_grad()
def accuracy(model: nn.Module, images: Patterns) -> float:
    model.eval()
    right = [int(model(image[None]).argmax() == kind) for image, kind in (images[index] for index in range(100))]
    model.train()
    return sum(right) / len(right)
