"""Plain attributes of modules as they were when a step began: counters, modes, `p` of a Dropout. Used by `boundary.py`.

Attributes of torch's own modules are remembered if a script may have set them: floating point numbers, and names that torch
does not define. Names that torch never changes, such as `in_features`, would only cost time in each step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rekindle_training.adapter.attributes import PLAIN

_Values = dict[str, Any]
_ALWAYS = frozenset({"training", "T_destination"})
"""Names that are left out: the boundary restores them itself, or they belong to torch."""
_KNOWN = frozenset(vars(torch.nn.Module()))


class Settings:
    """Plain attributes of the modules of one rank."""

    def __init__(self) -> None:
        self._of_the_script: list[_Values] = []
        """Attributes of modules of the script's own classes, which may count in their forward pass."""
        self._of_torch: list[_Values] = []
        self._constants: list[frozenset[str]] = []
        """Names that torch defines in each of these modules."""
        self._places: list[tuple[_Values, str]] = []
        self._sizes: list[int] = []
        """Numbers of attributes in `_of_torch` when `_places` were found."""
        self._then: list[_Values] = []
        self._then_at_places: list[Any] = []

    def look(self, modules: Sequence[torch.nn.Module]) -> None:
        """Takes these modules from the next step on."""
        of_torch = [module for module in modules if type(module).__module__.startswith("torch.nn.")]
        self._of_torch, self._constants = [vars(module) for module in of_torch], [_constants(module) for module in of_torch]
        self._of_the_script = [vars(module) for module in modules if not type(module).__module__.startswith("torch.nn.")]
        self._find_places()

    def remember(self) -> None:
        self._then = [_plain(values) for values in self._of_the_script]
        if list(map(len, self._of_torch)) != self._sizes:
            self._find_places()
        self._then_at_places = [values.get(name) for values, name in self._places]

    def put_back(self) -> None:
        for values, then in zip(self._of_the_script, self._then, strict=True):
            _put(values, then)
        before = {(id(values), name) for values, name in self._places}
        for (values, name), then in zip(self._places, self._then_at_places, strict=True):
            if type(then) in PLAIN:
                values[name] = then
        for values, constants in zip(self._of_torch, self._constants, strict=True):
            for name in [name for name in _settable(values, constants) if (id(values), name) not in before]:
                del values[name]

    def _find_places(self) -> None:
        pairs = zip(self._of_torch, self._constants, strict=True)
        self._places = [(values, name) for values, constants in pairs for name in _settable(values, constants)]
        self._sizes = list(map(len, self._of_torch))


def _constants(module: torch.nn.Module) -> frozenset[str]:
    """Names of attributes that torch gives each module of this class."""
    return frozenset(getattr(type(module), "__constants__", ()))


def _settable(values: Mapping[str, Any], constants: frozenset[str]) -> list[str]:
    return [
        name
        for name, value in values.items()
        if type(value) in PLAIN
        and name not in _ALWAYS
        and (type(value) is float or not (name in constants or name in _KNOWN or name.startswith("_")))
    ]


def _plain(values: Mapping[str, Any]) -> _Values:
    return {name: value for name, value in values.items() if type(value) in PLAIN}


def _put(values: _Values, then: Mapping[str, Any]) -> None:
    for name in [name for name, value in values.items() if type(value) in PLAIN and name not in then]:
        del values[name]
    values.update(then)
