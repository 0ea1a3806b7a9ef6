"""A character-level GPT, its text and its training step, shared by both examples. Small: one step is about 10 ms on one core."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 48, 64, 4, 2, 4
ALPHABET = "abcdefghijklmnopqrstuvwxyz .,\n"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)
        self.feed_norm = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.project_in(self.attention_norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        fed: torch.Tensor = self.feed(self.feed_norm(x))
        return x + fed


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET)))

    def forward(self, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.characters(text) + self.positions))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


class Text:
    """Words made up from a seed, and this rank's position in them, as a sampler has one."""

    def __init__(self, seed: int, rank: int) -> None:
        made_up = torch.Generator().manual_seed(seed)
        words = [
            "".join(ALPHABET[i] for i in torch.randint(26, (length,), generator=made_up))
            for length in range(2, 9)
            for _ in range(9)
        ]
        chosen = torch.randint(len(words), (2000,), generator=made_up)
        self._text = torch.tensor([ALPHABET.index(character) for character in " ".join(words[i] for i in chosen)])
        self._draw = torch.Generator().manual_seed(seed * 1000 + rank)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self._text) - CONTEXT - 1, (BATCH,), generator=self._draw)
        windows = torch.stack([self._text[start : start + CONTEXT + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield self.batch()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"draw": self._draw.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._draw.set_state(state["draw"])


def average_gradients(model: nn.Module) -> None:
    """Averages the gradients over the ranks, as one flat vector.

    The result has the same bits whatever process groups there were before.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, averaged in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient))


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler, text: Text
) -> float:
    optimizer.zero_grad()
    loss = model(*text.batch())
    loss.backward()
    average_gradients(model)
    optimizer.step()
    scheduler.step()
    return float(loss.detach())


@contextmanager
def at_least(milliseconds: float, told: str = "") -> Iterator[None]:
    """Makes a step take a minimum time, as if an accelerator computed it and left the processor idle.

    Args:
        told: path of a file; once it is there, a step takes as many milliseconds as it says.
    """
    began = time.perf_counter()
    yield
    if told and Path(told).exists():
        milliseconds = float(Path(told).read_text())
    time.sleep(max(0.0, began + milliseconds / 1000 - time.perf_counter()))


def write_final(model: nn.Module, rank: int) -> None:
    """Writes the raw bytes of all parameters, or of this rank's shards, for a comparison with another run bit by bit."""
    folder = Path(os.environ.get("REKINDLE_JOB_DIR", ".")) / "final"
    folder.mkdir(parents=True, exist_ok=True)
    held = (parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in model.parameters())
    content = b"".join(tensor.detach().numpy().tobytes() for tensor in held)
    scratch = folder / f".rank-{rank:05d}.bin"
    scratch.write_bytes(content)
    scratch.rename(folder / f"rank-{rank:05d}.bin")
