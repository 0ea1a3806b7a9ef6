"""Iterators from which a loop draws. A replacement creates them again, and begins at their first value."""

import ast
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import GeneratorType

from rekindle_training.adapter.names import called_name

_LOADERS = ("rekindle_training.", "torchdata.", "torch.utils.data.dataloader", "torch.utils.data._utils")
"""Modules of loaders and their iterators: those that the session was not given are refused where they are used."""
_DEEPEST = 4
_MOST = 64
"""Maximum number of objects that an iterator holds which are examined, on each level."""


def is_own(thing: object, is_data: Callable[[object], bool]) -> bool:
    """Returns whether an object is an iterator of the script that draws from nothing that the session restores.

    Args:
        is_data: returns whether the session restores the items of an object.
    """
    return hasattr(type(thing), "__next__") and not is_restored(thing, is_data)


def is_restored(thing: object, is_data: Callable[[object], bool], depth: int = _DEEPEST) -> bool:
    """Returns whether an object is, or an iterator draws from, what the session restores or a library's loader."""
    if is_data(thing) or any(_module(kind).startswith(_LOADERS) for kind in type(thing).__mro__) or _is_ours(thing):
        return True
    is_iterator = hasattr(type(thing), "__next__")
    return depth > 0 and is_iterator and any(is_restored(one, is_data, depth - 1) for one in _held(thing))


def _module(kind: type) -> str:
    return f"{kind.__module__}."


def _held(thing: object) -> Iterator[object]:
    """Yields what an iterator draws from."""
    if isinstance(thing, GeneratorType):
        yield from inspect.getgeneratorlocals(thing).values()
        yield thing.gi_yieldfrom
        names = _globals(thing)
        yield from (names[name] for name in thing.gi_code.co_names if name in names)
    else:
        for one in gc.get_referents(thing)[:_MOST]:
            yield from one if type(one) in (list, tuple) and len(one) <= _MOST else [one]


def beside(target: ast.expr, node: ast.expr, value: Callable[[ast.expr], object]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields targets of a loop that come with the session's steps or epochs from `enumerate` or `zip`, and their sources.

    Args:
        target: of the loop.
        node: what it goes over.
        value: value of an expression; None: it is not known without executing something.
    """
    if not _asks(node, value):
        yield target, node
        return
    match node, target:
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *start], keywords=named), ast.Tuple(elts=[counted, rest]):
            begins = [*start, *(one.value for one in named)]
            yield counted, begins[0] if begins else ast.Constant(0)
            yield from beside(rest, inner, value)
        case ast.Call(func=function, args=parts), ast.Tuple(elts=targets) if called_name(function) in ("zip", "zip_longest"):
            for one, part in zip(targets, parts, strict=False):
                yield from beside(one, part, value)
        case ast.Call(args=[inner, *_]), _ if _asks(inner, value):  # a bar of progress, a slice
            yield from beside(target, inner, value)


def _asks(node: ast.expr, value: Callable[[ast.expr], object]) -> bool:
    """Returns whether an expression gives steps or epochs of the session: `training.steps(9)`, or a variable that has them."""
    if isinstance(node, ast.Call):
        is_ours = isinstance(node.func, ast.Attribute) and _is_ours(value(node.func.value))
        return is_ours or any(_asks(one, value) for one in node.args)
    return _is_ours(value(node))


def _is_ours(thing: object) -> bool:
    """Returns whether an object is of this package."""
    module = _globals(thing).get("__name__", "") if isinstance(thing, GeneratorType) else type(thing).__module__
    return f"{module}.".startswith("rekindle_training.")


def _globals(generator: "GeneratorType[object, None, object]") -> Mapping[str, object]:
    return {} if generator.gi_frame is None else generator.gi_frame.f_globals
