"""Generates docs/api.md: what programs may call, and what they get, from signatures and docstrings.

`make api` runs it; a test fails while the committed page says something else.
"""

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any

from pydantic import BaseModel

from rekindle import errors
from rekindle.client import Rekindle
from rekindle.drains import Drains
from rekindle.maintenances import Maintenances
from rekindle.model.incident import Incident
from rekindle.model.state import JobState
from rekindle.nodes import Nodes
from rekindle.plans import Plans
from rekindle.stress_tests import StressTests

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"

CALLED = (Rekindle, Maintenances, Plans, Drains, Nodes, StressTests)
"""Classes that programs make."""

ALSO = (JobState, Incident)
"""Models that are parts of a result, and that programs read."""

HEAD = """\
# The API for programs

Generated from the code by `make api`. The wheel `rekindle-recovery` has all of it. It needs a Temporal service and a control
worker that is running, and no access to the cluster. [start-a-recovery.md](start-a-recovery.md) has the ways without Python.

Methods with `async` are coroutines. Each raises `Unavailable` if Temporal does not answer.
"""

ERRORS = """
## Errors

The module `rekindle.errors` has them as one tree:

```
{tree}
```
"""

ENTRY = re.compile(r"(?:^|(?<=\. )|(?<= ))([a-z_]\w*(?=: )|[A-Z]\w+(?=: [a-z])): ")
"""Beginning of an argument or of an error."""

NAMES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])")
"""Modules before a name."""


def page() -> str:
    parts = [HEAD]
    for called in CALLED:
        parts.append(f"\n## {called.__name__}\n\n`from {called.__module__} import {called.__name__}`\n")
        parts += [f"\n{_text(called.__doc__)}"] if called.__doc__ else []
        parts += [_method(name, function) for name, function in _methods(called)]
    parts.append("\n## What they take and return\n")
    parts += [_model(model) for model in sorted(_models(), key=lambda model: model.__name__)]
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    return "".join([*parts, ERRORS.format(tree=inspect.cleandoc(tree))])


def _methods(called: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(called).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function) and not name.startswith("_") and function.__doc__:
            yield name, function


def _method(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    said = signature.replace(parameters=[one for key, one in signature.parameters.items() if key not in ("self", "cls")])
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    text = f"{'async ' if is_async else ''}{name}{NAMES.sub('', str(said))}"
    return f"\n### `{text}`\n\n{_text(function.__doc__)}"


def _text(docstring: str | None) -> str:
    """Returns a docstring as Markdown: arguments and errors as a list."""
    text = inspect.cleandoc(docstring or "")
    said, *parts = re.split(r"^(Args|Raises):\n", text, flags=re.MULTILINE)
    found = [said.strip()] if said.strip() else []
    for title, names in zip(parts[::2], parts[1::2], strict=True):
        entries = ENTRY.split(" ".join(names.split()))[1:]
        listed = (f"- `{name}`: {words.strip()}" for name, words in zip(entries[::2], entries[1::2], strict=True))
        found.append("\n".join((f"{title}:\n", *listed)))
    return "\n\n".join(found) + "\n"


# ---- models


def _models() -> set[type]:
    """Returns the models in signatures of methods."""
    found: set[type] = set(ALSO)
    for called in CALLED:
        for _, function in _methods(called):
            for annotation in typing.get_type_hints(function).values():
                found |= {one for one in _types(annotation) if _is_ours(one)}
    return found


def _types(annotation: object) -> Iterator[type]:
    arguments = typing.get_args(annotation)
    if not arguments and isinstance(annotation, type):
        yield annotation
    for argument in arguments if isinstance(annotation, UnionType) or typing.get_origin(annotation) else ():
        yield from _types(argument)


def _is_ours(model: type) -> bool:
    return model.__module__.startswith("rekindle.") and issubclass(model, BaseModel | Enum)


def _model(model: type) -> str:
    head = f"\n### {model.__name__}\n\n`from {model.__module__} import {model.__name__}`\n"
    said = f"\n{_text(model.__doc__)}" if model.__doc__ and model.__doc__ != _inherited(model) else ""
    if issubclass(model, Enum):
        values = [f"| `{one.name}` | `{one.value}` |" for one in model]
        return "\n".join([head + said, "| name | value |", "|---|---|", *values, ""])
    texts = {name: text for base in reversed(model.__mro__) for name, text in _documented(base)}
    assert issubclass(model, BaseModel), "it is one of the two"
    rows = [f"| `{name}` | `{_kind(field.annotation)}` | {texts.get(name, '')} |" for name, field in model.model_fields.items()]
    return "\n".join([head + said, "| field | type | meaning |", "|---|---|---|", *rows, ""])


def _documented(model: type) -> Iterator[tuple[str, str]]:
    """Yields each field of a class of ours that has a docstring, and that."""
    if not model.__module__.startswith("rekindle."):
        return
    (body,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(body, ast.ClassDef)
    for named, text in pairwise(body.body):
        if isinstance(named, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            yield ast.unparse(named.target), " ".join(str(text.value.value).split())


def _inherited(model: type) -> str | None:
    return next((base.__doc__ for base in model.__mro__[1:] if base.__doc__), None)


def _kind(annotation: object) -> str:
    text = annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
    return NAMES.sub("", re.sub(r"Annotated\[([^,\[\]]+),.*?\](?=[,\]|]|$)", r"\1", text)).replace("|", "or")


if __name__ == "__main__":
    PAGE.write_text(page())
