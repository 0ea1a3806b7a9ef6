"""Variables that a training loop carries from turn to turn: a replacement begins with their first values.

The source of the loop shows which variables a turn reads before it assigns them. Of these, the ones whose values change between
the first turns are carried: a counter, an average, a hidden state, a batch drawn ahead. They are counted where they reach what is
trained (`flow`), and not where they are only shown or saved. What functions read that the loop calls is not counted.

A loop around the steps, such as one of epochs, is judged in the second step by its source alone: its second turn comes late.
"""

import ast
import logging
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from types import CodeType
from typing import Any, cast

import torch

from rekindle_training.adapter import held, iterators, methods, source, unrolling
from rekindle_training.adapter.digest import leaf_digest
from rekindle_training.adapter.failure_text import FAILURES
from rekindle_training.adapter.flow import TooLong, reaching
from rekindle_training.adapter.methods import FunctionsBelow, is_beside
from rekindle_training.adapter.names import Names
from rekindle_training.adapter.places import CARRIED, frames_of_script
from rekindle_training.adapter.reads import Loop, Reads, assigned, changed, is_memory, prefixes
from rekindle_training.adapter.sites import Frame, chain_of

log = logging.getLogger(__name__)

LOOKS = 4
"""Number of turns at whose beginning the values are compared."""
AROUND = 2
"""Number of the comparison at which the loops around the steps are judged. The begin of the update is known by then."""
LARGEST = 1024 * 1024
"""Maximum number of elements of a tensor or an array that is compared."""
MOST = 10_000
"""Maximum number of values of a variable, including those in containers, that are compared. It may be a whole dataset."""
_WAYS_OUT = (
    "and a rank that is replaced begins with its first value, as does a job that begins again at a checkpoint. Compute it from "
    "the number of the step or epoch; or read it, between session() and the loop, from what the session has, such as "
    "`optimizer.param_groups[0]['lr']`; or keep it in an object with `state_dict` and `load_state_dict` that is given to "
    f'session(state=[...]). session(accept=["{CARRIED}"]) accepts that a recovery may change what is trained'
)
_TRAINED = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)


class Carried:
    """Variables of the loops of one rank."""

    def __init__(self, given: Iterable[object]) -> None:
        """Args:
        given: objects that the session was given. Their state does not belong to the loop.
        """
        things = list(given)
        modules = [part for thing in things if isinstance(thing, torch.nn.Module) for part in thing.modules()]
        self._known = {id(thing) for thing in (*things, *modules)}
        for thing in things:
            parts = getattr(thing, "__dict__", {}).values()
            self._known |= {id(part) for part in parts if not (isinstance(part, _PLAIN) or _is_beside_state([thing, part]))}
        self._opened: dict[CodeType, int] = {}
        """Line of each frame of the script from which the session was entered, perhaps by a function that has returned since."""
        for frame in frames_of_script():
            self._opened.setdefault(frame.f_code, frame.f_lineno)
        self._looks = 0
        self.is_over = False
        self._code: CodeType | None = None
        """Code of the frame that has the loop of steps."""
        self._loop: Loop | None = None
        self._reads: Mapping[str, int] = {}
        """Line of the first read of each variable that a turn reads before it assigns it."""
        self._seen: Mapping[str, object] = {}
        self._updates_at = math.inf
        """Line of the loop's frame at which the update began."""

    def begin_update(self, *, at_end: bool) -> None:
        """Notes the line of the update. Called when a step has all its gradients.

        Args:
            at_end: True if the step has no update, and its scope ends.
        """
        if self._code is None or at_end or self._updates_at < math.inf:
            return
        if frame := next((frame for frame in frames_of_script() if frame.f_code is self._code), None):
            self._updates_at = frame.f_lineno

    def look(self) -> str:
        """Returns in words which variable is carried and matters, and what to do; empty: none. Called when a turn of the loop of
        steps begins."""
        self._looks += 1
        self.is_over = self._looks == LOOKS
        try:
            return f"{found}, {_WAYS_OUT}" if (found := self._found()) else ""
        except TooLong as error:
            log.warning("loop variables checked in part", extra={"reason": str(error)})
            self.is_over = True
            return ""
        except FAILURES:  # of what only protects training
            log.warning("loop variables not checked", exc_info=True)
            self.is_over = True
            return ""
        finally:
            if self.is_over:
                methods.forget()
                source.forget()
                unrolling.forget()

    def _found(self) -> str:
        frames = chain_of(frames_of_script(), self._opened, self._updates_at)
        asking = next((frame for frame in frames if frame.site.steps is not None), None)
        if asking is None:
            return ""
        loop = asking.site.steps
        assert loop is not None
        if asking.code is not self._code or loop is not self._loop:
            self._code, self._loop = asking.code, loop
            self._seen, self._updates_at = {}, math.inf
            self._reads = self._reads_of(loop, asking).found
        if found := self._changed(asking, loop, frames):
            return found
        return self._around(asking, frames) if self._looks == AROUND else ""

    def _reads_of(self, loop: Loop, frame: Frame) -> Reads:
        return Reads(loop, frame.site.holds, FunctionsBelow(self._names(frame)))

    def _changed(self, asking: Frame, loop: Loop, frames: Sequence[Frame]) -> str:
        """Judges the loop of steps, by the values that have changed in it."""
        seen = {name: value for name in self._reads if (value := self._look_at(name, asking)) is not None}
        changed = [name for name, value in seen.items() if name in self._seen and self._seen[name] != value]
        self._seen = seen
        if self._looks == AROUND:
            changed += self._iterators(self._reads, asking)
        lines = dict(self._counted(loop, asking)) if self._looks == AROUND else {}
        return self._said({name: self._reads[name] for name in changed} | lines, loop, frames[frames.index(asking) :], "turn")

    def _around(self, asking: Frame, frames: Sequence[Frame]) -> str:
        """Judges the loops around the steps, by the values that may change according to their source."""
        for number, frame in enumerate(frames):
            for loop in (loop for loop in frame.site.loops if loop is not asking.site.steps):
                reads = self._reads_of(loop, frame)
                moving = changed(loop) | reads.assigned_below
                moves = (name for name in reads.found if not moving.isdisjoint(prefixes(name)))
                names = [name for name in moves if frame.has(name) and self._look_at(name, frame) is not None]
                names += self._iterators(reads.found, frame)
                lines = {name: reads.found[name] for name in names} | dict(self._counted(loop, frame))
                if found := self._said(lines, loop, frames[number:], "epoch"):
                    return found
        return ""

    def _said(self, lines: Mapping[str, int], loop: Loop, frames: Sequence[Frame], turns: str) -> str:
        """Returns which of these variables matters for training, with the lines that read it. Empty: none."""
        frame = frames[0]
        if not lines:
            return ""
        epochs = any(loop is not frame.site.steps for frame in frames for loop in frame.site.loops)
        found = reaching(lines, loop, [frame.site for frame in frames], self._is_given, epochs=epochs)
        for name in (name for name in lines if name in found):
            if not (is_memory(name, loop) or frame.is_restored(name, loop.lineno, self._is_state)):
                return f"{frame.file}:{lines[name]} reads `{name.replace('.[', '[')}`, which changes from {turns} to {turns}"
        return ""

    def _names(self, frame: Frame) -> Names:
        return Names(frame.find, self._is_given, is_beside)

    def _counted(self, loop: Loop, frame: Frame) -> Iterator[tuple[str, int]]:
        """Yields what a loop counts or draws beside the steps or epochs, as by `enumerate` and `zip`, and the line."""
        names = self._names(frame)
        if not isinstance(loop, ast.For):
            return
        for target, given in iterators.beside(loop.target, loop.iter, names.value):
            is_restored = self._is_restored_source(given, names) or frame.comes_from_state(given, loop.lineno, self._is_state)
            if given is not loop.iter and not is_restored:
                yield from ((name, target.lineno) for name in assigned(target))

    def _is_restored_source(self, source: ast.expr, names: Names) -> bool:
        """Returns whether an expression names something that the session restores, or a loader: those are looked at elsewhere."""
        parts = (names.value(part) for part in ast.walk(source) if isinstance(part, ast.Name | ast.Attribute))
        return any(iterators.is_restored(one, self._is_data) for one in parts if one is not None)

    def _iterators(self, names: Iterable[str], frame: Frame) -> Iterator[str]:
        """Yields iterators of the script's among these variables."""
        return (name for name in names if iterators.is_own(frame.find(name), self._is_data))

    def _look_at(self, name: str, frame: Frame) -> object:
        holders = [frame.find(part) for part in prefixes(name)]
        if type(holders[-1]).__module__.startswith("rekindle_training"):
            return None
        is_had = any(id(one) in self._known or type(one).__module__.startswith("rekindle_training") for one in holders)
        if is_had and (not _is_beside_state(holders) or is_beside(holders[-2], name.rpartition(".")[2])):
            return None
        return _value(holders[-1])

    def _is_state(self, thing: object) -> bool:
        """Returns whether a session restores the object's content: something that was given to it, or the session itself."""
        return id(thing) in self._known and not issubclass(type(thing), torch.nn.Module)

    def _is_data(self, thing: object) -> bool:
        """Returns whether an object was given to the session, and is not trained."""
        return id(thing) in self._known and not issubclass(type(thing), _TRAINED)

    def _is_given(self, thing: object) -> bool:
        """Returns whether an object was given to the session, or is of a kind that is, or a collection of such.

        Reads the object's type, since `__class__` may execute code of the object, which may warn.
        """
        kind = type(thing)
        if issubclass(kind, list | tuple):
            return any(map(self._is_given, islice(_parts(thing), 1)))
        if issubclass(kind, dict):
            return any(map(self._is_given, islice(dict.values(cast(dict[object, object], thing)), 1)))
        if issubclass(kind, torch.Tensor):
            return isinstance(thing, torch.nn.Parameter) or id(thing) in self._known
        return issubclass(kind, _TRAINED) or (thing is not None and id(thing) in self._known)


def _is_beside_state(holders: Sequence[object]) -> bool:
    """Returns whether the last of these is a tensor that a module has as a plain attribute, and not as a parameter or a buffer.
    It is no part of the module's state."""
    *_, holder, thing = [None, *holders]
    if not (issubclass(type(thing), torch.Tensor) and issubclass(type(holder), torch.nn.Module)):
        return False
    return any(thing is one for one in held.attributes(holder).values())


def _parts(container: Any) -> Iterator[object]:
    """Yields what a container has, without executing code of a class that is derived from it."""
    kind = next(kind for kind in _CONTAINERS if issubclass(type(container), kind))
    return chain.from_iterable(dict.items(container)) if kind is dict else kind.__iter__(container)


class _TooLarge(Exception):
    """A variable has more values than are compared."""


def _value(found: object) -> object:
    """Returns a plain value for comparison. None: it is something else, or too large."""
    try:
        return _looked_at(found, count())
    except (_TooLarge, RuntimeError):  # a container that holds itself, or that a thread changes meanwhile
        return None


def _looked_at(found: Any, number: Iterator[int]) -> object:
    """Raises _TooLarge. Asks the type what it is, as `Carried` does elsewhere."""
    if next(number) == MOST:
        raise _TooLarge
    kind = type(found)
    if issubclass(kind, str | bytes) and len(found) > LARGEST:
        raise _TooLarge
    if of := next((one for one in _PLAIN if issubclass(kind, one)), None):
        return kind, cast(Any, of).__repr__(found)
    if issubclass(kind, _CONTAINERS):
        return kind, tuple(_looked_at(part, number) for part in _parts(found))
    if issubclass(kind, torch.Tensor):
        plain = found.layout is torch.strided and found.numel() <= LARGEST and not isinstance(found, torch.nn.Parameter)
        return leaf_digest(found.detach()) if plain else None
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray | numpy.generic) and found.size <= LARGEST:
        return str(found.dtype), found.shape, found.tobytes()
    return None
