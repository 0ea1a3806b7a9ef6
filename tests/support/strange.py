"""Documents with a value of another type at one place, for tests that nothing in an object breaks what reads it."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

STRANGE: tuple[Any, ...] = (None, [], {}, "x", "", -5, True, [None], [[]], {"name": []}, 10**40, 1e400, "\x1b[31m\r\n")


def with_strange_values(document: Any, places: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Yields a copy of the document for each place and each strange value there."""
    for place in places:
        for strange in STRANGE:
            changed = copy.deepcopy(document)
            inside = changed
            for step in place[:-1]:
                inside = inside[step]
            inside[place[-1]] = strange
            yield changed


def paths(inside: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of each value, once where a list repeats."""
    steps = inside.items() if isinstance(inside, dict) else list(enumerate(inside))[:1] if isinstance(inside, list) else ()
    for step, value in steps:
        yield (*path, step)
        yield from paths(value, (*path, step))
