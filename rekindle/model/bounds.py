"""Maximum lengths of texts in the places where they are stored. The server rejects longer texts, and fails a workflow that starts
a child with one."""

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
"""Bytes of a summary; the server's `limit.userMetadataSummarySize`."""
DETAILS = 16_000
"""Bytes of details; the server's `limit.userMetadataDetailsSize` is 20,000."""
NAMED = 10
"""Number of items that are named in a longer list."""


def cut(text: str, most: int) -> str:
    """Returns the text, cut to this many bytes of UTF-8. A text that was cut ends with `...`."""
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[: most - 3].decode(errors="ignore") + "..."


def few(words: Sequence[str], count: int = 0, between: str = ", ") -> str:
    """Returns all words of a short list, and the number and the first ten words of a longer one.

    Args:
        count: total number, if `words` are only the first of them.
    """
    count = max(count, len(words))
    listed = between.join(words[:NAMED])
    return listed if count <= NAMED else f"{count}, among them {listed}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Returns the noun with its numbers: `rank 2` for one, `ranks 2, 3` for several."""
    return f"{noun if len(numbers) == 1 else f'{noun}s'} {few([str(number) for number in numbers])}"


def fitting(names: Iterable[str], most: int, count: int) -> tuple[str, ...]:
    """Returns the first names that fit into `most` bytes of JSON, at most `count` of them."""
    found: list[str] = []
    for name in names:
        most -= len(json.dumps(name)) + 1
        if most < 0 or len(found) == count:
            break
        found.append(name)
    return tuple(found)


def keywords(names: Iterable[str]) -> list[str]:
    """Returns the first names that fit into a search attribute of keywords."""
    return list(fitting(names, ATTRIBUTE, ATTRIBUTE))


def keyword(text: str) -> str:
    return cut(text, KEYWORD)


def summary(text: str) -> str:
    return cut(text, SUMMARY)


def details(text: str) -> str:
    return cut(text, DETAILS)


def reason(text: str) -> str:
    """Returns the reason of a verdict or an event, cut to its maximum length."""
    return cut(text, LONGEST_TEXT)


def note(text: str) -> str:
    """Returns a text of which one payload has many, cut to its maximum length."""
    return cut(text, LONGEST_NOTE)


Text = Annotated[str, AfterValidator(reason)]
"""Text of a payload, such as a reason. A longer text is cut."""
Note = Annotated[str, AfterValidator(note)]
