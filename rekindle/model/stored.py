"""Reads values that outlive the code that wrote them: a job's state from run to run, and the memory on the job's object.

Newer code reads what older code wrote. Fields that it cannot read are left out, and the rest is used.
"""

from collections.abc import Collection
from typing import Any, TypeVar

import pydantic_core
from pydantic import ValidationError

from rekindle.model.base import Value

IN_PART = "what an earlier version stored was read in part, without"
"""Message for a value that was read without some of its fields."""

Kind = TypeVar("Kind", bound=Value)


def read(kind: type[Kind], given: object, needed: Collection[str] = ()) -> tuple[Kind | None, tuple[str, ...]]:
    """Returns the value, and the names of unreadable fields that were left out. The value is None if it cannot be read.

    Args:
        given: the stored value, decoded from JSON.
        needed: fields without which the value cannot be read.
    """
    if not isinstance(given, dict):
        return None, ()
    known: dict[str, Any] = dict(given)
    left_out: list[str] = []
    while True:
        try:
            return kind.model_validate_json(pydantic_core.to_json(known)), tuple(left_out)
        except ValidationError as error:
            wrong = {str(one["loc"][0]) for one in error.errors() if one["loc"]} & known.keys()
            if not wrong or not wrong.isdisjoint(needed):
                return None, tuple(left_out)
            left_out += sorted(wrong)
            known = {name: value for name, value in known.items() if name not in wrong}


def with_known(kind: type[Kind], given: object, needed: Collection[str]) -> tuple[object, tuple[str, ...]]:
    """Returns an input with the readable part of its field `known`, which an earlier run wrote, and the names of fields left out.

    Args:
        given: the stored input, decoded from JSON; anything but an object is returned unchanged.
        needed: see `read`.
    """
    if not isinstance(given, dict):
        return given, ()
    known, left_out = read(kind, given.get("known"), needed)
    return ({**given, "known": known.model_dump(mode="json")}, left_out) if known and left_out else (given, ())
