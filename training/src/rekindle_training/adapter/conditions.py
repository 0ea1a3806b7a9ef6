"""Conditions in a loop that are the same in each turn, such as options of the script: one of their branches is never executed."""

import ast
import operator
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from rekindle_training.adapter.reads import dotted, prefixes

_PLAIN = (bool, int, float, str)
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _NotKnown(Exception):
    """The value changes, or cannot be known without executing code of the script."""


class Conditions:
    """Conditions of one frame."""

    def __init__(self, find: Callable[[str], Any], moving: Iterable[str], assigned: Container[str]) -> None:
        """
        Args:
            find: value of a variable, or of an attribute of one; None: it has none.
            moving: variables that may change while the loop goes on.
            assigned: attributes and items that functions of the file assign, of whatever object.
        """
        self._find, self._moving, self._assigned = find, frozenset(moving), assigned

    def __call__(self, test: ast.expr) -> bool | None:
        """Returns whether the condition holds in each turn; None: it is not known."""
        try:
            return bool(self._value(test))
        except (_NotKnown, TypeError):
            return None

    def _value(self, node: ast.expr) -> object:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name() | ast.Attribute() | ast.Subscript() if name := dotted(node):
                return self._option(name)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand)
            case ast.BoolOp(op=op, values=parts):
                return self._combined([self(part) for part in parts], ends=isinstance(op, ast.Or))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return _COMPARED[type(op)](self._value(left), self._value(right))
        raise _NotKnown

    def _combined(self, parts: list[bool | None], *, ends: bool) -> bool:
        """`ends`: value of a part that decides alone: True in `or`."""
        if ends in parts:
            return ends
        if None in parts:
            raise _NotKnown
        return not ends

    def _option(self, name: str) -> object:
        found, last = self._find(name), name.rpartition(".")[2]
        moves = not self._moving.isdisjoint(prefixes(name)) or (last != name and last in self._assigned)
        if not isinstance(found, _PLAIN) or moves:
            raise _NotKnown
        return found
