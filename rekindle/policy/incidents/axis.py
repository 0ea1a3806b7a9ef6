"""Time axis of a picture, on which a long time without any event takes little room. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from rekindle.model.picture import Picture

LONG = 2.0
"""A time without any event is shortened if it is so many times longer than all that are not shortened together."""
SHORTENED = 0.15
"""Share of the axis that it then takes."""
MOST = 4
"""Maximum number of times that are shortened."""


@dataclass(frozen=True)
class Tick:
    place: float
    """Number from 0 to 1."""
    seconds: float
    """Time since the beginning of the incident."""


@dataclass(frozen=True)
class Segment:
    since: float
    until: float
    begins: float
    """Number from 0 to 1."""
    ends: float
    is_shortened: bool


class Axis:
    def __init__(self, picture: Picture) -> None:
        edges = {edge for lane in picture.lanes for item in lane.items for edge in (item.since, item.until)}
        inside = sorted(edge for edge in edges if picture.since < edge < picture.until)
        times = [picture.since, *inside, picture.until]
        self._zero = picture.began
        self.segments = _segments(times)

    def place(self, time: float) -> float:
        """Returns the place of a time, from 0 to 1."""
        one = self.segments[max(bisect_right([segment.since for segment in self.segments], time) - 1, 0)]
        share = (time - one.since) / (one.until - one.since) if one.until > one.since else 0.0
        return one.begins + min(share, 1.0) * (one.ends - one.begins)

    @property
    def shortened(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.is_shortened]

    def ticks(self, most: int) -> list[Tick]:
        """Returns at most about this many ticks, at round times. There are none where time is shortened."""
        drawn = sum(one.until - one.since for one in self.segments if not one.is_shortened)
        step = _round(drawn / most)
        found = []
        for one in _joined(self.segments):
            number = ceil((one.since - self._zero) / step) if step else 0
            while step and self._zero + number * step <= one.until:
                time = self._zero + number * step
                found.append(Tick(place=self.place(time), seconds=number * step))
                number += 1
        return found


def _segments(times: Sequence[float]) -> list[Segment]:
    gaps = [later - earlier for earlier, later in pairwise(times)]
    long = _long(gaps)
    rest = sum(gaps) - sum(gaps[number] for number in long)
    whole = rest / (1 - SHORTENED * len(long)) or 1.0
    found, begins = [], 0.0
    for number, (since, until) in enumerate(pairwise(times)):
        ends = begins + (SHORTENED if number in long else gaps[number] / whole)
        found.append(Segment(since=since, until=until, begins=begins, ends=ends, is_shortened=number in long))
        begins = ends
    return found


def _long(gaps: Sequence[float]) -> list[int]:
    """Returns the numbers of the gaps that are shortened."""
    longest = sorted(range(len(gaps)), key=lambda number: -gaps[number])
    for count in range(min(MOST, len(gaps) - 1), 0, -1):
        shorter = sum(gaps[number] for number in longest[count:])
        if shorter and gaps[longest[count - 1]] > LONG * shorter:
            return longest[:count]
    return []


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """Returns the segments that are not shortened, with adjacent ones as one."""
    found: list[Segment] = []
    for one in segments:
        if one.is_shortened:
            continue
        if found and found[-1].until == one.since:
            found[-1] = Segment(found[-1].since, one.until, found[-1].begins, one.ends, is_shortened=False)
        else:
            found.append(one)
    return found


def _round(seconds: float) -> float:
    """Returns the next 1, 2 or 5 times a power of ten that is not less; 0 for 0."""
    power = 1e-6
    while power < seconds:
        for factor in (1, 2, 5):
            if factor * power >= seconds:
                return factor * power
        power *= 10
    return power if seconds else 0.0
