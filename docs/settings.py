"""Generates docs/settings.md: settings of the installation, limits of jobs, labels and annotations, from where they are defined.

`make settings` runs it; a test fails while the committed page says something else.
"""

import ast
import json
import re
import typing
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rekindle.model.limits import Limits
from rekindle.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
KEYS = ROOT / "rekindle" / "model" / "keys.py"

HEAD = """\
# Settings, limits, labels and annotations

Generated from the code by `make settings`.

## Settings of the installation

Environment variables of the processes of the control plane, read once at their start. A value that means nothing ends the process
with a message that names its variable. Lists and mappings are JSON, such as `["a", "b"]`. The address of Temporal and how to log
in there are `TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE` and the other variables of Temporal's own environment configuration.

| variable | accepted | default | meaning |
|---|---|---|---|
"""

LIMITS = f"""
## Limits of jobs

How long each wait may take, up to ten years: seconds, or an ISO 8601 duration such as `PT15M`. A job's own come before those of
the installation. They stand in the field `limits` of a TrainingJob, and in the annotation `rekindle.io/limits` of other kinds.
Those of the installation are variables such as `{PREFIX}LIMITS__PAUSE`.

| limit | default | meaning |
|---|---|---|
"""

NAMES = """
## Labels and annotations

| key | meaning |
|---|---|
"""


def documented(file: Path) -> Iterator[tuple[str, ast.expr | None, str]]:
    """Yields name, value and docstring of each constant or field that has a docstring."""
    for node in ast.walk(ast.parse(file.read_text())):
        body = getattr(node, "body", None)
        statements = body if isinstance(body, list) else []
        for named, text in pairwise(statements):
            target = named.targets[0] if isinstance(named, ast.Assign) else getattr(named, "target", None)
            if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                yield target.id, named.value, " ".join(str(text.value.value).split())


def texts(model: type[BaseModel]) -> dict[str, str]:
    file = ROOT / Path(*model.__module__.split(".")).with_suffix(".py")
    return {name: text for name, _, text in documented(file)}


def default_of(field: FieldInfo) -> str:
    if field.default_factory or field.default is PydanticUndefined:
        return "see there"
    value = field.default
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, bool | tuple | dict):
        return f"`{json.dumps(value)}`"
    return f"`{value}`" if value not in ("", None) and not isinstance(value, BaseModel) else "-"


def accepted(field: FieldInfo) -> str:
    """Returns the values of a choice, the bounds of a number, or the sort of value."""
    kind = field.annotation
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(kind))
    if kind is int:
        low, high = (next(getattr(one, bound) for one in field.metadata if hasattr(one, bound)) for bound in ("ge", "le"))
        return f"{low} to {high}"
    sorts = {bool: "`true`, `false`", timedelta: "a duration", tuple: "a list", dict: "a mapping"}
    return sorts.get(typing.get_origin(kind) or kind, "text")


def row(*cells: str) -> str:
    return f"| {' | '.join(re.sub(r'[|]', '&#124;', cell) for cell in cells)} |\n"


def names() -> list[tuple[str, str]]:
    """Returns the labels and annotations, each with its meaning."""
    constants = ((value.value, text) for _, value, text in documented(KEYS) if isinstance(value, ast.Constant))
    return [(str(key), text) for key, text in constants if text.startswith(("Label", "Annotation"))]


def page() -> str:
    """Returns the page as it should be."""
    words, lines = texts(Settings), [HEAD]
    for name, field in Settings.model_fields.items():
        if name != "limits":
            variable = str(field.validation_alias or f"{PREFIX}{name.upper()}")
            lines.append(row(f"`{variable}`", accepted(field), default_of(field), words.get(name, "-")))
    words = texts(Limits)
    lines.append(LIMITS)
    lines.extend(
        row(f"`{field.alias}`", default_of(field), words.get(name, "-")) for name, field in sorted(Limits.model_fields.items())
    )
    lines.append(NAMES)
    lines.extend(row(f"`{key}`", text) for key, text in names())
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
