"""How long a text may be where it ends up. The server refuses what is longer, and ends a workflow that starts a child with it."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import AfterValidator

from rekindle.model.sizes import LONGEST_NOTE, LONGEST_TEXT

ATTRIBUTE = 1_900
"""Bytes of one search attribute in JSON; the server takes 2,048."""
KEYWORD = 255
"""Characters of a keyword in the server's databases."""
SUMMARY = 400
"""Bytes; the server's `limit.userMetadataSummarySize`."""
DETAILS = 16_000
"""Bytes; the server's `limit.userMetadataDetailsSize` is 20,000."""
NAMED = 10
"""Of many things, how many are named."""


def cut(text: str, most: int) -> str:
    """The text, or as much of it as fits into this many bytes of UTF-8."""
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[: most - 3].decode(errors="ignore") + "..."


def few(words: Sequence[str], count: int = 0, between: str = ", ") -> str:
    """All of a few; of many their number and the first ten.

    Args:
        count: how many there are, where `words` are only the first of them.
    """
    count = max(count, len(words))
    listed = between.join(words[:NAMED])
    return listed if count <= NAMED else f"{count}, among them {listed}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """One rank is `rank 2`; several are `ranks 2, 3`."""
    return f"{noun if len(numbers) == 1 else f'{noun}s'} {few([str(number) for number in numbers])}"


def fitting(names: Iterable[str], most: int, count: int) -> tuple[str, ...]:
    """As many of the names, from the first, as fit into this many bytes of JSON."""
    found: list[str] = []
    for name in names:
        most -= len(json.dumps(name)) + 1
        if most < 0 or len(found) == count:
            break
        found.append(name)
    return tuple(found)


def keywords(names: Iterable[str]) -> list[str]:
    """The names that a search attribute of keywords has room for."""
    return list(fitting(names, ATTRIBUTE, ATTRIBUTE))


def keyword(text: str) -> str:
    return cut(text, KEYWORD)


def summary(text: str) -> str:
    return cut(text, SUMMARY)


def details(text: str) -> str:
    return cut(text, DETAILS)


def reason(text: str) -> str:
    """Of a verdict or an event."""
    return cut(text, LONGEST_TEXT)


def note(text: str) -> str:
    """Of what there are many in one payload."""
    return cut(text, LONGEST_NOTE)


Text = Annotated[str, AfterValidator(reason)]
"""A text of a payload, such as a reason. What is longer is cut."""
Note = Annotated[str, AfterValidator(note)]
