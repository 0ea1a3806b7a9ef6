"""Frames of the script that are in its training loop, with their source."""

import ast
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rekindle_training.adapter import held
from rekindle_training.adapter.conditions import Conditions
from rekindle_training.adapter.flow import Site
from rekindle_training.adapter.reads import Loop, assigned, changed_by, dotted, mutated_by, prefixes, walk
from rekindle_training.adapter.source import body_of, tree_of


@dataclass(frozen=True)
class Frame:
    """A frame of the script, at one moment."""

    code: CodeType
    find: Callable[[str], Any]
    """Returns the value of a variable, or of an attribute of one. None: it has none."""
    is_there: Callable[[str], bool]
    site: Site
    since: int
    """Line at which the session was entered; 0: it was entered in another frame."""

    def has(self, name: str) -> bool:
        """Returns whether a variable, or an attribute of one, has a value."""
        holder, _, attribute = name.rpartition(".")
        return held.has(self.find(holder), attribute) if holder else self.is_there(name)

    @property
    def file(self) -> str:
        return Path(self.code.co_filename).name

    def is_restored(self, name: str, line: int, is_state: Callable[[object], bool]) -> bool:
        """Returns whether a variable is assigned between the session and a line from something that the session restores."""
        nodes = (node for statement in self.site.body for node in ast.walk(statement))
        found = [
            node
            for node in nodes
            if isinstance(node, ast.Assign)
            and self.since < node.lineno < line
            and name in {one for target in node.targets for one in assigned(target)}
        ]
        return bool(found) and self.comes_from_state(found[-1].value, found[-1].lineno, is_state)

    def comes_from_state(self, value: ast.expr, line: int, is_state: Callable[[object], bool]) -> bool:
        """Returns whether an expression at a line takes its value from something that the session restores."""
        return any(self._is_state(node, line, is_state) for node in _makes(value))

    def _is_state(self, node: ast.AST, line: int, is_state: Callable[[object], bool]) -> bool:
        match node:
            case ast.Attribute(value=ast.Name(id=root), attr=attribute) if _is_session(self.find(root)):
                return attribute == "step"
            case ast.Name() | ast.Attribute() if name := dotted(node):
                holders = [self.find(part) for part in prefixes(name)]
                return any(map(is_state, holders)) or _is_session(holders[-1]) or self.is_restored(name, line, is_state)
        return False


def _makes(value: ast.AST) -> Iterator[ast.AST]:
    """Yields what a value is made of; neither what only decides about it nor what is only counted."""
    yield value
    match value:
        case ast.Compare():
            return
        case ast.IfExp(body=body, orelse=orelse):
            parts: Iterable[ast.AST] = (body, orelse)
        case ast.Call(func=ast.Name(id="len")) | ast.Attribute(value=ast.Name()):
            return
        case _:
            parts = ast.iter_child_nodes(value)
    for part in parts:
        yield from _makes(part)


def _is_session(thing: object) -> bool:
    return type(thing).__module__.startswith("rekindle_training")


def chain_of(frames: Iterable[FrameType], opened: Mapping[CodeType, int], updates_at: float) -> Sequence[Frame]:
    """Returns the frames from the innermost one to the first from which the session was entered.

    Args:
        opened: lines at which frames of the script entered it, by their code.
        updates_at: line at which the update begins, of the frame with the loop of steps.
    """
    found: list[Frame] = []
    has_steps = False
    for frame in frames:
        since = opened.get(frame.f_code, 0)
        body = body_of(frame.f_code, frame.f_globals)
        loops = _around(body, frame.f_lineno, since)
        find = _finder(frame)
        steps = None if has_steps else next((loop for loop in loops if _is_asking(loop, frame.f_lineno)), None)
        has_steps = has_steps or steps is not None
        site = Site(
            body,
            find,
            line=frame.f_lineno if steps is None else updates_at,
            loops=loops,
            steps=steps,
            code=frame.f_code,
            below=found[-1].site if found and steps is None else None,
            holds=Conditions(
                find, _moving(body, frame, loops[-1].lineno if loops else frame.f_lineno), _assigned_by_functions(frame)
            ),
        )
        found.append(Frame(frame.f_code, find, ChainMap(frame.f_locals, frame.f_globals).__contains__, site, since))
        if since:
            break
    return found


def _finder(frame: FrameType) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        root, *parts = name.split(".")
        found = frame.f_locals.get(root, frame.f_globals.get(root))
        for part in parts:
            found = held.value_at(found, part)
        return found

    return find


def _moving(body: Iterable[ast.stmt], frame: FrameType, line: int) -> set[str]:
    """Returns variables that may change from this line on, by statements of the frame or by functions of its file."""
    later = (node for one in body for node in walk(one) if getattr(node, "lineno", 0) >= line)
    file = ast.walk(tree_of(frame.f_code, frame.f_globals))
    everywhere = (node for node in file if isinstance(node, ast.Global | ast.Nonlocal))
    return changed_by(later) | {name for node in everywhere for name in node.names}


def _assigned_by_functions(frame: FrameType) -> set[str]:
    """Returns attributes and items that functions of the frame's file assign, but for those of objects that are just made."""
    functions = (one for one in ast.walk(tree_of(frame.f_code, frame.f_globals)) if isinstance(one, ast.FunctionDef))
    nodes = (node for one in functions if one.name != "__init__" for statement in one.body for node in walk(statement))
    return {name.rpartition(".")[2] for name in mutated_by(nodes) if "." in name}


def _around(body: Iterable[ast.AST], line: int, since: int) -> list[Loop]:
    """Returns the loops around a line that were begun after the session, the innermost first."""
    loops = [loop for loop in _loops(body) if loop.lineno <= line <= (loop.end_lineno or line)]
    return [loop for loop in reversed(loops) if not loop.lineno <= since <= (loop.end_lineno or line)]


def _loops(nodes: Iterable[ast.AST]) -> Iterator[Loop]:
    """Returns the loops of these statements, but not of functions in them. An outer loop comes before its inner loops."""
    for node in nodes:
        if isinstance(node, Loop):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _loops(ast.iter_child_nodes(node))


def _is_asking(loop: Loop, line: int) -> bool:
    return isinstance(loop, ast.For) and loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno)
