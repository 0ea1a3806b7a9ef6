"""Functions of the script that its loops call, with their source."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import getattr_static, unwrap
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import torch

from rekindle_training.adapter.places import is_of_script
from rekindle_training.adapter.reads import walk
from rekindle_training.adapter.source import Function, function_in, tree_of

DEEPEST = 4
"""Functions that call each other, up to which they are followed."""


@dataclass(frozen=True)
class Callee:
    """A function of the script."""

    function: FunctionType
    holder: object
    """Object that has it as a method; None: none."""

    @property
    def code(self) -> CodeType:
        return self.function.__code__

    @property
    def body(self) -> Sequence[ast.stmt]:
        found = _source(self.function)
        return [] if found is None else found.body

    @cached_property
    def assigned(self) -> frozenset[str]:
        """Variables that it assigns: what they were given is not changed by that."""
        nodes = (node for statement in self.body for node in walk(statement))
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))

    @cached_property
    def shared(self) -> frozenset[str]:
        """Names of others that it uses, as those of the module."""
        return frozenset({*self.code.co_names, *self.code.co_freevars} - {*self.code.co_varnames})

    def resolving(self, values: Mapping[str, Any]) -> Callable[[str], object]:
        """Returns what resolves names in it.

        Args:
            values: of its parameters.
        """
        cells = dict(zip(self.code.co_freevars, self.function.__closure__ or (), strict=False))

        def resolve(name: str) -> object:
            root, *attributes = name.split(".")
            if root in self.code.co_varnames:
                found = values.get(root)
            else:
                found = _content(cells[root]) if root in cells else self.function.__globals__.get(root)
            for attribute in attributes:
                found = getattr(found, "__dict__", {}).get(attribute)
            return found

        return resolve


def callee_of(called: object, holder: object) -> Callee | None:
    """Returns a function of the script whose source is known; None: it is something else, or decorated by a library."""
    if isinstance(called, MethodType):
        holder, called = called.__self__, cast(object, called.__func__)
    if not isinstance(called, FunctionType):
        called, holder = _call_of(called), called
    if not isinstance(called, FunctionType):
        return None
    function = unwrap(called)
    if isinstance(function, FunctionType) and _source(function) is not None:
        return Callee(function, holder)
    return None


def _call_of(thing: object) -> object:
    """Returns the method by which an object of the script's is called. A module of torch's is called by hooks."""
    if isinstance(thing, type) or issubclass(type(thing), torch.nn.Module):
        return None
    return getattr_static(type(thing), "__call__", None)


@lru_cache(maxsize=1024)
def _source(function: FunctionType) -> Function | None:
    code = function.__code__
    return function_in(tree_of(code, function.__globals__), code) if is_of_script(code.co_filename) else None


def pairs(call: ast.Call, code: CodeType, *, has_self: bool) -> Iterator[tuple[str, ast.expr]]:
    """Yields parameters, and what a call gives them.

    Args:
        has_self: the function is a method of an object.
    """
    names = parameters_of(code)
    if has_self and names:
        yield names[0], call.func.value if isinstance(call.func, ast.Attribute) else call.func
    yield from zip(names[has_self:], call.args, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg)


def parameters_of(code: CodeType) -> Sequence[str]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is not assigned yet
        return None
