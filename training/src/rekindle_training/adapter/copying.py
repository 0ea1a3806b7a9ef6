"""Hands a state from the rank that has it to one that needs it: no tensor is pickled, and what fits is received in place.

Called by the session in a migration: `send` on the replica, `receive` on the replacement, over the default process group. First
goes a skeleton, which says what belongs where; then the tensors of each device, packed into messages of some size whatever their
types; then the digest, which the replica works out while it sends.
"""

import copy
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import torch
import torch.distributed as dist

from rekindle_training.adapter.digest import digest

BUCKET_BYTES = 32 * 1024 * 1024
"""A message of packed tensors holds at least this much, where there is so much."""
ALONE = 1024 * 1024
"""Bytes of a tensor that goes by itself: to pack it would cost more than a message."""
ALIGNMENT = 16
"""Bytes; each tensor in a message begins at a multiple of it."""


@dataclass(frozen=True)
class Place:
    """Stands for a tensor in the skeleton; a tensor that is in several places is sent once, and is one on the other side."""

    index: int


@dataclass(frozen=True)
class Slot:
    """What a tensor is."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    strides: tuple[int, ...] = ()
    """How its elements lie in memory, without gaps; empty: in their order. Fused optimizers and kernels depend on it."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return made.as_strided(self.shape, self.strides) if self.strides else made


def send(state: Any, target: int) -> None:
    found: dict[object, tuple[int, torch.Tensor]] = {}
    skeleton = _mapped(state, lambda leaf: _taken(leaf, found))
    tensors = [tensor for _, tensor in found.values()]
    slots = [slot_of(tensor) for tensor in tensors]
    with ThreadPoolExecutor(1, "digest") as beside:
        expected = beside.submit(digest, state)
        _send_bytes(pickle.dumps((skeleton, slots)), target)
        for bucket in buckets(slots):
            dist.send(_packed([tensors[index] for index in bucket]), target)
        _send_bytes(expected.result(), target)


def receive(source: int, mine: Any) -> tuple[Any, bytes]:
    """The replica's state, and its digest.

    Args:
        mine: this rank's state; tensors of it that have the same place, shape, type and device are filled in place.
    """
    skeleton, slots = pickle.loads(_receive_bytes(source))  # sent by a rank of the same job
    destinations = _destinations(skeleton, slots, mine)
    for bucket in buckets(slots):
        _receive_bucket([destinations[index] for index in bucket], source)
    state = _mapped(skeleton, lambda leaf: destinations[leaf.index] if isinstance(leaf, Place) else leaf)
    return state, _receive_bytes(source)


def _destinations(skeleton: Any, slots: Sequence[Slot], mine: Any) -> list[torch.Tensor]:
    """No two of them in one memory, also where this rank has one tensor and the replica two."""
    in_place: dict[int, torch.Tensor] = {}
    filled: set[int] = set()
    for place, here in _beside(skeleton, mine):
        if place.index not in in_place and _fits(here, slots[place.index]) and here.data_ptr() not in filled:
            in_place[place.index] = here
            filled.add(here.data_ptr())
    return [in_place[index] if index in in_place else slot.tensor() for index, slot in enumerate(slots)]


def slot_of(tensor: torch.Tensor) -> Slot:
    strides = _strides(tensor)
    in_order = tuple(accumulate(reversed(tensor.shape[1:]), mul, initial=1))[::-1] if tensor.dim() else ()
    return Slot(tuple(tensor.shape), tensor.dtype, tensor.device.type, () if strides == in_order else strides)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """As they are; where there are gaps or elements share their place, as they would be without."""
    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()


def buckets(slots: Sequence[Slot]) -> Iterator[list[int]]:
    """The tensors of each message, by their indices: those of one device, in their order, until there is enough."""
    for device in dict.fromkeys(slot.device for slot in slots):
        bucket: list[int] = []
        size = 0
        for index, slot in enumerate(slots):
            if slot.device != device or not slot.bytes:
                continue
            if slot.bytes >= ALONE:
                yield [index]
                continue
            bucket.append(index)
            size += slot.bytes
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def _packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) == 1:
        return _memory(tensors[0]).view(torch.uint8)
    message = _message(tensors)
    for tensor, part in zip(tensors, _parts(message, tensors), strict=True):
        part.copy_(_memory(tensor))
    return message


def _receive_bucket(destinations: Sequence[torch.Tensor], source: int) -> None:
    if len(destinations) == 1:
        dist.recv(_memory(destinations[0]).view(torch.uint8), source)
        return
    message = _message(destinations)
    dist.recv(message, source)
    for tensor, part in zip(destinations, _parts(message, destinations), strict=True):
        _memory(tensor).copy_(part)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as they lie in memory; of a tensor that is not plain memory, those of a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    whole = plain if plain.stride() == _strides(plain) else plain.clone()
    return whole.as_strided((whole.numel(),), (1,))


def _message(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    size = sum(_aligned(tensor.nbytes) for tensor in tensors)
    return torch.empty(size, dtype=torch.uint8, device=tensors[0].device)


def _parts(message: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    begin = 0
    for tensor in tensors:
        yield message[begin : begin + tensor.nbytes].view(tensor.dtype)
        begin += _aligned(tensor.nbytes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _taken(leaf: Any, found: dict[object, tuple[int, torch.Tensor]]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    itself = (leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.is_conj(), leaf.is_neg())
    return Place(found.setdefault(itself, (len(found), leaf))[0])


def _fits(here: Any, slot: Slot) -> bool:
    if not isinstance(here, torch.Tensor) or here.is_conj() or here.is_neg():
        return False
    return slot_of(here) == slot and here.stride() == _strides(here)


def _beside(skeleton: Any, mine: Any) -> Iterator[tuple[Place, Any]]:
    """Each tensor's place with what this rank has in its place."""
    if isinstance(skeleton, Place):
        yield skeleton, mine
    elif isinstance(skeleton, dict):
        for key, item in skeleton.items():
            yield from _beside(item, mine.get(key) if isinstance(mine, dict) else None)
    elif isinstance(skeleton, list | tuple):
        alike = isinstance(mine, list | tuple) and len(mine) == len(skeleton)
        for index, item in enumerate(skeleton):
            yield from _beside(item, mine[index] if alike else None)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with its leaves changed."""
    if isinstance(value, dict):
        same = copy.copy(value)  # a counter, one with defaults
        for key, item in value.items():
            same[key] = _mapped(item, change)
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    return change(value)


def _send_bytes(content: bytes, target: int) -> None:
    dist.send(torch.tensor([len(content)], device="cpu"), target)
    dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), target)


def _receive_bytes(source: int) -> bytes:
    length = torch.empty(1, dtype=torch.int64, device="cpu")
    dist.recv(length, source)
    content = torch.empty(int(length.item()), dtype=torch.uint8, device="cpu")
    dist.recv(content, source)
    return content.numpy().tobytes()
