"""Reads values of a file whatever their types are: what is missing or something else is empty."""

import re
from collections.abc import Mapping
from typing import Any

MOST_REPLICAS = 1_000_000

Document = Mapping[str, Any]


def mapping(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def text(value: object) -> str | None:
    """Returns a string of the file. None: it is missing, or something else."""
    return value if isinstance(value, str) else None


def as_text(value: object) -> str:
    """Returns a value of the file as people write it, at most a few words of a list or a mapping."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return "" if value is None or isinstance(value, list | dict) else str(value)


def number_of(value: object) -> int:
    """Returns a number of replicas. 1: the file has none."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and 0 <= value <= MOST_REPLICAS else 1


def digits(value: object) -> int | None:
    """Returns the number that a text is. None: it is none, or too long."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII) else None
