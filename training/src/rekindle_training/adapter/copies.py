"""Copies of what a step changes, besides what is copied at every boundary: parameters that a forward pass moves, and, where the
script asks for it, all parameters with the state of their optimizers."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.skeleton import put_together, taken_apart

LOOKS = 3
"""Steps in which it is looked for parameters that move: with a large frozen model each look costs as much as a small step."""


@dataclass
class Copies:
    """Copies of tensors, in the same memory each time."""

    _tensors: list[torch.Tensor] = field(default_factory=list)
    _copies: list[torch.Tensor] = field(default_factory=list)

    @property
    def content(self) -> Sequence[torch.Tensor]:
        """The copies, in the order in which tensors were given."""
        return self._copies

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        if not tensors and not self._tensors:
            return
        held = [local(tensor).detach() for tensor in tensors]
        if not _alike(held, self._copies):
            self._copies = []  # before there are others: both would not fit
            self._copies = [torch.empty_like(tensor) for tensor in held]
        self._tensors = held
        if held:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, held)

    def put_back(self) -> None:
        if self._tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors, self._copies)


class Moving:
    """Parameters that no given optimizer updates and that a forward pass moves, as in momentum encoders."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._still: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Parameters that were not seen to move, with one element of each as it was when the step began."""
        self._moving: dict[torch.nn.Parameter, None] = {}
        self._looks = 0
        self._copies = Copies()

    def remember(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._still = {}
        if self._looks < LOOKS:
            self._looks += 1
            updated = {
                one
                for optimizer in self._optimizers
                for group in optimizer.param_groups
                for one in group["params"]
                if one.requires_grad
            }
            still = [parameter for parameter in parameters if parameter not in updated and parameter not in self._moving]
            self._still = {parameter: _element(parameter) for parameter in still}
        self._copies.take(list(self._moving))

    def notice(self) -> None:
        """Called before the update: what has moved is copied from the next step on."""
        self._moving |= {parameter: None for parameter, then in self._still.items() if not torch.equal(then, _element(parameter))}

    def put_back(self) -> None:
        self._copies.put_back()


class Updated:
    """Parameters and the state of optimizers, for steps that are repeated although their update has begun."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._skeleton: Any = None
        """State of the optimizers without its tensors."""
        self._tensors: list[torch.Tensor] = []
        self._copies = Copies()

    def take(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._skeleton, self._tensors = taken_apart([dict(optimizer.state) for optimizer in self._optimizers])
        self._copies.take([*parameters, *self._tensors])

    def put_back(self) -> None:
        self._copies.put_back()
        for optimizer, state in zip(self._optimizers, put_together(self._skeleton, self._tensors), strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)


def copied(state: Any) -> Any:
    """Copy of what a small object keeps. For plain values and lists of them, as of a scheduler, `copy.deepcopy` takes long."""
    if type(state) is not dict:
        return copy.deepcopy(state)
    found: dict[Any, Any] = {}
    lists: dict[int, list[Any]] = {}
    for key, value in state.items():
        if type(value) in _PLAIN:
            found[key] = value
        elif type(value) is list and _PLAIN.issuperset(map(type, value)):
            found[key] = lists.setdefault(id(value), value.copy())
        else:
            return copy.deepcopy(state)
    return found


_PLAIN = frozenset({bool, int, float, str, type(None)})


def _element(parameter: torch.nn.Parameter) -> torch.Tensor:
    held = local(parameter).detach()
    return held[tuple(size // 2 for size in held.shape)].clone() if held.numel() else held


def _alike(held: Sequence[torch.Tensor], copies: Sequence[torch.Tensor]) -> bool:
    return len(held) == len(copies) and all(
        (one.shape, one.dtype, one.device, one.stride()) == (other.shape, other.dtype, other.device, other.stride())
        for one, other in zip(held, copies, strict=True)
    )
