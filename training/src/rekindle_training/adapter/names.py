"""Meaning of the names in a frame of the script: parts of what is trained, and functions."""

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from inspect import getattr_static
from types import FunctionType
from typing import cast

from rekindle_training.adapter import held
from rekindle_training.adapter.reads import dotted

PARTS = frozenset(
    [
        *("parameters", "named_parameters", "buffers", "named_buffers", "children", "modules", "named_modules"),
        *("values", "items", "enumerate", "zip", "list", "tuple", "reversed", "iter", "next"),
    ]
)
"""Names of functions that return parts of what is trained."""


class Names:
    """Names of one frame."""

    def __init__(
        self,
        resolve: Callable[[str], object],
        known: Callable[[object], bool],
        is_beside: Callable[[object, str], bool] = lambda *_: False,
    ) -> None:
        """
        Args:
            resolve: value of a variable, or of an attribute of one (`self.model`); None: it has none.
            known: whether something was given to the session.
            is_beside: whether an attribute of an object has nothing to do with what is trained.
        """
        self.resolve, self._known, self._is_beside = resolve, known, is_beside
        self._aliases: set[str] = set()
        """Variables that name parts of what is trained, such as a group of parameters."""

    @property
    def aliases(self) -> int:
        """Number of variables that are known to name parts of what is trained."""
        return len(self._aliases)

    def alias(self, target: ast.expr, value: ast.expr) -> None:
        """Notes that a part of what is trained gets a name: `for group in optimizer.param_groups`."""
        inputs = value.args if isinstance(value, ast.Call) and called_name(value.func) in PARTS else []
        if any(map(self.is_trained, [value, *inputs])):
            self._aliases |= {
                node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }

    def is_trained(self, node: ast.expr) -> bool:
        """Returns whether an expression names what was given to the session, or a part of it."""
        if isinstance(node, ast.List | ast.Tuple):
            return any(map(self.is_trained, node.elts))
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
            if name := dotted(node):
                if self._known(self.resolve(name)):
                    return True
                if isinstance(node, ast.Attribute) and self._is_beside(self.value(node.value), node.attr):
                    return False
            if isinstance(node, ast.Call) and called_name(node.func) not in PARTS:
                return False
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            return False
        found = self.resolve(node.id)
        return self._known(found) or (node.id in self._aliases and type(found) not in (int, float, str))

    def function(self, function: ast.expr) -> tuple[object, object]:
        """Returns what is called, and the object that has it as a method."""
        match function:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                holder = self.resolve("self")
                mro = type(holder).__mro__
                after = mro.index(kind) + 1 if (kind := self.resolve("__class__")) in mro else len(mro)
                return next((vars(one)[name] for one in mro[after:] if name in vars(one)), None), holder
            case ast.Attribute(value=value, attr=name):
                return _method(self.value(value), name)
        return self.value(function), None

    def value(self, node: ast.expr) -> object:
        """Returns the value of a variable, of an attribute of one, and so on; None: to know it, something would be executed."""
        name = dotted(node)
        return self.resolve(name) if name else None

    def can_change(self, function: ast.expr, inputs: Iterable[ast.expr]) -> bool:
        """Returns whether a function of the script receives a part of what is trained, or finds one by its name."""
        called, holder = self.function(function)
        if not isinstance(called, FunctionType) or (called.__module__ or "").split(".")[0] == "torch" or self._known(holder):
            return False
        if any(map(self.is_trained, inputs)):
            return True
        names = called.__code__.co_names
        has = held.attributes(holder).get
        found = [*(called.__globals__.get(one) for one in names), *map(has, names), *_cells(called)]
        return any(map(self._known, found))


def _method(holder: object, name: str) -> tuple[object, object]:
    """Returns what is called by an attribute, without what a property would do."""
    own = held.attributes(holder).get(name)
    found = getattr_static(type(holder), name, None) if own is None else own
    match found:
        case staticmethod():
            return cast(object, found.__func__), None
        case classmethod():
            return cast(object, found.__func__), holder if isinstance(holder, type) else type(holder)
    return found, holder if own is None else None


def _cells(function: FunctionType) -> Iterator[object]:
    """Yields what a function finds around it; a variable that is not assigned yet is left out."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            yield cell.cell_contents


def called_name(function: ast.expr) -> str:
    """Returns the last name of what is called: `step` of `self.optimizer.step`."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
