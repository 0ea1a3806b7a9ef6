"""Describes validation errors for people: a line for each wrong field, with what is accepted."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

INSIDE = "rekindle_inside"
"""Type of a validation error whose message has several lines already."""

CLOSE = 0.87
"""Similarity from which on an unknown name is taken for a misspelled known one: about one letter in eight differs."""

LONGEST = 200
"""Maximum number of characters of a value, or of a field's name, in an error message."""

MOST_GUESSED = 50
"""Maximum number of names of one object for which a similar known one is searched. A tenant may write tens of thousands, which
would delay all other tenants."""

WORDS = {
    "time_delta": "must be a number of seconds or an ISO 8601 duration such as PT15M",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be a string: put it in quotes",
}


def problems(error: ValidationError, model: type[BaseModel], prefix: str = "", *, relations: bool = True) -> list[str]:
    """Returns a line for each wrong field: its path, the error, and what is accepted. Without `relations`, errors between fields
    of `model` are left out."""
    lines: list[str] = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part)[:LONGEST] for part in (prefix, *detail["loc"]) if part != "")
        if detail["loc"] or relations:
            lines.extend(_lines(detail, where, model, guess=len(lines) < MOST_GUESSED))
    return lines


def _lines(detail: ErrorDetails, where: str, model: type[BaseModel], *, guess: bool) -> list[str]:
    if detail["type"] == INSIDE:
        return [f"{where}.{line}" for line in detail["ctx"]["problems"]]
    if detail["type"] == "extra_forbidden":
        accepted = _fields_at(model, detail["loc"][:-1]) if guess else ()
        return [f"{where}: unknown field{did_you_mean(str(detail['loc'][-1]), accepted)} (accepted: {', '.join(accepted)})"]
    if detail["type"] == "missing":
        return [f"{where}: missing"]
    if detail["type"] == "default_factory_not_called":
        return []  # the default depends on a wrong field, which has its own line
    words = next((words for kind, words in WORDS.items() if detail["type"].startswith(kind)), _lower(detail["msg"]))
    return [f"{where}: {words}{_got(detail['input'])}"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `, did you mean X?` for the first known name that is similar. Empty: none is."""
    close = next((other for other in known if len(name) <= LONGEST and _is_close(name, other)), "")
    return f", did you mean {close}?" if close else ""


def _is_close(name: str, other: str) -> bool:
    """Returns whether two names differ only in case, hyphens, underscores or about one letter in eight. Their prefixes
    (`rekindle.io/`) must be equal: keys with other prefixes may have any name."""
    (prefix, _, own), (other_prefix, _, other_own) = name.rpartition("/"), other.rpartition("/")
    return prefix.lower() == other_prefix and _is_similar(_plain(own), _plain(other_own))


def _is_similar(name: str, other: str) -> bool:
    """Returns whether so many letters are the same. Lengths that differ too much are not compared, which would take most time."""
    most = 2 * min(len(name), len(other))
    return most >= CLOSE * (len(name) + len(other)) and SequenceMatcher(None, name, other).ratio() >= CLOSE


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Returns the names of the accepted fields at a path, as they are written."""
    for part in path:
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            continue
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Returns the model that a field's type is or contains (`X | None`, `tuple[X, ...]`)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _lower(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _got(value: object) -> str:
    """Returns the value for an error message, if it fits into a line, and without the password of an address. Python does not
    print numbers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > LONGEST:
        return " (got a number that is far too large)"
    if isinstance(value, str):
        value = re.sub(r"//[^/\s]*@", "//", value)[:LONGEST]
    words = repr(value) if isinstance(value, str | int | float | None) else ""
    return f" (got {words})" if words else ""
