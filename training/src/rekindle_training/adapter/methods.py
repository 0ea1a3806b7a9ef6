"""What functions of the script use of the objects that they are given, and of their module, by their source.

Tells what carries something from call to call, such as a count of bad epochs in an object for early stopping.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from inspect import getattr_static
from itertools import accumulate
from types import FunctionType
from typing import NamedTuple

from rekindle_training.adapter.callees import DEEPEST, Callee, callee_of, pairs, parameters_of
from rekindle_training.adapter.names import Names
from rekindle_training.adapter.reads import Loop, changed_by, dotted, path


class Use(NamedTuple):
    """One use of a variable of the module, or of an attribute of a parameter."""

    name: str
    """`parameter.attribute`, or the variable."""
    assigns: bool


def uses(call: ast.Call, names: Names, depth: int = DEEPEST) -> Iterator[Use]:
    """Yields what a call of a function of the script uses, in the order of its source, by the names of who calls.

    Args:
        names: of the frame of the call.
        depth: functions that call each other, up to which they are followed.
    """
    if not depth or (callee := callee_of(*names.function(call.func))) is None:
        return
    given = {parameter: dotted(one) for parameter, one in pairs(call, callee.code, has_self=callee.holder is not None)}
    for use in _uses_in(callee, depth):
        root, _, attribute = use.name.partition(".")
        if root not in callee.code.co_varnames:
            yield use
        elif attribute and given.get(root):
            yield Use(f"{given[root]}.{attribute}", use.assigns)


def property_reads(thing: object, attribute: str) -> Iterable[str]:
    """Returns the attributes that a property of the script's reads; none where it is no property."""
    found = getattr_static(type(thing), attribute, None)
    if not isinstance(found, property) or (callee := callee_of(found.fget, thing)) is None:
        return ()
    itself = callee.code.co_varnames[:1]
    return [name for root, _, name in (use.name.partition(".") for use in _uses_in(callee, DEEPEST)) if (root,) == itself]


def forget() -> None:
    """Lets go of the objects of the script that were looked at."""
    _found.cache_clear()


def _uses_in(callee: Callee, depth: int) -> Sequence[Use]:
    return _found(callee.function, _Same(callee.holder), depth)


class _Same:
    """An object, told from others by its identity."""

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing


@lru_cache(maxsize=256)
def _found(function: FunctionType, holder: _Same, depth: int) -> Sequence[Use]:
    callee = Callee(function, holder.thing)
    itself = callee.code.co_varnames[: holder.thing is not None]
    names = Names(callee.resolving(dict.fromkeys(itself, holder.thing)), lambda _: False)
    ordered = (node for statement in callee.body for node in _ordered(statement))
    own = {*callee.code.co_varnames} - {*parameters_of(callee.code)}
    found = (use for node in ordered for use in _of_node(node, names, depth))
    return [use for use in found if use.name.partition(".")[0] not in own]


def first_read(loop: Loop, names: Names) -> dict[str, int]:
    """Returns what functions read in a turn of a loop before the turn assigns it, with the line of the first such call."""
    found: dict[str, int] = {}
    known: set[str] = set()
    for node in (node for statement in loop.body for node in _ordered(statement)):
        for name, assigns in uses(node, names) if isinstance(node, ast.Call) else _of_node(node, names, 0):
            if assigns:
                known.add(name)
            elif isinstance(node, ast.Call) and known.isdisjoint(accumulate(name.split("."), "{}.{}".format)):
                found.setdefault(name, node.lineno)
    return found


def assigned_below(loop: Loop, names: Names) -> set[str]:
    """Returns what functions assign that a loop calls."""
    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call))
    return {name for call in calls for name, assigns in uses(call, names) if assigns}


def _of_node(node: ast.AST, names: Names, depth: int) -> Iterator[Use]:
    match node:
        case ast.Attribute(ctx=context) if name := dotted(node):
            yield from _of_attribute(name, node, names, is_stored=isinstance(context, ast.Store))
        case ast.Name(id=name, ctx=context):
            yield Use(name, isinstance(context, ast.Store))
        case ast.Subscript(ctx=ast.Store()):
            yield Use(path(node), assigns=True)
        case ast.AugAssign(target=target) if name := dotted(target):
            yield Use(name, assigns=False)
        case ast.Call():
            yield from (Use(name, assigns=True) for name in changed_by([node]))
            if depth:
                yield from uses(node, names, depth - 1)
        case _:
            pass


def _of_attribute(name: str, node: ast.Attribute, names: Names, *, is_stored: bool) -> Iterator[Use]:
    holder = names.value(node.value)
    found = getattr_static(type(holder), node.attr, None)
    if isinstance(found, property):
        root = dotted(node.value)
        yield from (Use(f"{root}.{one}", assigns=False) for one in property_reads(holder, node.attr))
    elif not isinstance(found, FunctionType):
        yield Use(name, is_stored)


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
