"""Checks that a function of the script leaves the training state unchanged: parameters, options of optimizers, small objects.

Buffers are not checked, because a wrapper may send those of one rank to all in an evaluation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rekindle_training.adapter.digest import digest
from rekindle_training.adapter.sample import Sample
from rekindle_training.adapter.sharding import local
from rekindle_training.adapter.state import Stateful
from rekindle_training.adapter.trained import Trained


@dataclass
class Untouched:
    """State of one rank at the time when this object is created."""

    trained: Trained
    small: Mapping[str, Stateful]
    """Objects of `state` that are compared completely, by their names in the session."""

    def __post_init__(self) -> None:
        self._sample = Sample()
        self._sample.remember(list(self._parameters().values()))
        self._values = self._found()

    def changed(self) -> str:
        """Returns in words what has changed since; empty: nothing."""
        found = self._found()
        if names := [name for name in {**self._values, **found} if self._values.get(name) != found.get(name)]:
            return f"{names[0]} ({type(self.small[names[0]]).__name__})" if names[0] in self.small else names[0]
        parameters = self._parameters()
        moved = self._sample.moved(list(parameters.values()))
        return f"the parameter {list(parameters)[min(moved)]}" if moved else ""

    def _found(self) -> dict[str, bytes]:
        options = {f"{option} of {name}": digest(value) for name, option, value in self._options()}
        return options | {name: digest(thing.state_dict()) for name, thing in self.small.items()}

    def _options(self) -> Iterator[tuple[str, str, Any]]:
        for name, thing in {"optimizer": self.trained.optimizer, **self.trained.shared}.items():
            if isinstance(thing, torch.optim.Optimizer):
                for option in {option: None for group in thing.param_groups for option in group if option != "params"}:
                    yield name, option, [group.get(option) for group in thing.param_groups]

    def _parameters(self) -> dict[str, torch.Tensor]:
        return {
            name if root == "model" else f"{root} {name}": local(parameter.detach())
            for root, module in self.trained.own_buffers.roots.items()
            for name, parameter in module.named_parameters()
        }
