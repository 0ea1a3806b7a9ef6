"""Operation 0: one product of matrices, again and again. A device that computes right gives the same bits each time, and the ones
that its host finds by multiplying whole numbers."""

from dataclasses import dataclass

import torch

from rekindle_training.stress.verdict import Disturb, Turn, Verdict, found

INNER = 256
LARGEST = 255
"""Of the whole numbers. 255 * 255 * 256 < 2**24: 32 bits hold every sum exactly, in whatever order it is added up; and 8 bits of
a significand, as bfloat16 has them, hold every factor."""
TILES = 8
"""In each direction, on an accelerator: as many times as large, and still the same sums."""


@dataclass(frozen=True)
class _Product:
    left: torch.Tensor
    right: torch.Tensor
    exact: torch.Tensor
    first: torch.Tensor

    @classmethod
    def of(cls, device: torch.device, kind: torch.dtype, disturb: Disturb) -> "_Product":
        tiles = 1 if device.type == "cpu" else TILES
        rows, columns = _numbers(7919), _numbers(104729)
        exact = (rows @ columns).to(torch.float32).repeat(tiles, tiles).to(device)
        left = rows.repeat(tiles, 1).to(kind).to(device)
        right = columns.repeat(1, tiles).to(kind).to(device)
        disturb(first := left @ right)
        return cls(left, right, exact, first)

    def wrong(self, product: torch.Tensor) -> int:
        """Elements that are another number than the exact one, but for the rounding of a result with fewer bits than 32; or that
        have not the bits of the first time."""
        slack = 0.0 if product.dtype is torch.float32 else torch.finfo(product.dtype).eps
        near = (product.float() - self.exact).abs() <= self.exact.abs() * slack
        bits = torch.int32 if product.dtype is torch.float32 else torch.int16
        same = product.view(bits) == self.first.view(bits)
        return int((~(near & same)).sum().item())


def check(device: torch.device, turn: Turn, disturb: Disturb) -> Verdict:
    kinds = (torch.float32,) if device.type == "cpu" else (torch.float32, torch.bfloat16)
    products = [_Product.of(device, kind, disturb) for kind in kinds]
    done = wrong = 0
    while not done or not turn.over:
        for one in products:
            disturb(product := one.left @ one.right)
            wrong += one.wrong(product)
            done += 1
    rows, columns = products[0].first.shape
    operations = 2e-9 * done * rows * columns * INNER / turn.spent
    sizes = f"{rows}x{INNER}x{columns}"
    elements = done * rows * columns
    return found(
        wrong, f"{wrong} of {elements} elements wrong in {done} products of {sizes}, {operations:.1f} GFLOP/s, {turn.spent:.1f} s"
    )


def _numbers(stride: int) -> torch.Tensor:
    """As good as any, and the same everywhere: no random number of training is drawn."""
    numbers = torch.arange(INNER * INNER, dtype=torch.int64) * stride % (2 * LARGEST + 1) - LARGEST
    return numbers.view(INNER, INNER)
