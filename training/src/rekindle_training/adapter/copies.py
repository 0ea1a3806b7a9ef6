"""Copies of state that a step changes, in addition to the state that is copied at every boundary.

It is parameters that move before the update. If the script requests it, it is all parameters with the state of their optimizers.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rekindle_training.adapter.sharding import local, version
from rekindle_training.adapter.skeleton import put_together, taken_apart

SUSPECTED = 16 * 1024 * 1024
"""Maximum bytes of a parameter that is copied because it might move. A frozen weight of a large layer is no codebook."""

LOOKS = 3
"""Number of steps in which moving parameters are searched.

With a large frozen model each search costs as much as a small step.
"""


@dataclass
class Copies:
    """Copies of tensors, which are always written into the same memory."""

    _given: Sequence[torch.Tensor] = ()
    _copies: list[torch.Tensor] = field(default_factory=list)

    @property
    def content(self) -> Sequence[torch.Tensor]:
        """The copies, in the order in which tensors were given."""
        return self._copies

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        if not tensors and not self._given:
            return
        held = [local(tensor).detach() for tensor in tensors]
        if not _alike(held, self._copies):
            self._copies = []  # before there are others: both would not fit
            self._copies = [torch.empty_like(tensor) for tensor in held]
        self._given = list(tensors)
        if held:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, held)

    def put_back(self) -> None:
        """Restores the tensors from the copies, in their current memory: a script may have assigned other memory by `.data`."""
        if self._given:
            with torch.no_grad():
                torch._foreach_copy_([local(tensor).detach() for tensor in self._given], self._copies)


class Moving:
    """Parameters that a step changes before its update: momentum encoders, codebooks, embeddings that are renormalised.

    They are copied from the step after the one in which they were first seen to move.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._still: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Parameters that no optimizer updates, with one element of each as it was when the step began: a script may write them
        by `.data`, which is not counted."""
        self._parameters: list[torch.nn.Parameter] = []
        self._versions: list[int] = []
        """Change counters of `_parameters` when the step began."""
        self._parts: Sequence[Sequence[torch.nn.Parameter]] = ()
        self._moving: dict[torch.nn.Parameter, None] = {}
        self._looks = 0
        self._copied: frozenset[torch.nn.Parameter] = frozenset()
        self._copies = Copies()

    def look(self, parts: Sequence[Sequence[torch.nn.Parameter]], uncounted: Sequence[torch.nn.Parameter]) -> None:
        """Looks up the parameters of a model that has grown.

        Args:
            parts: parameters of each part of the model. If one moves uncounted, others of its part may, too.
            uncounted: parameters that their module's code may write uncounted. Small ones that no optimizer updates are copied.
        """
        self._parts = parts
        small = (parameter for parameter in self._not_updated(uncounted) if parameter.nbytes <= SUSPECTED)
        self._moving |= dict.fromkeys(small)

    def _not_updated(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        groups = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        updated = {one for held in groups for one in held if one.requires_grad}
        return [parameter for parameter in parameters if parameter not in updated]

    def remember(self, parameters: list[torch.nn.Parameter]) -> None:
        self._still = {}
        if self._looks < LOOKS:
            self._looks += 1
            still = [parameter for parameter in self._not_updated(parameters) if parameter not in self._moving]
            self._still = {parameter: _element(parameter) for parameter in still}
        self._copied = frozenset(self._moving)
        self._copies.take(list(self._moving))
        self._parameters, self._versions = parameters, versions(parameters)

    def notice(self) -> bool:
        """Returns whether parameters have moved that are not copied yet. To be called before the update."""
        now = versions(self._parameters)
        changes = zip(self._parameters, self._versions, now, strict=True) if now != self._versions else ()
        found = {parameter: None for parameter, then, count in changes if count != then}
        moved = {parameter for parameter, then in self._still.items() if not torch.equal(then, _element(parameter))}
        uncounted = moved - found.keys()
        found |= dict.fromkeys(uncounted)
        for part in self._parts:
            if not uncounted.isdisjoint(part):
                found |= dict.fromkeys(self._not_updated(part))
        self._moving |= found
        return not self._copied.issuperset(found)

    def uncopied(self) -> torch.nn.Parameter | None:
        """Returns a parameter that has moved in this step, and cannot be put back."""
        self.notice()
        return next((parameter for parameter in self._moving if parameter not in self._copied), None)

    def put_back(self) -> None:
        self._copies.put_back()


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns how often each was changed (see `version`)."""
    try:
        return [version(tensor) for tensor in tensors]
    except RuntimeError:  # one was made in inference mode, which counts nothing
        return [0 if tensor.is_inference() else version(tensor) for tensor in tensors]


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
    """Returns a copy of a small object's state. For plain values and lists of them, `copy.deepcopy` would be slow."""
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
