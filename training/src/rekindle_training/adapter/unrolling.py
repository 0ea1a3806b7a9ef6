"""Loops over collections of the script's objects, such as hooks: one turn after the other, with the object by its place."""

import ast
import copy
from collections.abc import Callable, Sequence
from types import FunctionType

from rekindle_training.adapter.places import is_of_script
from rekindle_training.adapter.reads import Place, dotted

MOST = 16
"""Maximum number of objects of a collection over which a loop is unrolled."""
_unrolled: dict[tuple[ast.For, tuple[int, ...]], Sequence[ast.stmt]] = {}
"""Turns by the loop and its objects: a second look finds the same nodes."""


def unrolled(loop: ast.For, value: Callable[[ast.expr], object]) -> Sequence[ast.stmt] | None:
    """Returns the turns of `for hook in hooks`; None: it is another loop.

    Args:
        value: value of an expression; None: it is not known without executing something.
    """
    places = _places(loop.iter, value)
    things = [value(place) for place in places]
    if not isinstance(loop.target, ast.Name) or not things or len(things) > MOST or not any(map(_is_of_script, things)):
        return None
    key = loop, tuple(map(id, things))
    if key not in _unrolled:
        turns = (_Substituted(loop.target.id, place).visit(copy.deepcopy(one)) for place in places for one in loop.body)
        _unrolled[key] = [*turns, *loop.orelse]
    return _unrolled[key]


def forget() -> None:
    """Drops the loops that were unrolled."""
    _unrolled.clear()


def _places(collection: ast.expr, value: Callable[[ast.expr], object]) -> list[ast.expr]:
    match collection:
        case ast.Call(func=ast.Attribute(value=owner, attr="values"), args=[]) if dotted(owner):
            found = value(owner)
            keys = [*dict.keys(found)] if isinstance(found, dict) else []
            return [
                ast.Subscript(owner, ast.Constant(key), ast.Load()) for key in keys if isinstance(key, str) and key.isidentifier()
            ]
        case ast.Name() | ast.Attribute() if dotted(collection):
            found = value(collection)
            many = len(found) if type(found) in (list, tuple) else 0  # type: ignore[arg-type]
            return [ast.Subscript(collection, ast.Constant(Place(number)), ast.Load()) for number in range(many)]
    return []


def _is_of_script(thing: object) -> bool:
    """Returns whether an object is a function of the script, or its class has some."""
    found = [thing] if isinstance(thing, FunctionType) else [one for kind in type(thing).__mro__ for one in vars(kind).values()]
    return any(isinstance(one, FunctionType) and is_of_script(one.__code__.co_filename) for one in found)


class _Substituted(ast.NodeTransformer):
    """Puts an object's place where a variable stands for it."""

    def __init__(self, name: str, place: ast.expr) -> None:
        self._name, self._place = name, place

    def visit_Name(self, node: ast.Name) -> ast.expr:
        stands_for_it = node.id == self._name and isinstance(node.ctx, ast.Load)
        return ast.copy_location(copy.deepcopy(self._place), node) if stands_for_it else node
