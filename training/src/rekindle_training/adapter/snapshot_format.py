"""Bytes of a snapshot: what is pickled, and after it the bytes of each tensor at aligned offsets. Used by `snapshots.py`.

The pickled part has the skeleton, the slots of the tensors, and the state that only its rank has.
"""

import pickle
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from rekindle_training.adapter.own import Own
from rekindle_training.adapter.skeleton import Slot

_LENGTH = struct.Struct("<Q")
"""Number of pickled bytes, which stands before them."""
_ALIGNMENT = 64


class Opened(NamedTuple):
    """Parts of a snapshot. Tensors share memory with it."""

    skeleton: Any
    slots: list[Slot]
    own: Own
    parts: list[torch.Tensor]
    """Bytes of each tensor."""

    def tensors(self) -> list[torch.Tensor]:
        return [_shaped(slot, part) for slot, part in zip(self.slots, self.parts, strict=True)]


class Head:
    """Pickled part of a new snapshot."""

    def __init__(self, skeleton: Any, slots: Sequence[Slot], own: Own) -> None:
        self._slots, self._pickled = slots, pickle.dumps((skeleton, slots, own))
        self._offsets = _offsets(len(self._pickled), slots)
        self.length = self._offsets[-1]
        """Bytes of the whole snapshot."""

    def put(self, content: memoryview) -> list[torch.Tensor]:
        """Writes the pickled part, and returns the place of each tensor as bytes."""
        content[: _LENGTH.size + len(self._pickled)] = _LENGTH.pack(len(self._pickled)) + self._pickled
        return _parts(content, self._slots, self._offsets)


def opened(content: memoryview) -> Opened:
    (length,) = _LENGTH.unpack_from(content)
    pickled = content[_LENGTH.size : _LENGTH.size + length]
    skeleton, slots, own = pickle.loads(pickled)  # written by a process of the same job
    return Opened(skeleton, slots, own, _parts(content, slots, _offsets(length, slots)))


def _offsets(pickled: int, slots: Sequence[Slot]) -> list[int]:
    """Returns the offset of each tensor after `pickled` bytes, and the end of all."""
    sizes = (_aligned(slot.bytes) for slot in slots)
    return list(accumulate(sizes, initial=_aligned(_LENGTH.size + pickled)))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _parts(content: memoryview, slots: Sequence[Slot], offsets: Sequence[int]) -> list[torch.Tensor]:
    return [_part(content, slot, offset) for slot, offset in zip(slots, offsets[:-1], strict=True)]


def _part(content: memoryview, slot: Slot, offset: int) -> torch.Tensor:
    if not slot.bytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(content, dtype=torch.uint8, count=slot.bytes, offset=offset)


def _shaped(slot: Slot, part: torch.Tensor) -> torch.Tensor:
    elements = part.view(slot.dtype)
    return elements.as_strided(slot.shape, slot.strides) if slot.strides else elements.view(slot.shape)
