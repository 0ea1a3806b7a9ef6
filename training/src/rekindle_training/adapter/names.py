"""What the names in a frame of the script stand for: parts of what is trained, and functions."""

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from inspect import getattr_static
from types import FunctionType

from rekindle_training.adapter.reads import path

PARTS = frozenset(
    [
        *("parameters", "named_parameters", "buffers", "named_buffers", "children", "modules", "named_modules"),
        *("values", "items", "enumerate", "zip", "list", "tuple", "reversed", "iter", "next"),
    ]
)
"""Names of functions that return parts of what is trained."""


class Names:
    """Names of one frame."""

    def __init__(self, resolve: Callable[[str], object], known: Callable[[object], bool]) -> None:
        """
        Args:
            resolve: value of a variable, or of an attribute of one (`self.model`); None: it has none.
            known: whether something was given to the session.
        """
        self.resolve, self._known = resolve, known
        self._aliases: set[str] = set()
        """Variables that name parts of what is trained, such as a group of parameters."""

    @property
    def aliases(self) -> int:
        """How many variables are known to name parts of what is trained."""
        return len(self._aliases)

    def alias(self, target: ast.expr, value: ast.expr) -> None:
        """Notes that a part of what is trained gets a name: `for group in optimizer.param_groups`."""
        inputs = value.args if isinstance(value, ast.Call) and called_name(value.func) in PARTS else []
        if any(map(self.is_trained, [value, *inputs])):
            self._aliases |= {
                node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }

    def is_trained(self, node: ast.expr) -> bool:
        """Tells whether an expression names what was given to the session, or a part of it."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
            if isinstance(node, ast.Attribute) and self._known(self.resolve(path(node))):
                return True
            if isinstance(node, ast.Call) and called_name(node.func) not in PARTS:
                return False
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            return False
        found = self.resolve(node.id)
        return self._known(found) or (node.id in self._aliases and type(found) not in (int, float, str))

    def function(self, function: ast.expr) -> tuple[object, object]:
        """Returns what is called, and the object that has it as a method."""
        if not isinstance(function, ast.Attribute):
            return self.value(function), None
        holder = self.value(function.value)
        held = getattr_static(holder, "__dict__", None)
        if type(held) is dict and function.attr in held:
            return held[function.attr], None
        return getattr_static(type(holder), function.attr, None), holder  # without what a property would do

    def value(self, node: ast.expr) -> object:
        """Returns the value of a variable, of an attribute of one, and so on; None: to know it, something would be executed."""
        match node:
            case ast.Name(id=name):
                return self.resolve(name)
            case ast.Attribute(value=value, attr=attribute):
                return getattr(self.value(value), "__dict__", {}).get(attribute)
        return None

    def can_change(self, function: ast.expr, inputs: Iterable[ast.expr]) -> bool:
        """Tells whether it is a function of the script's that is given a part of what is trained, or finds one by its name."""
        called, holder = self.function(function)
        if not isinstance(called, FunctionType) or (called.__module__ or "").split(".")[0] == "torch" or self._known(holder):
            return False
        if any(map(self.is_trained, inputs)):
            return True
        names = called.__code__.co_names
        held = getattr(holder, "__dict__", {})
        found = [*(called.__globals__.get(one) for one in names), *map(held.get, names), *_cells(called)]
        return any(map(self._known, found))


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
