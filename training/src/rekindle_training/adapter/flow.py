"""Flow of variables of a loop into what is trained: its gradients, its update, its options or its random numbers.

The source of the loop is followed statement by statement. What is computed from a variable carries it on, and so does what is
assigned where it decides. It has reached training where such a value is in a backward pass, in the update, or in something that
changes what the session was given. A value that is only shown, kept or saved ends without having reached anything.

All variables are followed at once: each value is known by the variables that it carries. Functions of the script are followed
with what they are given, up to some depth.

In a loop of epochs a variable has reached training also where it ends the loop or one of its epochs, and where it decides between
two epochs that something is saved, such as the best model.
"""

import ast
import builtins
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType
from typing import Any

from rekindle_training.adapter.callees import DEEPEST, Callee, callee_of, pairs, setter_of
from rekindle_training.adapter.methods import is_beside, property_reads
from rekindle_training.adapter.names import Names, called_name
from rekindle_training.adapter.reads import (
    BEGINS,
    GROWS,
    Loop,
    assigned,
    dotted,
    filled,
    never_known,
    path,
    prefixes,
    replaced_fields,
)
from rekindle_training.adapter.unrolling import unrolled

TRAINS = frozenset(["backward", "manual_backward", "manual_seed", "manual_seed_all", "seed", "set_epoch"])
"""Names of functions that are part of training, on any object."""
CHANGES = frozenset(["step", "zero_grad", "load_state_dict", "add_param_group", "update_parameters", "unscale_"])
"""Names of functions that are part of training on objects that the session was given."""
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
"""Parts of names of functions that change what is trained, where they can reach it and their source is not followed."""
BESIDE = GROWS | frozenset(dir(builtins))
"""Names of functions that update nothing of what is trained."""
LONGEST = 5.0
"""Maximum CPU seconds to follow the variables of one loop through one frame."""

Carried = frozenset[str]
"""Variables that a value carries."""
NONE: Carried = frozenset()
Hot = dict[str, Carried]
"""Variables that each name carries, for names that carry some."""


@dataclass(frozen=True)
class Site:
    """A frame of the script that is in its loop, or has called the one that is; or a function of the script."""

    body: Sequence[ast.stmt]
    resolve: Callable[[str], object]
    """Value of a variable, or of an attribute of one (`self.model`); None: it has none."""
    line: float = math.inf
    """Line at which the update begins, or the frame below is called."""
    loops: Sequence[Loop] = ()
    """Loops around that line, the innermost first."""
    steps: Loop | None = None
    """Loop among `loops` whose turns are steps. None: there is none."""
    code: CodeType | None = None
    below: "Site | None" = None
    holds: Callable[[ast.expr], bool | None] = never_known
    """Returns whether a condition is true in each turn; None: it is not known."""


def reaching(
    names: Iterable[str], loop: Loop, sites: Sequence[Site], known: Callable[[object], bool], *, epochs: bool
) -> Carried:
    """Returns those variables, and attributes of variables, whose value when a turn of this loop begins matters for training.

    Args:
        sites: the frame of the loop, and those that have called it.
        known: whether something was given to the session.
        epochs: there are loops of epochs.
    """
    hot: Hot = {name: frozenset([name]) for name in names}
    reached = called = NONE
    for site in sites:
        if not (hot or called):
            break
        flow = Flow(site, known, epochs=epochs, called=called)
        hot = flow.follow(hot, loop)
        reached |= flow.reached
        local = site.code.co_varnames if site.code else ()
        hot = {name: what for name, what in hot.items() if (root := name.partition(".")[0]) == "self" or root not in local}
        called = flow.returned
    return reached


class TooLong(Exception):
    """The script has more variables, loops and functions than can be followed in time."""


@dataclass
class _Followed:
    """Functions of the script whose calls are followed in one frame, and in what it calls."""

    until: float
    """Time of the thread at which nothing more is followed."""
    depth: int = 0
    found: dict[object, tuple[Carried, Carried, Hot]] = field(default_factory=dict)
    """Results of calls by what they are given: what reaches training, what is returned, and what carries something at the end."""


class Flow:
    """Flow of values through one frame."""

    def __init__(
        self,
        site: Site,
        known: Callable[[object], bool],
        *,
        epochs: bool,
        called: Carried = NONE,
        followed: _Followed | None = None,
    ) -> None:
        """
        Args:
            called: what the value carries that the frame below returns.
        """
        self._site, self._known, self._epochs, self._called = site, known, epochs, called
        self._names = Names(site.resolve, known, is_beside)
        self._followed = followed or _Followed(time.thread_time() + LONGEST)
        self._begun: tuple[Loop, Hot] | None = None
        """Loop at the beginning of whose turns these names carry something."""
        self._inside: list[bool] = []
        """Marks of the loops around the statement: true for one of the site's."""
        self._skips = self._breaks = self._left = NONE
        """Variables that have decided that the rest of a turn, of a loop and of the function is left out."""
        self._results: dict[ast.Call, Carried] = {}
        """Variables that results of followed calls carry."""
        self._turns: dict[object, Hot] = {}
        """Names that carry something after a loop, by what did before it."""
        self.reached = self.returned = NONE

    def follow(self, hot: Hot, loop: Loop | None, decides: Carried = NONE) -> Hot:
        """Returns what carries something at the end.

        Args:
            hot: what does when a turn of the loop begins, or after the call where the loop is in the frame below.
            loop: None: when the frame begins.
            decides: what has decided that the frame is called.
        """
        if loop is not None:
            self._begun, hot = (loop, hot), {}
        return self._block(self._site.body, hot, decides)

    def _is_at(self, node: ast.stmt | ast.expr) -> bool:
        return node.lineno <= self._site.line <= (node.end_lineno or node.lineno)

    # Statements. `hot` is what carries something before one, `decides` is what has decided that it is executed.

    def _block(self, statements: Iterable[ast.stmt], hot: Hot, decides: Carried) -> Hot:
        for statement in statements:
            hot = self._statement(statement, hot, decides | self._skips | self._left)
        return hot

    def _statement(self, statement: ast.stmt, hot: Hot, decides: Carried) -> Hot:
        if time.thread_time() > self._followed.until:
            raise TooLong(f"the look at the loop took {LONGEST:g} s of a processor")
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                self._calls(test, hot, decides)
                decides = decides | self._carried(test, hot)
                holds = self._site.holds(test)
                branches = [branch for branch, of in ((body, True), (orelse, False)) if holds in (None, of)]
                return _merged(*(self._block(branch, dict(hot), decides) for branch in branches))
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                self._enter_contexts(items, hot, decides)
                return self._block(body, hot, decides)
            case ast.Try() | ast.TryStar():
                done = self._block([*statement.body, *statement.orelse], dict(hot), decides)
                failed = [self._block(handler.body, _merged(hot, done), decides) for handler in statement.handlers]
                return self._block(statement.finalbody, _merged(done, *failed), decides)
            case ast.Match(subject=subject, cases=cases):
                decides = decides | self._carried(subject, hot)
                return _merged(hot, *(self._block(case.body, dict(hot), decides) for case in cases))
            case ast.For() | ast.While():
                return self._loop_inside(statement, hot, decides)
            case _:
                self._simple(statement, hot, decides)
        return hot

    def _enter_contexts(self, items: Iterable[ast.withitem], hot: Hot, decides: Carried) -> None:
        for item in items:
            self._calls(item.context_expr, hot, decides)
            if item.optional_vars is not None:
                self._store(item.optional_vars, hot, self._carried(item.context_expr, hot))

    def _loop_inside(self, loop: Loop, hot: Hot, decides: Carried) -> Hot:
        """Follows the turns of an inner loop until another turn changes nothing."""
        key = loop, frozenset(hot.items()), decides, self._skips, self._called, self._names.aliases
        if key in self._turns:
            return dict(self._turns[key])
        is_ours = any(loop is one for one in self._site.loops)
        turns = unrolled(loop, self._names.value) if isinstance(loop, ast.For) and not is_ours else None
        if isinstance(loop, ast.For) and turns is None:
            self._calls(loop.iter, hot, decides)
            decides = decides | self._carried(loop.iter, hot)
            self._names.alias(loop.target, loop.iter)
            self._store(loop.target, hot, decides)
        if self._begun is not None and self._begun[0] is loop:
            hot = _merged(hot, self._begun[1])
        outside, before = (self._skips, self._breaks), None
        self._inside.append(is_ours)
        while before != (before := (hot, self._breaks, self._called, self._names.aliases)):
            hot = _merged(hot, self._turn(loop, turns or [*loop.body, *loop.orelse], dict(hot), decides))
            self._skips = outside[0] | self._breaks
        self._inside.pop()
        self._skips, self._breaks = outside
        self._turns[key] = dict(hot)
        return hot

    def _turn(self, loop: Loop, body: Sequence[ast.stmt], hot: Hot, decides: Carried) -> Hot:
        if isinstance(loop, ast.While):
            self._calls(loop.test, hot, decides)
            decides = decides | self._carried(loop.test, hot)
        if self._epochs and self._inside[-1]:
            self.reached |= decides
        return self._block(body, hot, decides)

    def _simple(self, statement: ast.stmt, hot: Hot, decides: Carried) -> None:
        self._calls(statement, hot, decides)
        if self._is_at(statement):
            self.reached |= decides | (self._updates_with(statement, hot) if self._site.below is None else NONE)
            if self._begun is not None and self._begun[0] not in self._site.loops:
                _add(hot, self._begun[1])
        match statement:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                self._assign(targets, value, hot, decides)
            case ast.AugAssign(target=target, value=value):
                if what := decides | self._carried(value, hot) | self._carried(target, hot):
                    self._store(target, hot, what)
            case ast.FunctionDef(name=name):
                self._store(ast.Name(name), hot, self._carried(statement, hot))
            case ast.Continue() | ast.Break() | ast.Return():
                self._leave(statement, hot, decides)

    def _updates_with(self, statement: ast.stmt, hot: Hot) -> Carried:
        """Returns what is given to what updates, and is not only beside it, as in `losses.append(train(batch))`."""
        calls = (part for part in ast.walk(statement) if isinstance(part, ast.Call) and part not in self._results)
        return NONE.union(*(self._carried(call, hot) for call in calls if called_name(call.func) not in BESIDE))

    def _leave(self, statement: ast.Continue | ast.Break | ast.Return, hot: Hot, decides: Carried) -> None:
        is_ours = bool(self._inside) and self._inside[-1]
        match statement:
            case ast.Continue():
                self.reached |= decides if statement.lineno <= self._site.line < math.inf else NONE
                self._skips |= decides
            case ast.Break() if is_ours:
                self.reached |= decides if self._epochs else NONE
            case ast.Break():
                self._skips, self._breaks = self._skips | decides, self._breaks | decides
            case ast.Return(value=value):
                self.reached |= decides if self._epochs and any(self._inside) else NONE
                self.returned |= decides | (NONE if value is None else self._carried(value, hot))
                self._left |= decides if not any(self._inside) else NONE

    def _assign(self, targets: Iterable[ast.expr], value: ast.expr, hot: Hot, decides: Carried) -> None:
        what = decides | self._carried(value, hot)
        for target in targets:
            self._names.alias(target, value)
            if (fields := replaced_fields(target, value)) is None:
                self._store(target, hot, what)
            else:
                _add(hot, {name: decides | self._carried(part, hot) for name, part in fields.items()})

    def _store(self, target: ast.expr, hot: Hot, what: Carried) -> None:
        match target:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._store(element, hot, what)
            case ast.Starred(value=value):
                self._store(value, hot, what)
            case ast.Name(id=name):
                _put(hot, name, what)
            case ast.Attribute(value=value, attr=attribute) if name := dotted(target):
                self._set(value, attribute, hot, what)
                _put(hot, name, what)
            case _:
                self.reached |= what if self._names.is_trained(target) else NONE
                if name := dotted(target) or next(filled(target), ""):
                    _put(hot, name, what)
                else:
                    _add(hot, {path(target): what})

    def _set(self, holder: ast.expr, attribute: str, hot: Hot, what: Carried) -> None:
        """Follows a value that is assigned to an attribute, which may be a property."""
        thing = self._names.value(holder)
        self.reached |= what if self._names.is_trained(holder) and not is_beside(thing, attribute) else NONE
        if (setter := setter_of(thing, attribute)) and len(setter.parameters) > 1:
            itself, given = setter.parameters[:2]
            inner = self._given(itself, holder, hot) | ({given: what} if what else {})
            self.reached |= self._end_of(setter, [(itself, holder)], inner, NONE)[0]

    # Expressions.

    def _calls(self, node: ast.AST, hot: Hot, decides: Carried) -> None:
        """Notices what calls do with values, apart from what they return. What a call is given comes before it."""
        for one in (part for part in ast.walk(node) if isinstance(part, ast.comprehension)):
            self._names.alias(one.target, one.iter)
            _add(hot, dict.fromkeys(assigned(one.target), self._carried(one.iter, hot)))
        dropped = node.value if isinstance(node, ast.Expr) else None
        dropped = dropped.elt if isinstance(dropped, ast.ListComp | ast.SetComp | ast.GeneratorExp) else dropped
        for part in reversed([*ast.walk(node)]):
            if isinstance(part, ast.NamedExpr):
                self._store(part.target, hot, self._carried(part.value, hot))
            elif isinstance(part, ast.Call):
                self._call(part, hot, decides, drops=part is dropped)

    def _call(self, call: ast.Call, hot: Hot, decides: Carried, *, drops: bool) -> None:
        """Follows a call.

        Args:
            drops: True if the result of the call is not used.
        """
        name = called_name(call.func)
        if self._calls_below(call):
            self._enter(call, hot)
            return
        self.reached |= decides if self._ends_or_saves(call, name) else NONE
        self.reached |= decides | self._inside_of(call, hot) if name in TRAINS else NONE
        if callee := callee_of(*self._names.function(call.func)) if self._followed.depth < DEEPEST else None:
            self._follow(call, callee, hot, NONE if _says(name, SHOWS) else decides)
        elif not _says(name, SHOWS):
            self._outside(call, hot, decides, drops=drops)

    def _outside(self, call: ast.Call, hot: Hot, decides: Carried, *, drops: bool) -> None:
        """Judges a call that is not followed by its name, by whose it is, and by what it is given."""
        name = called_name(call.func)
        inputs = [*call.args, *(keyword.value for keyword in call.keywords)]
        given = NONE.union(*(self._carried(one, hot) for one in inputs))
        if isinstance(call.func, ast.Attribute):
            is_trained = self._names.is_trained(call.func.value)
            if (is_trained or any(map(self._names.is_trained, inputs))) and (name in CHANGES or name.endswith("_")):
                self.reached |= decides | given
            self.reached |= given if is_trained and drops else NONE
            if not (is_trained or isinstance(self._names.value(call.func.value), ModuleType | type)):
                (_put if name in BEGINS else _join)(hot, path(call.func.value), given)
        if self._names.can_change(call.func, inputs):
            self.reached |= given | (decides if _says(name, ACTS) else NONE)

    def _ends_or_saves(self, call: ast.Call, name: str) -> bool:
        """Returns whether a call is `training.finish()`, or saves something between two epochs."""
        if name == "finish" and isinstance(call.func, ast.Attribute):
            return type(self._names.value(call.func.value)).__module__.startswith("rekindle_training")
        is_between = self._epochs and (self._site.steps is None or not self._in_steps(call))
        return is_between and _says(name, SAVES) and not _says(name, SHOWN)

    def _in_steps(self, node: ast.expr) -> bool:
        steps = self._site.steps
        return steps is not None and steps.lineno <= node.lineno <= (steps.end_lineno or steps.lineno)

    # Functions.

    def _calls_below(self, call: ast.Call) -> bool:
        below = self._site.below
        if below is None or not self._is_at(call):
            return False
        called, _ = self._names.function(call.func)
        return getattr(unwrap(called) if isinstance(called, FunctionType) else called, "__code__", None) is below.code

    def _enter(self, call: ast.Call, hot: Hot) -> None:
        """Follows values into the frame below, and notes what that returns."""
        below = self._site.below
        assert below is not None
        assert below.code is not None
        if (callee := callee_of(*self._names.function(call.func))) is None:
            return
        given = _merged(*(self._given(parameter, one, hot) for parameter, one in pairs(call, callee)))
        _add(given, _around(hot, below.code))
        if given:
            flow = Flow(below, self._known, epochs=self._epochs)
            flow.follow(given, None)
            self.reached |= flow.reached
            self._called |= flow.returned

    def _follow(self, call: ast.Call, callee: Callee, hot: Hot, decides: Carried) -> None:
        """Follows values through a function of the script, and back."""
        parameters, function = [*pairs(call, callee)], dotted(call.func)
        given = _merged(*(self._given(parameter, one, hot) for parameter, one in parameters))
        _add(given, _around(hot, callee.code))
        _add(given, {name: hot.get(f"{function}.{name}", NONE) for name in callee.code.co_freevars})
        key = call, self._followed.depth, frozenset(given.items()), decides
        if key not in self._followed.found:
            self._followed.found[key] = NONE, NONE, {}  # of a function that calls itself
            self._followed.found[key] = self._end_of(callee, parameters, given, decides)
        reached, returned, end = self._followed.found[key]
        self.reached |= reached
        self._results[call] = self._results.get(call, NONE) | returned
        for parameter, one in parameters:
            if name := dotted(one):
                left = {f"{name}{held[len(parameter) :]}": what for held, what in end.items() if held.startswith(f"{parameter}.")}
                _add(hot, left)
                _add(hot, {name: end.get(parameter, NONE)} if parameter not in callee.assigned else {})
        for name, what in end.items():
            if (root := name.partition(".")[0]) not in callee.code.co_varnames:
                _join(hot, name, what)
                _join(hot, f"{function}.{name}" if root in callee.code.co_freevars else "", what)

    def _end_of(
        self, callee: Callee, parameters: Sequence[tuple[str, ast.expr]], given: Hot, decides: Carried
    ) -> tuple[Carried, Carried, Hot]:
        values: dict[str, Any] = {parameter: self._names.value(one) for parameter, one in parameters} | dict(callee.itself)
        site = Site(callee.body, callee.resolving(values), code=callee.code)
        followed = replace(self._followed, depth=self._followed.depth + 1)
        flow = Flow(site, self._known, epochs=False, followed=followed)
        end = flow.follow(dict(given), None, decides)
        return flow.reached, flow.returned, end

    def _given(self, parameter: str, given: ast.expr, hot: Hot) -> Hot:
        """Returns what a parameter, and attributes of it, carry when the called function begins."""
        found: Hot = {}
        if name := dotted(given):
            found = {f"{parameter}{held[len(name) :]}": what for held, what in hot.items() if held.startswith(f"{name}.")}
        whole = self._carried_whole(name, hot) if isinstance(given, ast.Name) else self._carried(given, hot)
        return found | ({parameter: whole} if whole else {})

    def _carried(self, node: ast.AST, hot: Hot) -> Carried:
        """Returns what the value of an expression carries."""
        match node:
            case ast.Call() if node in self._results:
                return self._results[node]
            case ast.Call() if self._called and self._calls_below(node):
                return self._called | self._inside_of(node, hot)
            case ast.Attribute(value=value, attr=attribute) if name := dotted(node):
                read = property_reads(self._names.value(value), attribute, dotted(value))
                return self._carried_whole(name, hot).union(self._carried_parts(name, hot), *(hot.get(one, NONE) for one in read))
            case ast.Subscript(value=value) if name := dotted(node):
                return self._carried_whole(name, hot) | self._carried_parts(name, hot)
            case ast.Name(id=name):
                return self._carried_whole(name, hot) | self._carried_parts(name, hot)
        return self._inside_of(node, hot)

    def _inside_of(self, node: ast.AST, hot: Hot) -> Carried:
        return NONE.union(*(self._carried(part, hot) for part in ast.iter_child_nodes(node)))

    @staticmethod
    def _carried_whole(name: str, hot: Hot) -> Carried:
        return NONE.union(*(hot.get(one, NONE) for one in prefixes(name)))

    @staticmethod
    def _carried_parts(name: str, hot: Hot) -> Carried:
        return NONE if name == "self" else NONE.union(*(what for one, what in hot.items() if one.startswith(f"{name}.")))


def _around(hot: Hot, code: CodeType) -> Hot:
    """Returns what a function finds by names that are not its own."""
    around = {*code.co_names, *code.co_freevars} - {*code.co_varnames}
    return {name: what for name, what in hot.items() if name.partition(".")[0] in around}


def _put(hot: Hot, name: str, what: Carried) -> None:
    """Assigns a value to a name, which no longer carries its former value."""
    for one in [one for one in hot if one == name or one.startswith(f"{name}.")]:
        del hot[one]
    _join(hot, name, what)


def _join(hot: Hot, name: str, what: Carried) -> None:
    if name and what:
        hot[name] = hot.get(name, NONE) | what


def _add(hot: Hot, more: Mapping[str, Carried]) -> None:
    for name, what in more.items():
        _join(hot, name, what)


def _says(name: str, what: Iterable[str]) -> bool:
    """Returns whether a word of a function's name begins with one of these; `log` is not in `logits`."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)
    return any(word.lower().startswith(one) and word.lower() not in ("logits", "logit") for word in words for one in what)


def _merged(*found: Hot) -> Hot:
    hot: Hot = {}
    for one in found:
        _add(hot, one)
    return hot
