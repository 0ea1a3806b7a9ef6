"""Functions of the script that its loops call, with their source."""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import getattr_static, unwrap
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import torch

from rekindle_training.adapter import held
from rekindle_training.adapter.places import is_of_script
from rekindle_training.adapter.reads import walk
from rekindle_training.adapter.source import body_of

DEEPEST = 4
"""Maximum depth of nested calls that are followed."""


@dataclass(frozen=True)
class Callee:
    """A function of the script."""

    function: FunctionType
    holder: object
    """Object of which the function is a method. None: it is no method."""
    is_of_call: bool = False
    """True if this object is called itself, and not a method of it."""

    @property
    def code(self) -> CodeType:
        return self.function.__code__

    @property
    def body(self) -> Sequence[ast.stmt]:
        return body_of(self.code, self.function.__globals__)

    @property
    def parameters(self) -> Sequence[str]:
        return self.code.co_varnames[: self.code.co_argcount + self.code.co_kwonlyargcount]

    @property
    def itself(self) -> Mapping[str, Any]:
        """Returns the first parameter of a method, with the object."""
        return {} if self.holder is None else dict.fromkeys(self.parameters[:1], self.holder)

    @cached_property
    def assigned(self) -> frozenset[str]:
        """Returns the variables that the function assigns. Arguments of the caller are not changed by that."""
        nodes = (node for statement in self.body for node in walk(statement))
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))

    def resolving(self, values: Mapping[str, Any]) -> Callable[[str], object]:
        """Returns what resolves names in it.

        Args:
            values: of its parameters.
        """
        around = held.attributes(self.function) if self.function.__closure__ else {}

        def resolve(name: str) -> object:
            root, *parts = name.split(".")
            is_own = root in self.code.co_varnames
            found = values.get(root) if is_own else around.get(root, self.function.__globals__.get(root))
            for part in parts:
                found = held.value_at(found, part)
            return found

        return resolve


def callee_of(called: object, holder: object) -> Callee | None:
    """Returns a function of the script whose source is known; None: it is something else."""
    if isinstance(called, MethodType):
        holder, called = called.__self__, cast(object, called.__func__)
    if is_of_call := not isinstance(called, FunctionType):
        called, holder = _call_of(called), called
    if not isinstance(called, FunctionType):
        return None
    function = unwrap(called)
    if not (isinstance(function, FunctionType) and is_of_script(function.__code__.co_filename)):
        return None
    found = Callee(function, holder, is_of_call)
    return found if found.body else None


def property_of(thing: object, attribute: str) -> Callee | None:
    """Returns the function that reads a property of the script's; None: it is no property."""
    found = getattr_static(type(thing), attribute, None)
    return callee_of(found.fget, thing) if isinstance(found, property) and found.fget is not None else None


def setter_of(thing: object, attribute: str) -> Callee | None:
    """Returns the function that sets a property of the script's; None: it is no property, or cannot be set."""
    found = getattr_static(type(thing), attribute, None)
    return callee_of(found.fset, thing) if isinstance(found, property) and found.fset is not None else None


def pairs(call: ast.Call, callee: Callee) -> Iterator[tuple[str, ast.expr]]:
    """Yields parameters, and what a call gives them."""
    code, has_self = callee.code, callee.holder is not None
    names, more = callee.parameters, list(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    others = more.pop(0) if code.co_flags & inspect.CO_VARARGS else ""
    keywords = more.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else ""
    if has_self and names:
        yield names[0], call.func if callee.is_of_call else _holder(call.func)
    places = iter(names[has_self : code.co_argcount])
    for given in call.args:
        if isinstance(given, ast.Starred):
            yield from ((name, given.value) for name in (*places, others))
        else:
            yield next(places, others), given
    for keyword in call.keywords:
        if keyword.arg is None:
            yield from ((name, keyword.value) for name in (*names[has_self:], keywords))
        else:
            yield keyword.arg if keyword.arg in names else keywords, keyword.value


def _holder(function: ast.expr) -> ast.expr:
    """Returns the object whose method is called; of `super().step` that is `self`."""
    match function:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            return ast.Name("self", ast.Load())
        case ast.Attribute(value=value):
            return value
    return function


def _call_of(thing: object) -> object:
    """Returns the method by which an object of the script's is called."""
    if isinstance(thing, type):
        return None
    return getattr_static(type(thing), "forward" if issubclass(type(thing), torch.nn.Module) else "__call__", None)
