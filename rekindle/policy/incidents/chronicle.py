"""Lists what a picture shows in the order of time, each with the letter that marks it in its lane. Pure."""

from collections.abc import Iterator
from itertools import chain, repeat
from string import ascii_letters

from rekindle.model import bounds
from rekindle.model.base import Value
from rekindle.model.picture import Item, Part, Picture

LONGEST = 40
"""Bytes of the name of a lane in a list. The picture itself has the whole name."""

MANY = "*"
"""Mark of entries for which no letter is left."""


class Entry(Value):
    """Item of a picture, or several equal ones of a lane."""

    mark: str
    part: Part
    lane: str
    items: tuple[Item, ...]

    @property
    def who(self) -> str:
        """Name of the lane. That of many ranks is cut."""
        return bounds.cut(self.lane, LONGEST)

    @property
    def first(self) -> Item:
        return self.items[0]

    @property
    def seconds(self) -> float:
        """Duration of all of them together."""
        return sum(item.seconds for item in self.items)

    @property
    def text(self) -> str:
        times = f" ({len(self.items)} times)" if len(self.items) > 1 else ""
        return f"{self.first.text}{times}{' (still running)' if self.first.running else ''}"


def entries(picture: Picture) -> list[Entry]:
    """Returns the entries by the time of their first item."""
    found: dict[tuple[Part, str, str, bool], list[Item]] = {}
    for lane in picture.lanes:
        for item in lane.items:
            found.setdefault((lane.part, lane.name, item.text, item.running), []).append(item)
    ordered = sorted(found.items(), key=lambda one: one[1][0].since)
    marks: Iterator[str] = chain(ascii_letters, repeat(MANY))
    return [
        Entry(mark=mark, part=part, lane=lane, items=tuple(items))
        for ((part, lane, _, _), items), mark in zip(ordered, marks, strict=False)
    ]


def marks_of(listed: list[Entry]) -> dict[tuple[str, Item], str]:
    """Returns the mark of each item, by its lane and itself."""
    return {(entry.lane, item): entry.mark for entry in listed for item in entry.items}
