"""Conditions in a loop that are the same in each turn, such as options of the script: one of their branches is never executed."""

import argparse
import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from rekindle_training.adapter.reads import path

_PLAIN = (bool, int, float, str)
_HOLDERS = (argparse.Namespace, SimpleNamespace, ModuleType)
"""Objects whose attributes are taken to be options: other objects may change theirs in any method."""
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _NotKnown(Exception):
    """The value changes, or cannot be told without executing something of the script."""


class Conditions:
    """Conditions of one frame."""

    def __init__(self, find: Callable[[str], Any], moving: Iterable[str]) -> None:
        """
        Args:
            find: value of a variable, or of an attribute of one; None: it has none.
            moving: variables that may change while the loop goes on.
        """
        self._find, self._moving = find, frozenset(moving)

    def __call__(self, test: ast.expr) -> bool | None:
        """Returns whether the condition holds in each turn; None: it cannot be told."""
        try:
            return bool(self._value(test))
        except (_NotKnown, TypeError):
            return None

    def _value(self, node: ast.expr) -> object:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name() | ast.Attribute(value=ast.Name()):
                return self._option(path(node))
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
        root, _, attribute = name.partition(".")
        found = self._find(name)
        is_option = isinstance(found, _PLAIN) and not (attribute and not isinstance(self._find(root), _HOLDERS))
        if not is_option or not self._moving.isdisjoint([root, name]):
            raise _NotKnown
        return found
