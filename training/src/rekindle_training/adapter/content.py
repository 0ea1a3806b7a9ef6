"""Tensors that the states of objects contain, whatever these objects are."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from rekindle_training.adapter.attributes import PLAIN
from rekindle_training.adapter.leaves import values
from rekindle_training.adapter.sharding import local

_EMPTY = (dict, list, tuple)
"""Types of containers, which are leaves of a state where they are empty."""


class Content:
    """Tensors in the states of some objects."""

    def __init__(self, things: Iterable[object]) -> None:
        self._memory = set[int]()
        self._alike: defaultdict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = defaultdict(list)
        self._is_known = True
        """False if a state may contain tensors in a form of its own, such as bytes."""
        for leaf in (leaf for thing in things for leaf in _leaves(thing)):
            if isinstance(leaf, torch.Tensor):
                held = local(leaf.detach())
                self._memory.add(held.untyped_storage().data_ptr())
                self._alike[held.shape, held.dtype].append(held)
            elif type(leaf) not in (*PLAIN, *_EMPTY):
                self._is_known = False

    def may_have(self, tensor: torch.Tensor) -> bool:
        """Returns whether a state has this tensor or a copy of it, or may have it in a form of its own."""
        held = local(tensor.detach())
        if not self._is_known or held.untyped_storage().data_ptr() in self._memory:
            return True
        return any(torch.equal(held.to(copy.device), copy) for copy in self._alike[held.shape, held.dtype])


def _leaves(thing: Any) -> Iterator[Any]:
    state_dict = getattr(thing, "state_dict", None)
    return iter(values(state_dict()) if callable(state_dict) else [thing])
