"""Attributes that an object of the script's carries from call to call, by the source of its methods: a count of bad epochs."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from inspect import getattr_static
from types import FunctionType

from rekindle_training.adapter.places import is_of_script
from rekindle_training.adapter.reads import GROWS

DEEPEST = 4
"""Methods that call each other, up to which they are followed."""


def carries(thing: object, names: Iterable[str]) -> bool:
    """Tells whether one of these methods reads an attribute of the object, before it assigns it, and assigns it.

    Raises:
        OSError: the source of a method cannot be read.
    """
    return any(_carries(_accesses(type(thing), name, DEEPEST)) for name in names)


def _carries(accesses: Iterable[tuple[str, bool]]) -> bool:
    first: dict[str, bool] = {}
    return any(not first.setdefault(name, assigns) and assigns for name, assigns in accesses)


def _accesses(kind: type, name: str, deep: int) -> Iterator[tuple[str, bool]]:
    """Yields the attributes that a method uses, in the order of its source, and whether each is assigned there."""
    method = getattr_static(kind, name, None)
    if not (deep and isinstance(method, FunctionType) and is_of_script(method.__code__.co_filename)):
        return
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    itself = method.__code__.co_varnames[0] if method.__code__.co_argcount else ""
    for node in _ordered(function):
        match node:
            case ast.Attribute(value=ast.Name(id=root), attr=attribute, ctx=context) if root == itself:
                if isinstance(getattr_static(kind, attribute, None), FunctionType):
                    yield from _accesses(kind, attribute, deep - 1)
                else:
                    yield attribute, isinstance(context, ast.Store)
            case ast.Call(func=ast.Name(id=root)) if root == itself:
                yield from _accesses(kind, "__call__", deep - 1)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id=root), attr=attribute), attr=called)) if (
                root == itself and called in GROWS
            ):
                yield attribute, True
            case ast.AugAssign(target=ast.Attribute(value=ast.Name(id=root), attr=attribute)) if root == itself:
                yield attribute, False
            case _:
                pass


def _ordered(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a node in the order in which they are executed. What a call is given comes before it."""
    if not isinstance(node, ast.Call):
        yield node
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For):
        parts.sort(key=lambda part: part is not (node.iter if isinstance(node, ast.For) else node.value))
    for part in parts:
        yield from _ordered(part)
    if isinstance(node, ast.Call):
        yield node
