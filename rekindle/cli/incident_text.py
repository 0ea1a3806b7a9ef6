"""Picture of an incident for a terminal: lanes over a time axis, and below them what their letters mean."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.text import Text

from rekindle.cli.terminal import console
from rekindle.model.mode import Outcome
from rekindle.model.picture import Item, Lane, Part, Picture
from rekindle.policy.incidents.axis import Axis
from rekindle.policy.incidents.chronicle import MANY, Entry, entries, marks_of

NAMES = 16
"""Width of the names of lanes, in characters."""
EDGE = 2
"""Characters before and after the incident."""
APART = 10
"""Characters between two numbers of the axis."""
KEY = "= trains   . stands   > is running   ! failed   * more than one"
NARROWEST = 39
"""Minimum width of the picture."""
MOST_ROWS = 3
"""Rows of a lane. Where more happens at a time, the last row has a star."""
MOST_ENTRIES = 60
"""Number of entries that are listed."""
GOES_ON = (Outcome.RECOVERED, Outcome.IGNORED, Outcome.REFUSED)
"""Outcomes after which training goes on."""
TIMES = 24
"""Width of letters and times before the text of an entry."""


def lines(picture: Picture, width: int) -> list[str]:
    """Returns the lines of the picture.

    Args:
        width: of the terminal, in characters.
    """
    listed = entries(picture)
    width = max(width - 1, NARROWEST)
    head = [part for one in _head(picture) for part in _wrapped(one, width)]
    key = [KEY] if len(KEY) <= width else _wrapped(KEY, width)
    notes = [part for one in picture.missing for part in _wrapped(f"note: {one}", width)]
    return [*head, "", *_Chart(picture, listed, width).lines(), "", *_entries(picture, listed, width), "", *key, *notes]


def _head(picture: Picture) -> Iterable[str]:
    outcome = picture.outcome or "is running"
    yield f"incident {picture.number} of {picture.job}: {outcome}, {picture.seconds:.3f} s"
    yield picture.summary
    yield f"0 ms is {datetime.fromtimestamp(picture.began).astimezone():%Y-%m-%d %H:%M:%S.%f %Z}"
    yield price(picture)


def price(picture: Picture) -> str:
    """Returns what the incident cost."""
    lost = "" if picture.steps_lost is None else f"; steps done again: {picture.steps_lost}"
    if picture.outcome is None:
        return f"what it costs is known when it has ended{lost}"
    if not (pause := picture.pause):
        went_on = picture.outcome in GOES_ON
        return (
            f"{'training did not stand, as far as it is known' if went_on else 'it is not known how long training stood'}{lost}"
        )
    cost = f"{pause.accelerator_seconds:.3f} accelerator seconds on {pause.ranks} ranks"
    again = f", and did steps again for {milliseconds(pause.again)} ms" if pause.again else ""
    return f"training stood {milliseconds(pause.seconds)} ms{again}: {cost} (by {pause.source}){lost}"


def milliseconds(seconds: float) -> str:
    """Formats a time in whole milliseconds, or with a decimal below ten of them."""
    return f"{seconds * 1000:.0f}" if abs(seconds) >= 0.01 or abs(seconds) < 0.0001 else f"{seconds * 1000:.1f}"


class _Chart:
    def __init__(self, picture: Picture, listed: list[Entry], width: int) -> None:
        self._picture, self._marks, self._axis = picture, marks_of(listed), Axis(picture)
        self._width = width - NAMES
        self._inner = self._width - 2 * EDGE - 1

    def lines(self) -> Iterable[str]:
        yield from self._scale()
        part = None
        for lane in self._picture.lanes:
            if lane.part is Part.CONTROL and part is not Part.CONTROL:
                yield Part.CONTROL.value
            part = lane.part
            name = f"  {lane.name}" if part is Part.CONTROL else lane.name
            for number, row in enumerate([self._of_rank(lane)] if part is Part.RANKS else self._rows(lane)):
                yield f"{'' if number else _short(name):<{NAMES}}{row}".rstrip()

    def _at(self, time: float) -> int:
        return EDGE + round(self._axis.place(time) * self._inner)

    def _scale(self) -> Iterable[str]:
        numbers, marks = [" "] * self._width, ["-"] * self._width
        free = 0
        for tick in self._axis.ticks(max(self._width // APART, 2)):
            at, words = EDGE + round(tick.place * self._inner), milliseconds(tick.seconds)
            marks[at] = "+"
            if free <= at and at + len(words) <= self._width:
                numbers[at : at + len(words)] = words
                free = at + len(words) + 1
        for one in self._axis.shortened:
            middle = EDGE + round((one.begins + one.ends) / 2 * self._inner)
            marks[middle - 1 : middle + 1] = "//"
        yield f"{'ms':<{NAMES}}{''.join(numbers)}".rstrip()
        yield f"{'':<{NAMES}}{''.join(marks)}"

    def _rows(self, lane: Lane) -> list[str]:
        rows: list[list[str]] = []
        for item in lane.items:
            begins, ends = self._at(item.since), self._at(item.until)
            row = next((one for one in rows if _is_free(one, begins, ends)), None)
            if row is None and len(rows) < MOST_ROWS:
                row = [" "] * self._width
                rows.append(row)
            if row is None:
                rows[-1][begins] = MANY
            else:
                _draw(row, begins, ends, item, self._marks[lane.name, item])
        return ["".join(row) for row in rows]

    def _of_rank(self, lane: Lane) -> str:
        row = ["="] * self._width
        for item in lane.items:
            begins, ends = self._at(item.since), self._at(item.until)
            row[begins : ends + 1] = "." * (ends + 1 - begins)
            row[begins] = self._marks[lane.name, item]
        return "".join(row)


def _is_free(row: Sequence[str], begins: int, ends: int) -> bool:
    """Returns whether an item fits there. It may begin where the one before ends."""
    return row[begins] in " |!" and not "".join(row[begins + 1 : ends + 1]).strip()


def _draw(row: list[str], begins: int, ends: int, item: Item, mark: str) -> None:
    row[begins : ends + 1] = "-" * (ends + 1 - begins)
    if ends > begins:
        row[ends] = ">" if item.running else "!" if item.failed else "|"
    row[begins] = mark


def _entries(picture: Picture, listed: Sequence[Entry], width: int) -> Iterable[str]:
    yield f"   {'at ms':>10} {'for ms':>8}  what"
    shown = listed[:MOST_ENTRIES]
    for entry in shown:
        lasted = milliseconds(entry.seconds) if entry.seconds else "-"
        head = f"{entry.mark}  {milliseconds(entry.first.since - picture.began):>10} {lasted:>8}  "
        first, *others = _wrapped(f"{entry.who}: {entry.text}", width - TIMES)
        yield head + first
        yield from (" " * TIMES + one for one in others)
    if len(listed) > len(shown):
        yield from _wrapped(f"and {len(listed) - len(shown)} more, which --html and --output json show", width)


def _wrapped(text: str, width: int) -> list[str]:
    """Returns the text in lines of this width, in which a wide character takes two columns."""
    return [line.plain.rstrip() for line in Text(" ".join(text.split())).wrap(console, width)] or [""]


def _short(name: str) -> str:
    return name if len(name) < NAMES else f"{name[: NAMES - 3]}.."
