"""Use that functions of the script make of the objects that they are given, of their module, and of what is around them."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from inspect import getattr_static

import torch

from rekindle_training.adapter import held
from rekindle_training.adapter.callees import DEEPEST, Callee, callee_of, pairs, property_of
from rekindle_training.adapter.names import Names
from rekindle_training.adapter.reads import Reads, Uses, dotted, is_memory, mutated_by, walk
from rekindle_training.adapter.unrolling import unrolled

_found: dict[tuple[object, int, int], tuple[Uses, object]] = {}
"""Uses of functions, by their code, the object that has them and how deep they are; with that object, which lives as long."""


class FunctionsBelow:
    """Functions that a frame, or a function, calls."""

    def __init__(self, names: Names, depth: int = DEEPEST) -> None:
        """
        Args:
            depth: functions that call each other, up to which they are followed.
        """
        self._names, self._depth = names, depth

    def call(self, call: ast.Call) -> Uses:
        """Returns what a call of a function of the script uses; nothing where it is another one."""
        if not self._depth or (callee := callee_of(*self._names.function(call.func))) is None:
            return Uses()
        parameters = {parameter: dotted(one) for parameter, one in pairs(call, callee)}
        uses = _uses(callee, self._depth)
        return Uses(*(tuple(_outside(names, callee, parameters, dotted(call.func))) for names in uses))

    def attribute(self, node: ast.Attribute) -> Iterable[str]:
        return property_reads(self._names.value(node.value), node.attr, dotted(node.value))

    def turns(self, loop: ast.For) -> Sequence[ast.stmt] | None:
        return unrolled(loop, self._names.value)


def _outside(names: Iterable[str], callee: Callee, parameters: Mapping[str, str], function: str) -> Iterable[str]:
    """Yields the names of a function as its caller names them."""
    for name in names:
        root, dot, rest = name.partition(".")
        if root in callee.code.co_varnames:
            if given := parameters.get(root):
                yield f"{given}{dot}{rest}"
        else:
            yield name
            if root in callee.code.co_freevars and function:
                yield f"{function}.{name}"


def property_reads(thing: object, attribute: str, name: str) -> Iterable[str]:
    """Returns what a property of the script's reads; nothing where it is no property.

    Args:
        name: of the object.
    """
    if not name or (callee := property_of(thing, attribute)) is None:
        return ()
    itself = callee.code.co_varnames[0]
    return _outside(_uses(callee, DEEPEST).reads, callee, {itself: name}, "")


def is_beside(thing: object, attribute: str) -> bool:
    """Returns whether the forward pass of a module does not read this attribute, such as the list of losses of a trainer."""
    kind = type(thing)
    if not issubclass(kind, torch.nn.Module) or attribute not in held.attributes(thing):
        return False
    forward = callee_of(getattr_static(kind, "forward", None), thing)
    if forward is None:
        return kind.forward is torch.nn.Module.forward
    itself = forward.code.co_varnames[0]
    read = (name.split(".")[:2] for name in _uses(forward, DEEPEST).reads)
    return [itself, attribute] not in read


def forget() -> None:
    """Drops the script's objects that were examined."""
    _found.clear()


def _uses(callee: Callee, depth: int) -> Uses:
    key = callee.code, id(callee.holder), depth
    if key not in _found:
        _found[key] = Uses(), callee.holder  # of a function that calls itself
        names = Names(callee.resolving(callee.itself), lambda _: False)
        reads = Reads(callee.body, below=FunctionsBelow(names, depth - 1))
        nodes = [node for statement in callee.body for node in walk(statement)]
        declared = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        assigns = mutated_by(nodes) | (stored & declared) | reads.assigned_below
        found = [name for name in reads.found if not is_memory(name, ast.Module([*callee.body], []))]
        always = reads.always - (stored - declared)
        _found[key] = Uses(*(_known_outside(some, callee) for some in (found, assigns, always))), callee.holder
    return _found[key][0]


def _known_outside(names: Iterable[str], callee: Callee) -> Sequence[str]:
    """Returns names that are known outside of a function: parts of parameters, and names that are not its variables."""
    own = {*callee.code.co_varnames} - {*callee.parameters}
    return [name for name in names if name.partition(".")[0] not in own]
