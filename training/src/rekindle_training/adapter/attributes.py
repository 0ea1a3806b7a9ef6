"""Plain attributes of modules that the script changes while it trains.

Examples are evaluation mode, `p` of a Dropout, a counter of the model, and which parameters need gradients. A replacement and a
restart begin their loop with these values. Only values that have changed since the loop began are carried. The script sets the
others by itself, and they may differ from rank to rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

PLAIN = (bool, int, float, str, type(None))
"""Types of values that are carried, and restored if a step is repeated."""

_OF_TORCH = frozenset(vars(torch.nn.Module())) - {"training"}
"""Attributes in which torch keeps hooks and similar objects, which the script of a replacement registers itself."""

Place = tuple[str, str, str]
"""Key of an attribute: name of a module in the session, path of a part of it, name of the attribute."""


@dataclass
class Attributes:
    """Attributes of one rank's modules. All ranks take the values of one of them."""

    roots: Mapping[str, torch.nn.Module]
    _first: dict[Place, Any] | None = None
    """Values with which the script began its loop."""
    _taken: dict[Place, Any] = field(default_factory=dict)
    """Values that were taken from another rank or a checkpoint, or had changed when the state was asked for before."""

    def begin_loop(self) -> None:
        """Notes the first values. Called when the script has reached its first step."""
        if self._first is None:
            self._first = {place: value for place, value, _ in self._all()}
            self._put(self._taken)

    def state_dict(self) -> dict[str, Any]:
        """Returns the values that have changed, also those that are as before by now: a replacement says the same of them."""
        changed = self._changed()
        self._taken |= changed
        return {"changed": changed}

    def _changed(self) -> dict[Place, Any]:
        """Returns the values that have changed since the loop began, or that were taken."""
        if self._first is None:
            return dict(self._taken)
        first = self._first
        return {
            place: value for place, value, _ in self._all() if place in self._taken or place not in first or value != first[place]
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        changed, first = state["changed"], self._first or {}
        self._put({place: first[place] for place in self._changed().keys() - changed.keys() if place in first})
        self._taken = dict(changed)
        if self._first is not None:
            self._put(changed)

    def _put(self, values: Mapping[Place, Any]) -> None:
        """Sets attributes. A module may not have some of them yet, because its forward pass creates them."""
        parts = {(root, name): part for root, module in self.roots.items() for name, part in _parts(module)}
        for (root, name, attribute), value in values.items():
            if (part := parts.get((root, name))) is not None:
                setattr(part, attribute, value)

    def _all(self) -> Iterator[tuple[Place, Any, object]]:
        for root, module in self.roots.items():
            for name, part in module.named_modules():
                for attribute, value in vars(part).items():
                    if type(value) in PLAIN and attribute not in _OF_TORCH:
                        yield (root, name, attribute), value, part
            for name, parameter in module.named_parameters():
                yield (root, name, "requires_grad"), parameter.requires_grad, parameter


def _parts(module: torch.nn.Module) -> Iterator[tuple[str, object]]:
    """Modules and parameters by their names, which differ."""
    yield from module.named_modules()
    yield from module.named_parameters()
