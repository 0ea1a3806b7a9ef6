"""Operation 0: computes one matrix product again and again.

A healthy device returns the same bits each time. They match the product of whole numbers that the host computes.
"""

from dataclasses import dataclass

import torch

from rekindle_training.stress.verdict import Disturb, Turn, Verdict, found

INNER = 256
LARGEST = 255
"""Largest absolute value of the whole numbers in the matrices.

255 * 255 * 256 < 2**24: 32 bits hold every sum exactly, in whatever order it is added up; and 8 bits of a significand, as
bfloat16 has them, hold every factor.
"""
TILES = 8
"""Factor by which each dimension of the product grows on an accelerator. The matrices are repeated, so the sums stay the same."""


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
        """Returns the number of wrong elements.

        An element is wrong if it is not the exact number, except for the rounding of a result with fewer bits than 32.
        It is also wrong if its bits differ from those of the first product.
        """
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
    """Returns a fixed matrix of whole numbers, the same everywhere. It draws no random number of training."""
    numbers = torch.arange(INNER * INNER, dtype=torch.int64) * stride % (2 * LARGEST + 1) - LARGEST
    return numbers.view(INNER, INNER)
