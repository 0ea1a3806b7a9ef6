"""Separates a state into its structure and its tensors, to send it and to write it."""

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rekindle_training.adapter.sharding import Spread, local, meshes

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Placeholder for a tensor in the skeleton. A tensor that is in several places is sent once, and stays one tensor."""

    index: int


@dataclass(frozen=True)
class Slot:
    """Description of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    strides: tuple[int, ...] = ()
    """Strides of its elements in memory, without gaps. Empty: the default order. Fused optimizers and kernels depend on it."""
    spread: Spread | None = None
    """Distribution of a sharded tensor.

    The other fields then describe the part of the rank that sent this. None: not sharded.
    """

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self, meshes: Mapping[Any, DeviceMesh]) -> torch.Tensor:
        if self.spread is not None:
            return self.spread.tensor(self.dtype, meshes[self.spread.mesh])
        made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return made.as_strided(self.shape, self.strides) if self.strides else made


def taken_apart(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """Returns the skeleton of a state, and its tensors by the indices of their places."""
    found: dict[object, tuple[int, torch.Tensor]] = {}
    skeleton = _mapped(state, lambda leaf: _taken(leaf, found))
    return skeleton, [tensor for _, tensor in found.values()]


def put_together(skeleton: Any, tensors: Sequence[torch.Tensor]) -> Any:
    return _mapped(skeleton, lambda leaf: tensors[leaf.index] if isinstance(leaf, Place) else leaf)


def named(skeleton: Any, tensors: Sequence[T]) -> dict[str, dict[str, T]]:
    """Returns the tensors of each part of a state, by readable names: `optimizer`: `state.layers.0.weight.exp_avg`."""
    return {
        part: {".".join(path): tensors[place.index] for path, place in _places(content, ())} for part, content in skeleton.items()
    }


def _places(skeleton: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Place]]:
    if isinstance(skeleton, Place):
        yield path, skeleton
    elif isinstance(skeleton, dict):
        for key, item in skeleton.items():
            yield from _places(item, (*path, str(key)))
    elif isinstance(skeleton, list | tuple | deque):
        for index, item in enumerate(skeleton):
            yield from _places(item, (*path, str(index)))


def destinations(skeleton: Any, slots: Sequence[Slot], mine: Any) -> list[torch.Tensor]:
    """Returns the tensors into which the tensors of a skeleton are received.

    Tensors of this rank in the same places are used if they match; otherwise new ones are created. No two of them share
    memory, even if this rank has one tensor for two of them.
    """
    in_place: dict[int, torch.Tensor] = {}
    filled: set[int] = set()
    for place, here in _beside(skeleton, mine):
        if place.index not in in_place and _fits(here, slots[place.index]) and local(here).data_ptr() not in filled:
            in_place[place.index] = here
            filled.add(local(here).data_ptr())
    known = meshes(mine)
    return [in_place[index] if index in in_place else slot.tensor(known) for index, slot in enumerate(slots)]


def slot_of(whole: torch.Tensor) -> Slot:
    tensor, spread = local(whole), Spread.of(whole) if isinstance(whole, DTensor) else None
    lies = strides(tensor)
    in_order = tuple(accumulate(reversed(tensor.shape[1:]), mul, initial=1))[::-1] if tensor.dim() else ()
    return Slot(tuple(tensor.shape), tensor.dtype, tensor.device.type, () if lies == in_order else lies, spread)


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the strides of a tensor. If it has gaps or shared elements, the strides that it would have without them."""
    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()


def _taken(leaf: Any, found: dict[object, tuple[int, torch.Tensor]]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    held = local(leaf)
    itself = (held.data_ptr(), leaf.shape, held.stride(), leaf.dtype, leaf.device, held.is_conj(), held.is_neg())
    return Place(found.setdefault(itself, (len(found), leaf))[0])


def _fits(here: Any, slot: Slot) -> bool:
    if not isinstance(here, torch.Tensor) or local(here).is_conj() or local(here).is_neg():
        return False
    mine = slot_of(here)
    if slot.spread is not None:  # of another shape, perhaps, where a rank holds another shard
        return (mine.spread, mine.dtype, mine.device) == (slot.spread, slot.dtype, slot.device)
    return mine == slot and here.stride() == strides(here)


def _beside(skeleton: Any, mine: Any) -> Iterator[tuple[Place, Any]]:
    """Yields each tensor's place, with the value that this rank has there."""
    if isinstance(skeleton, Place):
        yield skeleton, mine
    elif isinstance(skeleton, dict):
        for key, item in skeleton.items():
            yield from _beside(item, mine.get(key) if isinstance(mine, dict) else None)
    elif isinstance(skeleton, list | tuple | deque):
        alike = isinstance(mine, list | tuple | deque) and len(mine) == len(skeleton)
        for index, item in enumerate(skeleton):
            yield from _beside(item, mine[index] if alike else None)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the same structure with its leaves changed."""
    if isinstance(value, dict):
        same = copy.copy(value)  # a counter, one with defaults
        for key, item in value.items():
            same[key] = _mapped(item, change)
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    if isinstance(value, deque):
        return type(value)((_mapped(item, change) for item in value), value.maxlen)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    return change(value)
