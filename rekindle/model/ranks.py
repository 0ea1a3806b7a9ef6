"""Sets of ranks: a sorted tuple in memory, and a text such as "0-9,12" in JSON, where 10,000 numbers would fill a payload."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from rekindle.model.sizes import MOST_RANKS

LONGEST = 5 * MOST_RANKS
"""Maximum number of characters of a valid text: every second rank, with commas."""


def read_ranks(value: object) -> tuple[int, ...]:
    """Returns ranks from a text of ascending ranges, or from a list of numbers in any order.

    Raises:
        ValueError: the value is neither, or a rank is outside 0 to `MOST_RANKS` - 1.
    """
    if isinstance(value, str):
        return _from_text(value)
    if not isinstance(value, Sequence) or len(value) > MOST_RANKS:
        raise ValueError(f"must be ranks such as '0-9,12', or a list of at most {MOST_RANKS} numbers")
    for rank in value:
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < MOST_RANKS:
            raise ValueError(f"{str(rank)[:40]!r} is not a rank, accepted are whole numbers from 0 to {MOST_RANKS - 1}")
    return tuple(sorted(set(value)))


def _from_text(text: str) -> tuple[int, ...]:
    if len(text) > LONGEST:
        raise ValueError(f"{len(text)} characters are too many: ranks take at most {LONGEST}")
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        low, high = _number(first, part), _number(last if dash else first, part)
        if low > high or (ranks and low <= ranks[-1]):
            raise ValueError(f"{part!r} is not accepted: ranks ascend, such as '0-9,12'")
        ranks.extend(range(low, high + 1))
    return tuple(ranks)


def _number(digits: str, part: str) -> int:
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MOST_RANKS)) and int(digits) < MOST_RANKS):
        raise ValueError(f"{part[:40]!r} is not accepted: use ranks from 0 to {MOST_RANKS - 1}, such as '0-9,12'")
    return int(digits)


def written_ranks(ranks: Iterable[int]) -> str:
    """Returns ranks as a text for people and payloads: `0-9,12`."""
    runs = groupby(enumerate(sorted(set(ranks))), key=lambda pair: pair[1] - pair[0])
    parts = []
    for _, run in runs:
        numbers = [rank for _, rank in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts)


Ranks = Annotated[tuple[int, ...], BeforeValidator(read_ranks), PlainSerializer(written_ranks, return_type=str, when_used="json")]
