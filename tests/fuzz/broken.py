"""Objects that tenants could write: valid ones of which a part is dropped, nulled, retyped, grown or nested. Every reader must
answer, or raise an error of our own tree that names the field.

`make fuzz` runs 10,000 examples for each reader, `make test` a hundred, always the same.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rekindle.errors import BadInput, ClusterError

EXAMPLES = int(os.environ.get("REKINDLE_FUZZ_EXAMPLES", "100"))
SECONDS = 5.0
"""Processor time for reading one object, while coverage is measured."""

CHARACTERS = 20_000
"""Longest error message: it becomes an event, a log line or a status."""

fuzzed = settings(
    max_examples=EXAMPLES,
    derandomize=EXAMPLES <= 100,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


def nested(levels: int, *, lists: bool = False) -> Any:
    found: Any = "bottom"
    for _ in range(levels):
        found = [found] if lists else {"a": found}
    return found


TEXTS = (
    "",
    "-1",
    "0",
    "1",
    "1.5",
    "1e9",
    "1000000000",
    "9" * 5000,
    "x" * 100_000,
    "٣",
    "²",
    "\0",
    "a/b",
    "../..",
    "\ud800",
    "null",
)
NUMBERS = (-(2**63), -1, 0, 1, 2, 1000, 2**31, 2**63, 10**30, 0.5, 1e308, float("inf"), float("nan"))
text = st.one_of(st.sampled_from(TEXTS), st.text(max_size=30))
scalars = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.integers(), text)
junk = st.one_of(
    scalars,
    st.builds(nested, st.sampled_from((1, 3, 50, 90, 300)), lists=st.booleans()),
    st.lists(scalars, max_size=3),
    st.dictionaries(text, scalars, max_size=3),
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Returns every container with each of its keys or indexes."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


@st.composite
def broken(draw: st.DrawFn, valid: Any) -> Any:
    """Draws a valid object of which one to four places are changed."""
    thing = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 4))):
        places = list(_places(thing))
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(("drop", "junk", "junk", "null", "repeat", "add")))
        if how == "drop":
            del container[key]
        elif how == "null":
            container[key] = None
        elif how == "repeat":
            container[key] = [container[key]] * draw(st.integers(0, 3))
        elif how == "add" and isinstance(container, dict):
            container[draw(text)] = draw(junk)
        else:
            container[key] = draw(junk)
    return thing


def reads(read: Callable[[], Any]) -> Any:
    """Returns the answer of a reader, or None where it refuses. Checks its time and its error."""
    begun = time.thread_time()
    try:
        answer, words = read(), "answered:"
    except (BadInput, ClusterError) as error:
        answer, words = None, str(error)
    assert time.thread_time() - begun < SECONDS
    assert ":" in words or "levels deep" in words, f"no field is named: {words}"
    assert "cannot be read" not in words
    assert len(words) <= CHARACTERS
    return answer
