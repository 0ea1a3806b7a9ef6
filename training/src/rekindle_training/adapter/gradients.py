"""Gradients that are held when a step begins, as they were then.

They are copied where steps add to them, into the memory of the copies of the step before. Where each step drops them before its
first backward pass nothing is copied, and where they are zero only that is kept.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

import torch

from rekindle_training.adapter.copies import Copies
from rekindle_training.adapter.sharding import local, version


class CannotGoBack(Exception):
    """State has changed that only an update may change, so that the rank cannot go back."""


class Use(Enum):
    """Use that a step makes of the gradients of the step before."""

    UNKNOWN = "unknown"
    DROPPED = "dropped"
    ADDED = "added"
    ZERO = "zero"
    """Steps add to the gradients of the step before, which are zero."""


class Gradients:
    """Gradients of the parameters of one rank. A `Stateful`: a replacement goes on with the use that its replica has found."""

    def __init__(self) -> None:
        self._use = Use.UNKNOWN
        self._are_dropped_first = False
        self._held: list[ReferenceType[torch.Tensor] | None] = []
        """Gradient of each parameter when the step began."""
        self._versions: list[int] = []
        """Change counters of the gradients that were held."""
        self._dropped: set[int] = set()
        """Ids of parameters whose gradients the script has dropped in this step, before it added to them.

        DDP may give a parameter the same tensor again.
        """
        self._zeroed: set[int] = set()
        """Ids of parameters whose gradients the script has set to zero in this step and kept, instead of dropping them."""
        self._kept: set[int] = set()
        """Ids of parameters whose gradients the script has set to zero when it last dropped gradients, in whatever step."""
        self._ends: list[tuple[int, ReferenceType[torch.Tensor], int]] = []
        """First and last parameter with a gradient: id, gradient and change counter when the step began."""
        self._are_copied = False
        self._copies = Copies()
        self._largest: torch.Tensor | None = None
        """Largest element of all held gradients, not read from its device yet."""

    def state_dict(self) -> dict[str, bool]:
        """State that all ranks have in common."""
        return {"added": self.are_added}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        if state["added"]:
            self._use = Use.ADDED

    @property
    def are_added(self) -> bool:
        """Returns whether a step adds to the gradients of the step before."""
        return self._use is Use.ADDED

    def dropped(self, parameters: Sequence[torch.nn.Parameter], of: Collection[torch.nn.Parameter], *, are_kept: bool) -> None:
        """Notes that the script drops gradients. If there are none then, it does so at the beginning of steps.

        Args:
            parameters: all parameters.
            of: those whose gradients it drops.
            are_kept: gradients are set to zero instead. An optimizer updates a parameter whose gradient is zero, and leaves out
                one that has none.
        """
        dropped = set(map(id, of))
        is_first = all(place in self._dropped or _is_untouched(held, version) for place, held, version in self._ends)
        if is_first:
            self._dropped |= dropped
        self._zeroed = self._zeroed | dropped if are_kept and is_first else self._zeroed - dropped
        self._kept = self._kept | dropped if are_kept else self._kept - dropped
        if self._use is Use.UNKNOWN and all(parameter.grad is None for parameter in parameters):
            self._are_dropped_first = True

    def remember(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        found = [parameter.grad for parameter in parameters]
        held = [gradient for gradient in found if gradient is not None]
        self._dropped, self._zeroed = set(), set()
        with_gradient = [place for place, gradient in enumerate(found) if gradient is not None]
        self._ends = [
            (id(parameters[place]), ref(gradient), version(gradient))
            for place in {*with_gradient[:1], *with_gradient[-1:]}
            if (gradient := found[place]) is not None
        ]
        self._are_copied = self._use is Use.ADDED or (self._use is Use.UNKNOWN and not self._are_dropped_first)
        self._copies.take(held if self._are_copied else [])
        self._largest = largest(held) if self._use is Use.ZERO and held else None
        self._versions = [version(gradient) for gradient in held]
        self._held = [None if gradient is None else ref(gradient) for gradient in found] if held else [None] * len(parameters)

    def notice(self, parameters: Sequence[torch.nn.Parameter], *, is_one_of_several: bool) -> None:
        """Notes whether a step has added to the gradients with which it began. Called when it has all its gradients.

        Args:
            is_one_of_several: True if the step may have other updates, which may still drop their gradients.
        """
        if not self._versions or self._use is Use.ADDED:
            return
        pairs = [(old, parameter.grad) for old, parameter in zip(self._held, parameters, strict=False) if old is not None]
        dropped = [
            id(parameter) in self._dropped for old, parameter in zip(self._held, parameters, strict=False) if old is not None
        ]
        kept = (
            (now, then)
            for (old, now), then, is_dropped in zip(pairs, self._versions, dropped, strict=False)
            if now is not None and now is old() and not is_dropped
        )
        added = any(not is_one_of_several or version(now) != then for now, then in kept)
        if not added:
            self._use = Use.DROPPED if self._use is Use.UNKNOWN else self._use
        elif self._use is Use.ZERO:
            self._use = Use.ADDED if self._are_not_zero else Use.ZERO
        else:
            copies = self._copies.content
            self._use = Use.ZERO if copies and not largest(copies).item() else Use.ADDED

    def are_kept(self, parameter: torch.nn.Parameter) -> bool:
        """Returns whether a parameter has a gradient that the script sets to zero, and does not drop."""
        gradient = parameter.grad
        return gradient is not None and gradient.layout is torch.strided and id(parameter) in self._kept

    def put_back(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Restores the gradients. Raises CannotGoBack if they were changed and not copied."""
        if len(parameters) != len(self._held):
            raise CannotGoBack("parameters were added in the step")
        if self._are_not_zero:
            raise CannotGoBack("gradients were held between two steps, for the first time")
        numbers = count()
        for parameter, old in zip(parameters, self._held, strict=True):
            parameter.grad = None if old is None else self._old(old, next(numbers), parameter)

    def copied(self, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        """Returns copies of the gradients to which steps add, by the names of their parameters."""
        content = self._copies.content if self.are_added and self._are_copied else []
        held = (name for name, old in zip(names, self._held, strict=False) if old is not None)
        return dict(zip(held, content, strict=False))

    @property
    def _are_not_zero(self) -> bool:
        return self._largest is not None and bool(self._largest.item())

    def _old(self, old: "ReferenceType[torch.Tensor]", number: int, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        then, now = old(), parameter.grad
        if self._are_copied or self._largest is not None or id(parameter) in self._zeroed:
            content = self._copies.content[number] if self._are_copied else None
            into = then if then is not None and then is now else torch.empty_like(parameter)
            held = local(into)
            with torch.no_grad():
                held.zero_() if content is None else held.copy_(content)
            return into
        if then is None or then is not now or id(parameter) in self._dropped:
            return None  # dropped by the loop, which drops it again
        if version(then) != self._versions[number]:
            raise CannotGoBack("gradients of the step before were added to, for the first time")
        return then


def _is_untouched(held: "ReferenceType[torch.Tensor]", then: int) -> bool:
    gradient = held()
    return gradient is None or version(gradient) == then


def largest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the largest size of all elements of some tensors, not read from its device yet. A shard may have no element."""
    parts = [part.detach() for part in map(local, tensors) if part.numel()]
    if not parts:
        return torch.zeros((), device="cpu")
    norms = torch._foreach_norm(parts, float("inf"))
    return torch.stack([norm.float().to(norms[0].device) for norm in norms]).max()
