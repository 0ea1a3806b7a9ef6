"""What is wrong with a value that somebody wrote, in lines for people: each names its field and what is accepted."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

INSIDE = "rekindle_inside"
"""Type of an error that holds several lines of its own."""

CLOSE = 0.87
"""How alike a name must be to a known one to be taken for a slip: one letter in eight."""

LONGEST = 200
"""Characters of a value, or of a field's name, that are repeated."""

MOST_GUESSED = 50
"""Names of one object of which is looked for what was meant: a tenant may write tens of thousands, and everybody waits."""

WORDS = {
    "time_delta": "must be a number of seconds or an ISO 8601 duration such as PT15M",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be a string: put it in quotes",
}


def problems(error: ValidationError, model: type[BaseModel], prefix: str = "", *, relations: bool = True) -> list[str]:
    """One line for each wrong field: where, what is wrong, what is accepted. Relations are between fields of `model` itself."""
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
        return []  # its default depends on a field that has a line of its own
    words = next((words for kind, words in WORDS.items() if detail["type"].startswith(kind)), _lower(detail["msg"]))
    return [f"{where}: {words}{_got(detail['input'])}"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`, did you mean X?` for the known name that another one is close to; empty: it is close to none."""
    close = next((other for other in known if len(name) <= LONGEST and _is_close(name, other)), "")
    return f", did you mean {close}?" if close else ""


def _is_close(name: str, other: str) -> bool:
    """Whether two names differ in case, hyphens and underscores only, or by a slip. Their prefix (`rekindle.io/`) is the same:
    whoever has one of its own may call things as we do."""
    (prefix, _, own), (other_prefix, _, other_own) = name.rpartition("/"), other.rpartition("/")
    return prefix.lower() == other_prefix and SequenceMatcher(None, _plain(own), _plain(other_own)).ratio() >= CLOSE


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Names of the fields that are accepted at a place, as they are written."""
    for part in path:
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            continue
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that a field's type is, or holds (`X | None`, `tuple[X, ...]`)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _lower(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _got(value: object) -> str:
    """The value, as far as it fits into a line; Python writes no numbers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > LONGEST:
        return " (got a number that is far too large)"
    words = repr(value[:LONGEST] if isinstance(value, str) else value) if isinstance(value, str | int | float | None) else ""
    return f" (got {words})" if words else ""
