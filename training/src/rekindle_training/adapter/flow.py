"""Whether a variable of a loop reaches what is trained: its gradients, its update, its options or its random numbers.

The source of the loop is followed statement by statement. What is computed from the variable carries it on, and so does what is
assigned where it decides. It has reached training where such a value is in a backward pass, in the update, or in something that
changes what the session was given. A value that is only shown, kept or saved ends without having reached anything.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from inspect import getattr_static
from types import FunctionType

TRAINS = frozenset(["backward", "manual_backward", "manual_seed", "manual_seed_all", "seed", "set_epoch"])
"""Names of functions that are part of training, whoever has them."""
CHANGES = frozenset(["step", "zero_grad", "load_state_dict", "add_param_group", "update_parameters", "unscale_"])
"""The same of what the session was given."""
SHOWS = (
    *("save", "log", "print", "write", "report", "eval", "valid", "test", "record", "dump", "checkpoint", "display", "progress"),
)
"""Parts of names of functions that only look at what is trained."""
ACTS = ("update", "adjust", "set", "step", "train", "anneal", "decay", "freeze", "reset", "copy", "swap", "init", "prune", "clip")
"""Parts of names of functions that change what is trained, where they can reach it."""
PARTS = frozenset(
    [
        *("parameters", "named_parameters", "buffers", "named_buffers", "children", "modules", "named_modules"),
        *("values", "items", "enumerate", "zip", "list", "tuple", "reversed", "iter", "next"),
    ]
)
"""Names of functions that return parts of what is trained."""
TURNS = 4
"""Passes through the loop, each with what the turn before has carried on."""


class Flow:
    """Flow of the values of one loop."""

    def __init__(self, loop: ast.For, resolve: Callable[[str], object], known: Callable[[object], bool], update: float) -> None:
        """
        Args:
            resolve: value of a variable, or of an attribute of one (`self.model`); None: it has none.
            known: whether something was given to the session.
            update: line of the loop's frame at which the update begins.
        """
        self._loop, self._resolve, self._known, self._update = loop, resolve, known, update
        self._aliases: set[str] = set()
        """Variables that name parts of what is trained, such as a group of parameters."""
        self._reached = False

    def reaches(self, name: str) -> bool:
        """Whether the value that this variable, or attribute of a variable, has when a turn begins matters for training."""
        self._reached = False
        hot = {name}
        for _ in range(TURNS):
            before = frozenset(hot)
            hot |= self._block(self._loop.body, set(hot), decides=False)
            if self._reached or hot == before:
                break
        return self._reached

    # Statements.

    def _block(self, statements: Iterable[ast.stmt], hot: set[str], *, decides: bool) -> set[str]:
        """Args:
            hot: what carries the value.
            decides: the value has decided that these statements are executed.

        Returns:
            What carries the value then.
        """
        for statement in statements:
            hot = self._statement(statement, hot, decides)
        return hot

    def _statement(self, statement: ast.stmt, hot: set[str], decides: bool) -> set[str]:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                self._calls(test, hot, decides)
                decides = decides or self._is_hot(test, hot)
                hot = self._block(body, set(hot), decides=decides) | self._block(orelse, set(hot), decides=decides)
            case ast.With(items=items, body=body):
                for item in items:
                    self._calls(item.context_expr, hot, decides)
                    if item.optional_vars is not None:
                        self._store(item.optional_vars, hot, is_hot=self._is_hot(item.context_expr, hot))
                hot = self._block(body, hot, decides=decides)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                done = self._block([*body, *orelse], set(hot), decides=decides)
                failed = [self._block(handler.body, hot | done, decides=decides) for handler in handlers]
                hot = self._block(final, done.union(*failed), decides=decides)
            case ast.Match(subject=subject, cases=cases):
                decides = decides or self._is_hot(subject, hot)
                hot = hot.union(*(self._block(case.body, set(hot), decides=decides) for case in cases))
            case ast.For() | ast.While():
                hot = self._loop_inside(statement, hot, decides)
            case _:
                self._simple(statement, hot, decides)
        return hot

    def _loop_inside(self, loop: ast.For | ast.While, hot: set[str], decides: bool) -> set[str]:
        first = loop.iter if isinstance(loop, ast.For) else loop.test
        self._calls(first, hot, decides)
        many = self._is_hot(first, hot)
        if isinstance(loop, ast.For):
            self._alias(loop.target, first)
            self._store(loop.target, hot, is_hot=many)
        for _ in range(2):
            hot = hot | self._block([*loop.body, *loop.orelse], set(hot), decides=decides or many)
        return hot

    def _simple(self, statement: ast.stmt, hot: set[str], decides: bool) -> None:
        if statement.lineno <= self._update <= (statement.end_lineno or statement.lineno):
            self._reach(decides or self._is_hot(statement, hot))
        self._calls(statement, hot, decides)
        match statement:
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value, hot, decides)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value, hot, decides)
            case ast.AugAssign(target=target) if decides or self._is_hot(statement, hot):
                self._store(target, hot, is_hot=True)
            case ast.FunctionDef(name=name):
                self._store(ast.Name(name), hot, is_hot=self._is_hot(statement, hot))
            case ast.Continue():
                self._reach(decides and statement.lineno <= self._update)

    def _assign(self, targets: Iterable[ast.expr], value: ast.expr, hot: set[str], decides: bool) -> None:
        is_hot = decides or self._is_hot(value, hot)
        for target in targets:
            self._alias(target, value)
            self._store(target, hot, is_hot=is_hot)

    def _store(self, target: ast.expr, hot: set[str], *, is_hot: bool) -> None:
        match target:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._store(element, hot, is_hot=is_hot)
                return
            case ast.Starred(value=value):
                self._store(value, hot, is_hot=is_hot)
                return
            case ast.Name(id=name):
                pass
            case ast.Attribute(value=ast.Name(id=root), attr=attribute):
                name = f"{root}.{attribute}"
                self._reach(is_hot and self._is_trained(target.value))
            case _:
                self._reach(is_hot and self._is_trained(target))
                hot |= {_path(target)} if is_hot else set()
                return
        (hot.add if is_hot else hot.discard)(name)

    def _alias(self, target: ast.expr, value: ast.expr) -> None:
        """A part of what is trained gets a name: `for group in optimizer.param_groups`, `group = optimizer.param_groups[0]`."""
        inputs = value.args if isinstance(value, ast.Call) and _called(value.func) in PARTS else []
        if any(map(self._is_trained, [value, *inputs])):
            self._aliases |= {
                node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }

    # Expressions.

    def _calls(self, node: ast.AST, hot: set[str], decides: bool) -> None:
        """Notices what calls do with the value, apart from what they return."""
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                self._store(part.target, hot, is_hot=self._is_hot(part.value, hot))
            elif isinstance(part, ast.Call):
                self._call(part, hot, decides, drops=isinstance(node, ast.Expr) and node.value is part)

    def _call(self, call: ast.Call, hot: set[str], decides: bool, *, drops: bool) -> None:
        """`drops`: nothing is done with what it returns."""
        name = _called(call.func)
        inputs = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_given = any(self._is_hot(one, hot) for one in inputs)
        if name in TRAINS:
            self._reach(decides or self._is_hot(call, hot))
        if any(word in name.lower() for word in SHOWS):
            return
        if isinstance(call.func, ast.Attribute):
            is_trained = self._is_trained(call.func.value) or any(map(self._is_trained, inputs))
            self._reach(is_trained and (decides or is_given) and (name in CHANGES or name.endswith("_")))
            self._reach(is_given and drops and self._is_trained(call.func.value))
            if is_given and not self._is_trained(call.func.value):
                hot.add(_path(call.func.value))
        if self._can_change(call.func, inputs):
            self._reach(is_given or (decides and any(word in name.lower() for word in ACTS)))

    def _can_change(self, function: ast.expr, inputs: Iterable[ast.expr]) -> bool:
        """Whether it is a function of the script's that is given something of what is trained, or finds it by its name."""
        called = self._resolve(_path(function)) if isinstance(function, ast.Name | ast.Attribute) else None
        holder = None
        if called is None and isinstance(function, ast.Attribute):  # a method, without what a property would do
            holder = self._resolve(_path(function.value))
            called = getattr_static(type(holder), function.attr, None)
        if not isinstance(called, FunctionType) or (called.__module__ or "").split(".")[0] == "torch" or self._known(holder):
            return False
        if any(map(self._is_trained, inputs)):
            return True
        names = called.__code__.co_names
        held = getattr(holder, "__dict__", {})
        return any(map(self._known, [*(called.__globals__.get(one) for one in names), *map(held.get, names), *_cells(called)]))

    def _is_hot(self, node: ast.AST, hot: set[str]) -> bool:
        match node:
            case ast.Attribute(value=ast.Name(id=root), attr=attribute):
                return root in hot or f"{root}.{attribute}" in hot
            case ast.Name(id=name):
                return name in hot or (name != "self" and any(one.startswith(f"{name}.") for one in hot))
        return any(self._is_hot(part, hot) for part in ast.iter_child_nodes(node))

    def _is_trained(self, node: ast.expr) -> bool:
        """Whether an expression names what was given to the session, or a part of it."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
            if isinstance(node, ast.Attribute) and self._known(self._resolve(_path(node))):
                return True
            if isinstance(node, ast.Call) and _called(node.func) not in PARTS:
                return False
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            return False
        found = self._resolve(node.id)
        return self._known(found) or (node.id in self._aliases and not isinstance(found, int | float | str))

    def _reach(self, is_so: bool) -> None:
        self._reached = self._reached or is_so


def _cells(function: FunctionType) -> Iterator[object]:
    """Yields what a function finds around it; a variable that is not assigned yet is left out."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            yield cell.cell_contents


def _path(node: ast.expr) -> str:
    """`a` of `a`, `a[0]`, `a[0].b` and `a()`; `a.b` of `a.b`, `a.b[0]` and `a.b.c`."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=ast.Name(id=root), attr=attribute):
                return f"{root}.{attribute}"
            case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value) | ast.Call(func=value):
                node = value
            case _:
                return ""
    return node.id


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
