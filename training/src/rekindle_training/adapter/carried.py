"""Variables that a training loop carries from turn to turn: a replacement begins with their first values.

The source of the loop shows which variables a turn reads before it assigns them. Of these, the ones whose values change between
the first turns are carried: a counter, an average, a hidden state, a batch drawn ahead. They are counted where they reach what is
trained (`flow`), and not where they are only shown or saved. What functions read that the loop calls is not counted either.
"""

import ast
import linecache
import logging
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from rekindle_training.adapter.digest import leaf_digest
from rekindle_training.adapter.flow import Flow
from rekindle_training.adapter.places import frames_of_script
from rekindle_training.adapter.words import FAILURES

log = logging.getLogger(__name__)

LOOKS = 4
"""Turns at whose beginning the values are looked at."""
LARGEST = 1024 * 1024
"""Elements of a tensor or an array up to which it is looked at."""
MOST = 10_000
"""Values of a variable, with those in containers, up to which it is looked at: it may be a whole dataset."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Carried:
    """Variables of the loop of one rank."""

    def __init__(self, given: Iterable[object]) -> None:
        """`given` is what the session was given: its state is none of the loop's."""
        things = list(given)
        self._known = {id(thing) for thing in things}
        for thing in things:
            self._known |= {id(value) for value in getattr(thing, "__dict__", {}).values() if not isinstance(value, _PLAIN)}
        self._looks = 0
        self.is_over = False
        self._code: CodeType | None = None
        """Code of the frame that has the loop."""
        self._loop: ast.For | None = None
        self._reads: Mapping[str, int] = {}
        """Line of the first read of each variable that a turn reads before it assigns it."""
        self._seen: Mapping[str, object] = {}
        self._updates_at = math.inf
        """Line of the loop's frame at which the update began."""

    def begin_update(self, *, at_end: bool) -> None:
        """Called when a step has all its gradients.

        Args:
            at_end: the step has no update of its own, and its scope ends.
        """
        if self._code is None or at_end or self._updates_at < math.inf:
            return
        if frame := next((frame for frame in frames_of_script() if frame.f_code is self._code), None):
            self._updates_at = frame.f_lineno

    def look(self) -> str:
        """Returns in words which variable has changed since the turn before, where it matters; empty: none. Called when a turn
        of the loop begins."""
        self._looks += 1
        self.is_over = self._looks == LOOKS
        try:
            return self._changed()
        except FAILURES:  # of what only protects training
            log.warning("the variables of the loop are not checked", exc_info=True)
            self.is_over = True
            return ""

    def _changed(self) -> str:
        frame = next(iter(frames_of_script()), None)
        if frame is None:
            return ""
        if frame.f_code is not self._code or (self._loop and not _is_asking(self._loop, frame)):
            self._code, self._loop = frame.f_code, _loop_of(frame)
            self._seen, self._updates_at = {}, math.inf
            self._reads = _Reads(self._loop).found if self._loop else {}
        if self._loop is None:
            return ""
        seen = {name: value for name in self._reads if (value := self._look_at(name, frame)) is not None}
        changed = [name for name, value in seen.items() if name in self._seen and self._seen[name] != value]
        self._seen = seen
        if not changed:
            return ""
        flow = Flow(self._loop, lambda name: self._find(name, frame), self._is_given, self._updates_at)
        name = next((name for name in changed if flow.reaches(name)), None)
        if name is None:
            return ""
        return f"{Path(frame.f_code.co_filename).name}:{self._reads[name]} reads `{name}`, which changes from turn to turn"

    def _look_at(self, name: str, frame: FrameType) -> object:
        root = self._find(name.partition(".")[0], frame)
        if id(root) in self._known or type(root).__module__.startswith("rekindle_training"):
            return None
        found = self._find(name, frame)
        return None if id(found) in self._known else _value(found)

    def _find(self, name: str, frame: FrameType) -> Any:
        root, _, attribute = name.partition(".")
        found = frame.f_locals.get(root, frame.f_globals.get(root))
        return getattr(found, "__dict__", {}).get(attribute) if attribute else found

    def _is_given(self, thing: object) -> bool:
        """Whether it was given to the session, or is of a kind that is, or a collection of such."""
        if isinstance(thing, list | tuple) and thing:
            return self._is_given(thing[0])
        kinds = torch.nn.Module, torch.nn.Parameter, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
        return isinstance(thing, kinds) or (thing is not None and id(thing) in self._known)


class _TooLarge(Exception):
    """A variable has more values than are looked at."""


def _value(found: object) -> object:
    """Value of something plain, to be compared; None: it is something else, or too large."""
    try:
        return _looked_at(found, count())
    except (_TooLarge, RuntimeError):  # a container that holds itself, or that a thread changes meanwhile
        return None


def _looked_at(found: object, number: Iterator[int]) -> object:
    if next(number) == MOST:
        raise _TooLarge
    if isinstance(found, _PLAIN):
        return type(found), repr(found)
    if isinstance(found, list | tuple | set | frozenset | dict | deque):
        parts = chain.from_iterable(found.items()) if isinstance(found, dict) else found
        return type(found), tuple(_looked_at(part, number) for part in parts)
    if isinstance(found, torch.Tensor):
        plain = found.layout is torch.strided and found.numel() <= LARGEST and not isinstance(found, torch.nn.Parameter)
        return leaf_digest(found.detach()) if plain else None
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(found, numpy.ndarray | numpy.generic) and found.size <= LARGEST:
        return str(found.dtype), found.shape, found.tobytes()
    return None


def _loop_of(frame: FrameType) -> ast.For | None:
    """Returns the loop that asks for its next turn in this frame; None: its source is not known."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except SyntaxError:
        return None
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For))
    return next((loop for loop in loops if _is_asking(loop, frame)), None)


def _is_asking(loop: ast.For, frame: FrameType) -> bool:
    return loop.lineno <= frame.f_lineno <= (loop.iter.end_lineno or loop.lineno)


class _Reads:
    """Variables, and attributes of variables, that a turn of a loop reads before it assigns them.

    A loop inside the turn is taken to assign all that it could.
    """

    def __init__(self, loop: ast.For) -> None:
        self.found: dict[str, int] = {}
        """Line of the first read."""
        self._all = set(_stored(loop))
        self._block(loop.body, set(_assigned(loop.target)))

    def _block(self, statements: Iterable[ast.stmt], known: set[str]) -> set[str]:
        """Args:
            known: what has been assigned in this turn.

        Returns:
            What has been assigned by the end; everything, where the end is not reached.
        """
        for statement in statements:
            known = self._statement(statement, known | set(_named_inside(statement)))
            if isinstance(statement, ast.Break | ast.Continue | ast.Raise | ast.Return):
                return known | self._all
        return known

    def _statement(self, statement: ast.stmt, known: set[str]) -> set[str]:
        match statement:
            case ast.Assign(targets=targets):
                self._read(statement, known)
                return known.union(*map(_assigned, targets))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._read(value, known)
                return known.union(_assigned(target))
            case ast.AugAssign(target=target):
                self._read(_as_read(target), known)
                self._read(statement, known)
            case ast.If(test=test, body=body, orelse=orelse):
                self._read(test, known)
                return self._block(body, known) & self._block(orelse, known)
            case ast.With(items=items, body=body):
                self._block([ast.Expr(item.context_expr) for item in items], known)
                return self._block(body, known.union(*(_assigned(item.optional_vars) for item in items)))
            case _:
                return self._compound(statement, known)
        return known

    def _compound(self, statement: ast.stmt, known: set[str]) -> set[str]:
        match statement:
            case ast.For(target=target, iter=first, body=body, orelse=orelse):
                self._read(first, known)
                self._block([*body, *orelse], known | set(_assigned(target)))
                return known | set(_stored(statement))
            case ast.While(test=test, body=body, orelse=orelse):
                self._read(test, known)
                self._block([*body, *orelse], known)
                return known | set(_stored(statement))
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                ends = [self._block(handler.body, known | {handler.name or ""}) for handler in handlers]
                return self._block(final, self._block([*body, *orelse], known).intersection(*ends))
            case _:
                self._read(statement, known)
        return known

    def _read(self, node: ast.AST, known: set[str]) -> None:
        for name, line in _reads(node):
            root = name.partition(".")[0]
            if name not in known and root not in known:
                self.found.setdefault(name, line)


def _reads(node: ast.AST) -> Iterator[tuple[str, int]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and isinstance(part.ctx, ast.Load):
            yield f"{part.value.id}.{part.attr}", part.lineno
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id, part.lineno


def _as_read(target: ast.expr) -> ast.expr:
    """Returns the expression that `+=` reads before it assigns its target."""
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Load(), lineno=target.lineno)
        case ast.Attribute(value=value, attr=attribute):
            return ast.Attribute(value, attribute, ast.Load(), lineno=target.lineno)
    return target


def _stored(statement: ast.stmt) -> Iterator[str]:
    """All that a statement assigns somewhere in it."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from _assigned(node)


def _named_inside(statement: ast.stmt) -> Iterator[str]:
    """Variables that are assigned by `:=`."""
    return (node.target.id for node in ast.walk(statement) if isinstance(node, ast.NamedExpr))


def _assigned(target: ast.expr | None) -> Iterator[str]:
    """Variables, and attributes of variables, that an assignment replaces. An element of a container replaces none."""
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            yield f"{name}.{attribute}"
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            yield from chain.from_iterable(map(_assigned, elements))
        case ast.Starred(value=value):
            yield from _assigned(value)
