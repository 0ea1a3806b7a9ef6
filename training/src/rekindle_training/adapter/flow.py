"""Whether a variable of a loop reaches what is trained: its gradients, its update, its options or its random numbers.

The source of the loop is followed statement by statement. What is computed from the variable carries it on, and so does what is
assigned where it decides. It has reached training where such a value is in a backward pass, in the update, or in something that
changes what the session was given. A value that is only shown, kept or saved ends without having reached anything.

In a loop of epochs it has reached training also where it ends the loop or one of its epochs, and where it decides between two
epochs that something is saved, such as the best model.
"""

import ast
import builtins
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import getattr_static, unwrap
from types import CodeType, FunctionType

from rekindle_training.adapter.reads import GROWS, Loop, never_known, path

TRAINS = frozenset(["backward", "manual_backward", "manual_seed", "manual_seed_all", "seed", "set_epoch"])
"""Names of functions that are part of training, whoever has them."""
CHANGES = frozenset(["step", "zero_grad", "load_state_dict", "add_param_group", "update_parameters", "unscale_"])
"""The same of what the session was given."""
SHOWS = (
    *("save", "log", "print", "write", "report", "eval", "valid", "test", "record", "dump", "checkpoint", "display", "progress"),
    *("scalar", "postfix", "description", "plot", "figure"),
)
"""Parts of names of functions that only look at what is trained."""
SAVES = ("save", "checkpoint", "ckpt")
"""Parts of names of functions that keep what is trained."""
SHOWN = ("fig", "plot", "image", "log")
"""Parts of names of functions that keep something else."""
ACTS = ("update", "adjust", "set", "step", "train", "anneal", "decay", "freeze", "reset", "copy", "swap", "init", "prune", "clip")
"""Parts of names of functions that change what is trained, where they can reach it."""
PARTS = frozenset(
    [
        *("parameters", "named_parameters", "buffers", "named_buffers", "children", "modules", "named_modules"),
        *("values", "items", "enumerate", "zip", "list", "tuple", "reversed", "iter", "next"),
    ]
)
"""Names of functions that return parts of what is trained."""
BESIDE = GROWS | frozenset(dir(builtins))
"""Names of functions that update nothing of what is trained."""
TURNS = 4
"""Passes through a loop of steps or epochs, each with what the turn before has carried on."""


@dataclass(frozen=True)
class Site:
    """A frame of the script that is in its loop, or has called the one that is."""

    body: Sequence[ast.stmt]
    resolve: Callable[[str], object]
    """Value of a variable, or of an attribute of one (`self.model`); None: it has none."""
    line: float = math.inf
    """Line at which the update begins, or the frame below is called."""
    loops: Sequence[Loop] = ()
    """Loops around that line, the innermost first."""
    steps: Loop | None = None
    """The one of them whose turns are steps."""
    code: CodeType | None = None
    below: "Site | None" = None
    holds: Callable[[ast.expr], bool | None] = never_known
    """Tells whether a condition is true in each turn; None: it is not known."""


def reaches(name: str, loop: Loop, sites: Sequence[Site], known: Callable[[object], bool], *, epochs: bool) -> bool:
    """Tells whether the value that a variable, or an attribute of one, has when a turn of this loop begins matters for training.

    Args:
        sites: the frame of the loop, and those that have called it.
        known: whether something was given to the session.
        epochs: there are loops of epochs.
    """
    hot, called = {name}, False
    for site in sites:
        flow = Flow(site, known, epochs=epochs, called=called)
        hot = flow.follow(hot, loop)
        if flow.reached:
            return True
        local = site.code.co_varnames if site.code else ()
        hot = {one for one in hot if (root := one.partition(".")[0]) == "self" or root not in local}
        called = flow.returned
        if not (hot or called):
            break
    return False


class Flow:
    """Flow of values through one frame."""

    def __init__(self, site: Site, known: Callable[[object], bool], *, epochs: bool, called: bool = False) -> None:
        """
        Args:
            called: what the frame below returns carries the value.
        """
        self._site, self._resolve, self._known, self._epochs, self._called = site, site.resolve, known, epochs, called
        self._aliases: set[str] = set()
        """Variables that name parts of what is trained, such as a group of parameters."""
        self._begun: tuple[Loop, set[str]] | None = None
        """Loop at the beginning of whose turns these variables carry the value."""
        self._inside: list[bool] = []
        """Marks of the loops around the statement: true for one of the site's."""
        self._skips = False
        """The value has decided that the rest of the turn is left out."""
        self.reached = self.returned = False

    def follow(self, hot: set[str], loop: Loop | None) -> set[str]:
        """Returns what carries the value at the end.

        Args:
            hot: what carries it when a turn of the loop begins, or after the call where the loop is in the frame below.
            loop: None: when the frame begins.
        """
        if loop is not None:
            self._begun, hot = (loop, hot), set()
        return self._block(self._site.body, hot, decides=False)

    def _is_at(self, node: ast.stmt | ast.expr) -> bool:
        return node.lineno <= self._site.line <= (node.end_lineno or node.lineno)

    # Statements.

    def _block(self, statements: Iterable[ast.stmt], hot: set[str], *, decides: bool) -> set[str]:
        """Args:
            hot: what carries the value.
            decides: the value has decided that these statements are executed.

        Returns:
            What carries the value then.
        """
        for statement in statements:
            hot = self._statement(statement, hot, decides or self._skips)
        return hot

    def _statement(self, statement: ast.stmt, hot: set[str], decides: bool) -> set[str]:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                self._calls(test, hot, decides)
                decides = decides or self._is_hot(test, hot)
                holds = self._site.holds(test)
                branches = [branch for branch, of in ((body, True), (orelse, False)) if holds in (None, of)]
                hot = hot.union(*(self._block(branch, set(hot), decides=decides) for branch in branches))
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

    def _loop_inside(self, loop: Loop, hot: set[str], decides: bool) -> set[str]:
        is_ours = any(loop is one for one in self._site.loops)
        if isinstance(loop, ast.For):
            self._calls(loop.iter, hot, decides)
            decides = decides or self._is_hot(loop.iter, hot)
            self._alias(loop.target, loop.iter)
            self._store(loop.target, hot, is_hot=decides)
        if self._begun is not None and self._begun[0] is loop:
            hot = hot | self._begun[1]
        self._inside.append(is_ours)
        for _ in range(TURNS if is_ours else 2):
            hot = hot | self._turn(loop, set(hot), decides)
        self._inside.pop()
        return hot

    def _turn(self, loop: Loop, hot: set[str], decides: bool) -> set[str]:
        if isinstance(loop, ast.While):
            self._calls(loop.test, hot, decides)
            decides = decides or self._is_hot(loop.test, hot)
        self._reach(self._epochs and decides and self._inside[-1])
        hot = self._block([*loop.body, *loop.orelse], hot, decides=decides)
        if self._inside[-1]:
            self._skips = False
        return hot

    def _simple(self, statement: ast.stmt, hot: set[str], decides: bool) -> None:
        self._calls(statement, hot, decides)
        if self._is_at(statement):
            self._reach(decides or (self._site.below is None and self._updates_with(statement, hot)))
            if self._begun is not None and self._begun[0] not in self._site.loops:
                hot |= self._begun[1]
        match statement:
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value, hot, decides)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value, hot, decides)
            case ast.AugAssign(target=target) if decides or self._is_hot(statement, hot):
                self._store(target, hot, is_hot=True)
            case ast.FunctionDef(name=name):
                self._store(ast.Name(name), hot, is_hot=self._is_hot(statement, hot))
            case ast.Continue() | ast.Break() | ast.Return():
                self._leave(statement, hot, decides)

    def _updates_with(self, statement: ast.stmt, hot: set[str]) -> bool:
        """Tells whether the value is given to what updates, and is not only beside it, as in `losses.append(train(batch))`."""
        calls = (part for part in ast.walk(statement) if isinstance(part, ast.Call))
        return any(self._is_hot(call, hot) for call in calls if _called(call.func) not in BESIDE)

    def _leave(self, statement: ast.Continue | ast.Break | ast.Return, hot: set[str], decides: bool) -> None:
        is_ours = bool(self._inside) and self._inside[-1]
        match statement:
            case ast.Continue():
                self._reach(decides and statement.lineno <= self._site.line)
                self._skips = self._skips or (decides and is_ours)
            case ast.Break():
                self._reach(self._epochs and decides and is_ours)
            case ast.Return(value=value):
                self._reach(self._epochs and decides and any(self._inside))
                self.returned = self.returned or decides or (value is not None and self._is_hot(value, hot))

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
                hot |= {path(target)} if is_hot else set()
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
        if self._calls_below(call):
            self._enter(call, hot)
            return
        self._reach(decides and self._ends_or_saves(call, name))
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
                hot.add(path(call.func.value))
        if self._can_change(call.func, inputs):
            self._reach(is_given or (decides and any(word in name.lower() for word in ACTS)))

    def _ends_or_saves(self, call: ast.Call, name: str) -> bool:
        """Tells whether it is `training.finish()`, or saves something between two epochs."""
        if name == "finish" and isinstance(call.func, ast.Attribute):
            return type(self._resolve(path(call.func.value))).__module__.startswith("rekindle_training")
        is_between = self._epochs and (self._site.steps is None or not self._in_steps(call))
        return is_between and any(word in name.lower() for word in SAVES) and not any(word in name.lower() for word in SHOWN)

    def _in_steps(self, node: ast.expr) -> bool:
        steps = self._site.steps
        return steps is not None and steps.lineno <= node.lineno <= (steps.end_lineno or steps.lineno)

    def _calls_below(self, call: ast.Call) -> bool:
        below = self._site.below
        if below is None or not self._is_at(call):
            return False
        called, _ = self._function(call.func)
        return getattr(unwrap(called) if isinstance(called, FunctionType) else called, "__code__", None) is below.code

    def _enter(self, call: ast.Call, hot: set[str]) -> None:
        """Follows the value into the frame below, and notes whether that returns it."""
        below = self._site.below
        assert below is not None
        assert below.code is not None
        if given := set(self._given(call, hot, below.code)):
            flow = Flow(below, self._known, epochs=self._epochs)
            flow.follow(given, None)
            self._reach(flow.reached)
            self._called = self._called or flow.returned

    def _given(self, call: ast.Call, hot: set[str], code: CodeType) -> Iterator[str]:
        """Yields what carries the value when the called function begins."""
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        is_method = isinstance(call.func, ast.Attribute) and names[:1] == ("self",)
        pairs = [*zip(names[is_method:], call.args, strict=False)]
        pairs += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
        if is_method and isinstance(call.func, ast.Attribute):
            pairs.append(("self", call.func.value))
        for parameter, given in pairs:
            if isinstance(given, ast.Name) and given.id not in hot:
                held = (one.partition(".") for one in hot)
                yield from (f"{parameter}.{attribute}" for root, _, attribute in held if root == given.id and attribute)
            elif self._is_hot(given, hot):
                yield parameter
        around = {*code.co_names, *code.co_freevars} - {*code.co_varnames}
        yield from (one for one in hot if one.partition(".")[0] in around)

    def _function(self, function: ast.expr) -> tuple[object, object]:
        """Returns what is called, and the object that has it as a method."""
        called = self._resolve(path(function)) if isinstance(function, ast.Name | ast.Attribute) else None
        if called is not None or not isinstance(function, ast.Attribute):
            return called, None
        holder = self._resolve(path(function.value))
        return getattr_static(type(holder), function.attr, None), holder  # without what a property would do

    def _can_change(self, function: ast.expr, inputs: Iterable[ast.expr]) -> bool:
        """Whether it is a function of the script's that is given something of what is trained, or finds it by its name."""
        called, holder = self._function(function)
        if not isinstance(called, FunctionType) or (called.__module__ or "").split(".")[0] == "torch" or self._known(holder):
            return False
        if any(map(self._is_trained, inputs)):
            return True
        names = called.__code__.co_names
        held = getattr(holder, "__dict__", {})
        return any(map(self._known, [*(called.__globals__.get(one) for one in names), *map(held.get, names), *_cells(called)]))

    def _is_hot(self, node: ast.AST, hot: set[str]) -> bool:
        match node:
            case ast.Call() if self._called and self._is_at(node):
                return True
            case ast.Attribute(value=ast.Name(id=root), attr=attribute):
                return root in hot or f"{root}.{attribute}" in hot
            case ast.Name(id=name):
                return name in hot or (name != "self" and any(one.startswith(f"{name}.") for one in hot))
        return any(self._is_hot(part, hot) for part in ast.iter_child_nodes(node))

    def _is_trained(self, node: ast.expr) -> bool:
        """Whether an expression names what was given to the session, or a part of it."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
            if isinstance(node, ast.Attribute) and self._known(self._resolve(path(node))):
                return True
            if isinstance(node, ast.Call) and _called(node.func) not in PARTS:
                return False
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            return False
        found = self._resolve(node.id)
        return self._known(found) or (node.id in self._aliases and not isinstance(found, int | float | str))

    def _reach(self, is_so: bool) -> None:
        self.reached = self.reached or is_so


def _cells(function: FunctionType) -> Iterator[object]:
    """Yields what a function finds around it; a variable that is not assigned yet is left out."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            yield cell.cell_contents


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
