"""Model, data and training step that both versions of the example with DDP share."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

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


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(1024, 10)),
    )


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, batches: list[Batch]
) -> None:
    """Adds up the gradients of all batches, and sums them over the ranks with the last batch."""
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
