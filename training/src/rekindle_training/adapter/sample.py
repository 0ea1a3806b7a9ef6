"""Samples of tensors: one element of each, which shows whether it moves.

Change counters notice neither `.data` nor fused kernels.
"""

from collections.abc import Sequence

import torch


def middle(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of the middle element, as a view."""
    return tensor.detach()[tuple(size // 2 for size in tensor.shape)].reshape(1).view(torch.uint8)


class Sample:
    """Elements of tensors, remembered on their devices, so that no device is waited for."""

    def __init__(self) -> None:
        self._places: list[int] = []
        """Address of each tensor when `_middles` were found."""
        self._middles: dict[torch.device, dict[int, torch.Tensor]] = {}
        """Views of the elements, by the number of their tensor."""
        self._then: dict[torch.device, torch.Tensor] = {}

    def remember(self, tensors: Sequence[torch.Tensor]) -> None:
        self._then = self._taken(tensors)

    def moved(self, tensors: Sequence[torch.Tensor]) -> set[int]:
        """Returns the numbers of the tensors that moved since `remember`. Waits for the accelerator."""
        found: set[int] = set()
        for device, now in self._taken(tensors).items():
            then = self._then.get(device)
            if then is None or then.shape != now.shape:
                found |= self._middles[device].keys()
            elif not torch.equal(now, then):
                sizes = [element.numel() for element in self._middles[device].values()]
                pairs = zip(self._middles[device], now.split(sizes), then.split(sizes), strict=True)
                found |= {number for number, one, other in pairs if not torch.equal(one, other)}
        return found

    def _taken(self, tensors: Sequence[torch.Tensor]) -> dict[torch.device, torch.Tensor]:
        if (places := [tensor.data_ptr() for tensor in tensors]) != self._places:
            self._places, self._middles = places, {}
            for number, tensor in enumerate(tensors):
                if tensor.numel():
                    self._middles.setdefault(tensor.device, {})[number] = middle(tensor)
        return {device: torch.cat(list(elements.values())) for device, elements in self._middles.items()}
