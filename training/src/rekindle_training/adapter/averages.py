"""Averages of the model that a script keeps by itself, and which its session was not given.

An example is a copy of the weights that follows them after each update: a teacher, or what is exported in the end. It changes
after the update, so the rehearsal does not show it. No rank has it in its state, so no comparison shows it either. A process that
replaces another one would begin it again, without a word.

An average is found by how it moves: a turn of the loop adds the same part of the difference to the parameters everywhere. What
is only copied from the parameters, and what is computed from gradients, moves otherwise. A copy may have less precision, and then
it moves by parts of some differences and the whole of others.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from torch.nn.parameter import is_lazy

from rekindle_training.adapter import held
from rekindle_training.adapter.failure_text import FAILURES
from rekindle_training.adapter.sharding import local

log = logging.getLogger(__name__)

LOOKS = 5
"""Number of turns at whose beginning is looked for averages."""
LONGEST = 32
"""The same for a script that has copies of the model that do not move yet."""
_DEEPEST = 4
"""Attributes of attributes, and containers in containers, that are looked into."""
_MOST, _LARGEST = 20_000, 10_000
"""Maximum number of objects that are looked at in one turn, and of parts of one of them. It may be a whole dataset."""
_PAIRS, _ELEMENTS = 16, 64
"""Number of tensors of an average that are compared, and of elements of each."""
_FEWEST = 4
"""Minimum number of elements that differ from the parameters. A few numbers, such as losses, may move alike by chance."""
_WHOLE = 0.999
"""Part of the difference from which on a copy follows the parameters wholly."""
_CORRELATED = 0.5
"""Least correlation of what a copy has moved with its difference to the parameters. Rounding lowers it."""
_OF_TORCH = frozenset(vars(torch.nn.Module())) - {"_modules"}
"""Attributes of a module that hold nothing of the script's but its own tensors, which are looked at beside them."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, ModuleType, FunctionType, MethodType)


class _Copy(NamedTuple):
    """Elements of what may be an average, and of the parameters in the same places."""

    copied: torch.Tensor
    parameters: torch.Tensor
    precision: torch.Tensor
    """Relative error and least distance of two elements of the copy."""


_Name = tuple[str, int]
"""Name that the script has for a copy, and number of the module that it is a copy of."""


class Averages:
    """Copies of what a rank trains, in the variables of its script."""

    def __init__(self, modules: Iterable[torch.nn.Module], given: Iterable[object]) -> None:
        """Args:
        modules: those that the session was given.
        given: all objects that the session was given.
        """
        self._modules, self._given = list(modules), list(given)
        self._seen: Mapping[_Name, _Copy] = {}
        self._looks = 0
        self.is_over = False

    def look(self, frames: Iterable[FrameType]) -> str:
        """Returns the name of an average that has moved since the last look. Empty: none has. Called when a turn begins."""
        self._looks += 1
        try:
            return self._moved(frames)
        except FAILURES:  # of what only protects training
            log.warning("averages of the model not looked for", exc_info=True)
            self.is_over = True
            return ""
        finally:
            self.is_over = self.is_over or self._looks >= (LONGEST if self._seen else LOOKS)
            if self.is_over:
                self._seen = {}

    def _moved(self, frames: Iterable[FrameType]) -> str:
        before, self._seen = self._seen, dict(self._copies(frames))
        moved = (key for key, copy in self._seen.items() if key in before and _follows(before[key], copy))
        return next((name for name, of in moved if not self._is_in_states(self._seen[name, of], of)), "")

    def _is_in_states(self, copy: _Copy, of: int) -> bool:
        """Returns whether an object that the session was given has this copy of a module in its state, wherever it keeps it."""
        parameters = list(self._modules[of].parameters())
        others = (one for one in self._given if not issubclass(type(one), torch.nn.Module | torch.optim.Optimizer))
        states = {str(number): one.state_dict() for number, one in enumerate(others) if hasattr(one, "state_dict")}
        had = (_pairs(tensors, parameters) for _, tensors in _holders(states, set(), 1))
        return any(torch.equal(_taken(pairs).copied, copy.copied) for pairs in had if pairs)

    def _copies(self, frames: Iterable[FrameType]) -> Iterator[tuple[_Name, _Copy]]:
        """Yields what has the shapes of all parameters that a module trains, by the name that the script has for it."""
        known = _reached_from(self._given)
        trained = [(number, list(module.parameters())) for number, module in enumerate(self._modules)]
        trained = [(number, held_there) for number, held_there in trained if any(one.requires_grad for one in held_there)]
        fewest = min((sum(one.requires_grad for one in held_there) for _, held_there in trained), default=_MOST)
        for frame in frames:
            for name, tensors in _holders(_variables(frame), known, fewest):
                for number, parameters in trained:
                    if pairs := _pairs(tensors, parameters):
                        yield (name, number), _taken(pairs)


def _variables(frame: FrameType) -> Mapping[str, Any]:
    return {**frame.f_globals, **frame.f_locals}


def _reached_from(given: Iterable[object]) -> set[int]:
    """Returns the ids of objects that can be reached from what the session was given, and the addresses of their tensors."""
    known = set[int]()
    for _, thing, _ in _walk({str(number): thing for number, thing in enumerate(given)}, known):
        tensors = _of_module(thing) if issubclass(type(thing), torch.nn.Module) else (thing,)
        known |= {local(one).data_ptr() for one in tensors if _is_filled(one)}
    return known


def _holders(variables: Mapping[str, Any], known: set[int], fewest: int) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yields modules and containers of the script's that have so many tensors, but for those that the session has."""
    for name, thing, parts in _walk(variables, set(known)):
        tensors = list(_of_module(thing)) if issubclass(type(thing), torch.nn.Module) else list(parts.values())
        if len(tensors) < fewest:
            continue
        kept = [one for one in tensors if _is_own(one, known)]
        if len(kept) >= fewest:
            yield name, kept


def _is_own(thing: object, known: set[int]) -> bool:
    """Returns whether a thing is a tensor of numbers whose memory the session does not have."""
    if not _is_filled(thing) or not thing.is_floating_point() or thing.layout is not torch.strided:
        return False
    return bool(thing.numel()) and thing.device.type != "meta" and local(thing).data_ptr() not in known


def _is_filled(thing: object) -> TypeGuard[torch.Tensor]:
    """Returns whether a thing is a tensor. One of a layer that has not seen its first input has no elements yet."""
    return issubclass(type(thing), torch.Tensor) and not is_lazy(cast(torch.Tensor, thing))


def _walk(roots: Mapping[str, Any], seen: set[int]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yields objects with their names and parts, without executing code of the script's. Asks their types what they are, as the
    `__class__` of a stand-in may be computed."""
    waiting = deque((name, thing, 0) for name, thing in roots.items())
    most = len(seen) + _MOST
    while waiting and len(seen) < most:
        name, thing, depth = waiting.popleft()
        if id(thing) in seen or issubclass(type(thing), _PLAIN):
            continue
        seen.add(id(thing))
        parts = {} if issubclass(type(thing), torch.Tensor) else _parts(name, thing)
        yield name, thing, parts
        if depth < _DEEPEST:
            waiting.extend((part, held_there, depth + 1) for part, held_there in parts.items())


def _parts(name: str, thing: Any) -> Mapping[str, Any]:
    """Returns what an object has, by name. Dictionaries are copied first, as a thread of the script may change them."""
    kind = type(thing)
    if next((base.__len__(thing) for base in (dict, list, tuple) if issubclass(kind, base)), 0) > _LARGEST:
        return {}
    if issubclass(kind, dict):
        return {f"{name}[{key!r}]": value for key, value in dict.copy(thing).items() if type(key) in (str, int)}
    if issubclass(kind, list | tuple):
        begin = list.__iter__ if issubclass(kind, list) else tuple.__iter__
        return {f"{name}[{number}]": value for number, value in enumerate(begin(thing))}
    left_out = _OF_TORCH if issubclass(kind, torch.nn.Module) else ()
    return {f"{name}.{key}": value for key, value in dict(held.attributes(thing)).items() if key not in left_out}


def _of_module(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yields parameters and buffers of a module, each part's parameters before its buffers."""
    for part in torch.nn.Module.modules(module):
        own = held.attributes(part)
        yield from (one for one in chain(own["_parameters"].values(), own["_buffers"].values()) if one is not None)


def _pairs(tensors: list[torch.Tensor], parameters: list[torch.nn.Parameter]) -> list[tuple[torch.Tensor, torch.nn.Parameter]]:
    """Returns the copy of each parameter that trains; nothing, where some have none. The copies stand in the same order."""
    for wanted in (parameters, [one for one in parameters if one.requires_grad]):
        ahead = iter(tensors)
        pairs = [(copy, one) for one in wanted if (copy := _next_alike(ahead, local(one).shape)) is not None]
        if wanted and len(pairs) == len(wanted):
            return [(copy, one) for copy, one in pairs if one.requires_grad]
    return []


def _next_alike(tensors: Iterator[torch.Tensor], shape: torch.Size) -> torch.Tensor | None:
    return next((one for one in tensors if local(one).shape == shape), None)


def _taken(pairs: list[tuple[torch.Tensor, torch.nn.Parameter]]) -> _Copy:
    some = pairs[:: -(-len(pairs) // _PAIRS)]
    copied, parameters = (torch.cat([_elements(one[side]) for one in some]) for side in (0, 1))
    kind = max((torch.finfo(one.dtype) for one, _ in some), key=lambda one: one.eps)
    return _Copy(copied, parameters, torch.tensor([kind.eps, kind.smallest_normal * kind.eps], dtype=torch.float64, device="cpu"))


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor).detach().reshape(-1)[:_ELEMENTS].to("cpu", torch.float64)


def _follows(then: _Copy, now: _Copy) -> bool:
    """Returns whether a copy has moved by the same part of its difference to the parameters, wherever there is one."""
    if then.copied.shape != now.copied.shape or _is_copied(now, now.parameters) or _is_copied(now, then.parameters):
        return False
    moved = now.copied - then.copied
    ahead = (parameters - then.copied for parameters in (now.parameters, then.parameters))
    return any(_is_part_of(moved, difference, now) for difference in ahead)


def _is_copied(now: _Copy, parameters: torch.Tensor) -> bool:
    """Returns whether a copy holds nothing but parameters, as precisely as it can."""
    relative, least = now.precision
    return bool(((now.copied - parameters).abs() <= relative * parameters.abs() + least).all())


def _is_part_of(moved: torch.Tensor, difference: torch.Tensor, now: _Copy) -> bool:
    product, square = (moved * difference).sum(), (difference * difference).sum()
    if torch.count_nonzero(difference) < _FEWEST or not product > 0:
        return False
    part = product / square
    correlation = product / (square * (moved * moved).sum()).sqrt()
    rounding = 4 * now.precision[0] * torch.maximum(now.copied.abs(), now.parameters.abs())
    expected = part * difference
    is_even = bool(((moved - expected).abs() <= rounding + 0.01 * expected.abs()).all())
    return is_even and bool(part < _WHOLE) and bool(correlation > _CORRELATED)
