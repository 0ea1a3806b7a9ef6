"""Traverses the parts of a nested state one after the other."""

from collections import deque
from collections.abc import Iterator
from typing import Any


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields each value that is neither a mapping nor a sequence, or is an empty one, with its path."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}/{key!r}")
    elif isinstance(value, list | tuple | deque) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/[{index}]")
    else:
        yield path, value


def values(value: Any) -> list[Any]:
    """Returns the same values without their paths, which is much faster."""
    found: list[Any] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Any]) -> None:
    if isinstance(value, dict | list | tuple | deque) and value:
        for part in value.values() if isinstance(value, dict) else value:
            _collect(part, found)
    else:
        found.append(value)
