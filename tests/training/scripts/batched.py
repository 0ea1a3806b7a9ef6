"""A training script with a `LOADER` of all kinds, whose samples have random augmentations. Its epochs have an odd number of
batches, of which a step draws two, and some end with a small one."""

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, get_worker_info
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import rekindle_training
from rekindle_training.data.batches import Batches
from rekindle_training.examples.gpt_model import write_final

SAMPLES, STEPS, RANKS = 54, 12, 2
Sample = tuple[torch.Tensor, torch.Tensor]


def augmented(index: int) -> Sample:
    row = torch.full((8,), index / SAMPLES)
    return row + torch.rand(8) + random.random() + np.random.rand(), row.sum(0, keepdim=True)


class Rows(Dataset[Sample]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return augmented(index)


class Stream(IterableDataset[Sample]):
    """Rows of one rank, which its workers share."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(self.rank + RANKS * first, SAMPLES, RANKS * every):
            yield augmented(index)


class Resumable(Stream):
    """Has a position of its own; its first worker has half as much as the others."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.drawn = 0

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        mine = range(self.rank + RANKS * first, SAMPLES if first else SAMPLES // 2, RANKS * every)
        for index in mine[self.drawn :]:
            self.drawn += 1
            yield augmented(index)
        self.drawn = 0

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]


class Counting:
    """Anything that can be iterated and has a state."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[float]:
        while self.drawn < 9:
            self.drawn += 1
            yield self.drawn + random.random()
        self.drawn = 0

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]


def taken(batches: Batches, count: int) -> list[bytes]:
    """Batches as bytes; of equal ones these are equal."""
    return [content(next(batches)) for _ in range(count)]


def content(batch: Any) -> bytes:
    if isinstance(batch, torch.Tensor):
        return batch.numpy().tobytes()
    return b"".join(map(content, batch)) if isinstance(batch, tuple | list) else repr(batch).encode()


def of_rank(rank: int) -> DistributedSampler[Sample]:
    return DistributedSampler(Rows(), RANKS, rank)


def stacked(indices: list[int]) -> Sample:
    rows = torch.tensor(indices)[:, None].expand(-1, 8) / SAMPLES
    return rows, rows.sum(1, keepdim=True)


def graph(rank: int) -> nodes.Loader[Sample]:
    generator = torch.Generator().manual_seed(rank)
    indices = nodes.SamplerWrapper(RandomSampler(range(SAMPLES // RANKS), generator=generator))
    return nodes.Loader(nodes.Prefetcher(nodes.Mapper(nodes.Batcher(indices, 4, drop_last=False), stacked), 3))


LOADERS: dict[str, Callable[[int], Any]] = {
    "plain": lambda rank: DataLoader(Rows(), 4, sampler=of_rank(rank), num_workers=2, drop_last=True),
    "uneven": lambda rank: DataLoader(Rows(), 4, sampler=of_rank(rank)),
    "shuffled": lambda _: DataLoader(
        Rows(), 4, shuffle=True, num_workers=2, persistent_workers=True, generator=torch.Generator()
    ),
    "stateful": lambda rank: StatefulDataLoader(Rows(), 4, sampler=of_rank(rank), num_workers=2),
    "resumable": lambda rank: StatefulDataLoader(Resumable(rank), 4, num_workers=2),
    "stream": lambda rank: DataLoader(Stream(rank), 4, num_workers=2),
    "nodes": graph,
}


def main() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank = int(os.environ["RANK"])
    loader = LOADERS[os.environ["LOADER"]](rank)
    batches = rekindle_training.batches(loader)
    given = {"raw": loader, "nothing": None}.get(os.environ.get("GIVEN", ""), batches)
    torch.manual_seed(1000 + rank)
    with rekindle_training.session(model, optimizer, data=given, checkpoint_every=3) as training:
        wrapped = DistributedDataParallel(model)
        drawn = iter(loader) if given is None else batches
        for step in training.steps(STEPS):
            with step:
                for _ in range(2):
                    x, y = next(drawn)
                    ((wrapped(x) - y).pow(2).mean() / 2).backward()
                optimizer.step()
                optimizer.zero_grad()
    write_final(model, rank)


if __name__ == "__main__":
    main()
