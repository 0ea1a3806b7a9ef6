"""Variables that a turn of a loop reads before it assigns them, by the source of the loop."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

BEGINS = frozenset(["reset", "clear", "copy_", "fill_", "zero_", "fill"])
"""Methods after which an object keeps nothing of its former content."""
GROWS = frozenset(
    [
        *("append", "appendleft", "add", "extend", "insert", "update", "setdefault", "subtract"),
        *("pop", "popleft", "popitem", "remove", "discard", "sort", "reverse", "rotate", "clear"),
        *("fill", "fill_", "add_", "mul_", "div_", "sub_", "copy_", "zero_", "lerp_", "put", "itemset"),
    ]
)
"""Methods that change a container, a tensor or an array."""
Loop = ast.For | ast.While


class Place(int):
    """Place of an object in a list. A number that a script writes is none: what is there may change."""


def never_known(_test: ast.expr) -> None:
    """Returns None for each condition: it is not known whether it is the same in each turn."""


class Uses(NamedTuple):
    """Names that a call of a function uses, as the caller names them."""

    reads: Sequence[str] = ()
    """Names that the function reads before it assigns them."""
    assigns: Sequence[str] = ()
    """Names that the function may assign."""
    always: Sequence[str] = ()
    """Names that the function assigns in each call."""


class Below(Protocol):
    """Functions that a frame calls."""

    def call(self, call: ast.Call) -> Uses: ...

    def attribute(self, node: ast.Attribute) -> Iterable[str]:
        """Returns what a property reads; nothing where it is none."""

    def turns(self, loop: ast.For) -> Sequence[ast.stmt] | None:
        """Returns the turns of a loop over objects of the script's; None: it is another loop."""


class Reads:
    """Variables, and attributes of variables, that a turn of a loop, or a function, reads before it assigns them.

    A loop inside is taken to assign all that it could.
    """

    def __init__(
        self,
        code: Loop | Sequence[ast.stmt],
        holds: Callable[[ast.expr], bool | None] = never_known,
        below: Below | None = None,
    ) -> None:
        """Args:
        holds: returns whether a condition is true in each turn. None: it is not known.
        """
        self._holds, self._below = holds, below
        self.found: dict[str, int] = {}
        """Line of the first read of each name."""
        self.assigned_below: set[str] = set()
        """Names that called functions may assign."""
        body, known = (code.body, set[str]()) if isinstance(code, Loop) else (code, set[str]())
        self._all = {name for one in body for name in stored(one)}
        self._often = Counter(chain.from_iterable(map(stored, body)))
        self._decided: dict[str, frozenset[str]] = {}
        """Names that were assigned under a condition, which is the same where it is asked again."""
        self._ends: list[set[str]] = []
        """Names that were assigned at each `return`."""
        self._always: set[str] = set()
        """Names that functions assign each time that a statement calls."""
        if isinstance(code, ast.While):
            self._read(code.test, set())
        elif isinstance(code, ast.For):
            self._all |= set(assigned(code.target))
            known = set(assigned(code.target))
        end = self._block(body, known)
        self.always = frozenset(end.intersection(*self._ends))
        """Names that are assigned by the end, whichever way it goes."""

    def _block(self, statements: Iterable[ast.stmt], known: set[str]) -> set[str]:
        """Args:
            known: what has been assigned so far.

        Returns:
            What has been assigned by the end; everything, where the end is not reached.
        """
        for statement in statements:
            self._always = set()
            known = self._statement(statement, self._named_inside(statement, known))
            if isinstance(statement, ast.Return):
                self._ends.append(known)
            if isinstance(statement, ast.Break | ast.Continue | ast.Raise | ast.Return):
                return known | self._all
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
                known = known | self._always
        return known

    def _named_inside(self, statement: ast.stmt, known: set[str]) -> set[str]:
        """Returns what is known with the variables that `:=` assigns in a statement."""
        named = [node for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)]
        for node in sorted(named, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0)):
            self._read(node.value, known)
            known = known | {node.target.id}
        return known

    def _statement(self, statement: ast.stmt, known: set[str]) -> set[str]:
        match statement:
            case ast.Assign(targets=targets):
                self._read(statement, known)
                known = known.union(*map(assigned, targets), *map(filled, targets))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._read(value, known)
                known = known.union(assigned(target))
            case ast.AugAssign(target=target):
                self._read(_as_read(target), known)
                self._read(statement, known)
            case ast.If():
                return self._if(statement, known)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=begun, attr=attribute)) as call) if attribute in BEGINS:
                for one in [*call.args, *call.keywords]:
                    self._read(one, known)
                known = known | {path(begun)}
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                self._block([ast.Expr(item.context_expr) for item in items], known)
                return self._block(body, known.union(*(assigned(item.optional_vars) for item in items)))
            case _:
                return self._compound(statement, known)
        return known

    def _if(self, statement: ast.If, known: set[str]) -> set[str]:
        test = ast.dump(statement.test)
        self._read(statement.test, known)
        if (holds := self._holds(statement.test)) is not None:
            return self._block(statement.body if holds else statement.orelse, known)
        done = self._block(statement.body, known | self._decided.get(test, frozenset()))
        if all(not self._often[name] or (name in known and self._often[name] == 1) for name, _ in reads(statement.test)):
            self._decided[test] = frozenset(done)
        return done & self._block(statement.orelse, known)

    def _compound(self, statement: ast.stmt, known: set[str]) -> set[str]:
        match statement:
            case ast.For(target=target, iter=first, body=body, orelse=orelse):
                self._read(first, known)
                turns = self._below.turns(statement) if self._below else None
                self._block(turns or [*body, *orelse], known if turns else known | set(assigned(target)))
                return known.union(stored(statement), _filled_by(statement))
            case ast.While(test=test, body=body, orelse=orelse):
                self._read(test, known)
                self._block([*body, *orelse], known)
                return known | set(stored(statement))
            case ast.Try() | ast.TryStar():
                body, handlers, orelse, final = statement.body, statement.handlers, statement.orelse, statement.finalbody
                ends = [self._block(handler.body, known | {handler.name or ""}) for handler in handlers]
                return self._block(final, self._block([*body, *orelse], known).intersection(*ends))
            case _:
                self._read(statement, known)
        return known

    def _read(self, node: ast.AST, known: set[str]) -> None:
        for name, line in reads(node):
            self._note(name, line, known)
        if self._below is None:
            return
        for part in reversed([*ast.walk(node)]):
            if isinstance(part, ast.Call):
                uses = self._below.call(part)
                for name in uses.reads:
                    self._note(name, part.lineno, known)
                self.assigned_below.update(uses.assigns)
                self._always.update(uses.always)
            elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load):
                for name in self._below.attribute(part):
                    self._note(name, part.lineno, known)

    def _note(self, name: str, line: int, known: set[str]) -> None:
        if known.isdisjoint(prefixes(name)):
            self.found.setdefault(name, line)


def prefixes(name: str) -> Iterator[str]:
    """Yields `a`, `a.b` and `a.b.c` of `a.b.c`."""
    return accumulate(name.split("."), "{}.{}".format)


def reads(node: ast.AST) -> Iterator[tuple[str, int]]:
    inner = {name for part in ast.walk(node) if isinstance(part, ast.comprehension) for name in assigned(part.target)}
    return ((name, line) for name, line in _reads(node) if name.partition(".")[0] not in inner)


def _reads(node: ast.AST) -> Iterator[tuple[str, int]]:
    match node:
        case ast.Subscript(ctx=ast.Load()) if name := dotted(node):
            yield name, node.lineno
            return
        case ast.Subscript(slice=at, ctx=ast.Store()):  # an item is replaced, whatever it was
            yield from _reads(at)
            return
        case ast.Attribute(ctx=ast.Load()) if name := dotted(node):
            yield name, node.lineno
        case ast.Name(id=name, ctx=ast.Load()):
            yield name, node.lineno
    for part in ast.iter_child_nodes(node):
        yield from _reads(part)


def _as_read(target: ast.expr) -> ast.expr:
    """Returns the expression that `+=` reads before it assigns its target."""
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Load(), lineno=target.lineno)
        case ast.Attribute(value=value, attr=attribute):
            return ast.Attribute(value, attribute, ast.Load(), lineno=target.lineno)
        case ast.Subscript(value=value, slice=at):
            return ast.Subscript(value, at, ast.Load(), lineno=target.lineno)
    return target


def filled(target: ast.expr) -> Iterator[str]:
    """Yields what an assignment fills as a whole: `a[:] = b`, `a[...] = b`."""
    match target:
        case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=None, step=None)):
            yield path(value)
        case ast.Subscript(value=value, slice=ast.Constant(value=key)) if key is ...:
            yield path(value)


def _filled_by(loop: ast.For) -> Iterator[str]:
    """Yields what a loop over indices fills one by one: `for n in range(...): a[n] = b`."""
    match loop:
        case ast.For(target=ast.Name(id=number), iter=ast.Call(func=ast.Name(id="range"))):
            for statement in loop.body:
                match statement:
                    case ast.Assign(targets=[ast.Subscript(value=value, slice=ast.Name(id=at))]) if at == number:
                        yield path(value)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a statement, without the variables of comprehensions: those are no variables of the frame."""
    yield node
    for part in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.comprehension) and part is node.target):
            yield from walk(part)


def stored(statement: ast.stmt) -> Iterator[str]:
    """Returns all that a statement assigns in any of its parts."""
    for node in walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from assigned(node)


def assigned(target: ast.expr | None) -> Iterator[str]:
    """Returns variables, and attributes of variables, that an assignment replaces. An element of a container replaces none."""
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Attribute() | ast.Subscript() if name := dotted(target):
            yield name
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            yield from chain.from_iterable(map(assigned, elements))
        case ast.Starred(value=value):
            yield from assigned(value)


def changed(statement: Loop) -> set[str]:
    """Returns all that a statement assigns somewhere in it, wholly or in part, and the containers that it changes by a method."""
    return changed_by(walk(statement))


def changed_by(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the same of nodes of a syntax tree, each for itself."""
    them = list(nodes)
    return {node.id for node in them if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} | mutated_by(them)


def mutated_by(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns what these nodes change in part: attributes, items, containers by their methods."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                found.add(path(node))
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in GROWS:
                found.add(path(value))
    return found - {""}


def is_memory(name: str, code: ast.AST) -> bool:
    """Returns whether code only caches a value: `if key not in name: name[key] = ...`, `if name is None: name = ...`."""
    fills = {id(node) for one in ast.walk(code) if isinstance(one, ast.If) for node in _fills(name, one)}
    changes = [node for node in walk(code) if name in changed_by([node])]
    return bool(changes) and all(id(node) in fills for node in changes)


def _fills(name: str, statement: ast.If) -> Iterator[ast.AST]:
    asked = any(_asks_for_none(name, part) for part in ast.walk(statement.test))
    for one in statement.body if asked else ():
        match one:
            case ast.Assign(targets=[target], value=value) if dotted(target) == name:
                if name not in {read for read, _ in reads(value)}:
                    yield target
    match statement.test:
        case ast.Compare(left=key, ops=[ast.NotIn()], comparators=[held]) if dotted(held) == name:
            for one in statement.body:
                match one:
                    case ast.Assign(targets=[ast.Subscript(value=filled, slice=at) as target], value=value) if (
                        dotted(filled) == name
                        and ast.dump(at) == ast.dump(key)
                        and name not in {read for read, _ in reads(value)}
                    ):
                        yield target


def _asks_for_none(name: str, test: ast.AST) -> bool:
    match test:
        case ast.Compare(left=held, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return dotted(held) == name
    return False


def replaced_fields(target: ast.expr, value: ast.expr) -> dict[str, ast.expr] | None:
    """Returns attributes, and their new values, of an object that is replaced by a copy of itself; None: it is not.

    Of `a = replace(a, b=c)` and `a = a._replace(b=c)` that is `a.b`.
    """
    match value:
        case ast.Call(func=ast.Name(id="replace") | ast.Attribute(attr="replace"), args=[held], keywords=fields):
            pass
        case ast.Call(func=ast.Attribute(value=held, attr="_replace"), args=[], keywords=fields):
            pass
        case _:
            return None
    name = dotted(target)
    is_itself = bool(name) and dotted(held) == name and all(one.arg for one in fields)
    return {f"{name}.{one.arg}": one.value for one in fields} if is_itself else None


def dotted(node: ast.AST) -> str:
    """Returns `a.b.c` of a variable or an attribute, and `a.['b']` of an item of a dictionary; empty of any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute) if root := dotted(value):
            return f"{root}.{attribute}"
        case ast.Subscript(value=value, slice=ast.Constant(value=str() as key)) if key.isidentifier() and (root := dotted(value)):
            return f"{root}.['{key}']"
        case ast.Subscript(value=value, slice=ast.Constant(value=Place() as number)) if root := dotted(value):
            return f"{root}.[{number:d}]"
    return ""


def path(node: ast.expr) -> str:
    """Returns `a` of `a`, `a[0]`, `a[0].b` and `a()`; `a.b` of `a.b` and `a.b[0]`."""
    while not (name := dotted(node)):
        match node:
            case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value) | ast.Call(func=value):
                node = value
            case _:
                return ""
    return name
