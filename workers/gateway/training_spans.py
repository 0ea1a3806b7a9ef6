"""Reads the spans that our training side sends of its manager and ranks."""

from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from rekindle.errors import BadInput
from rekindle.ids import recovery_workflow
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.spans import Names, Place, Plain, Process, Span, mode_place, place_of
from rekindle_wire.training_pb2 import Interval, SpansReport

MOST = 2048
"""Largest number of intervals of one recovery. A manager sends some hundreds."""

KEPT = 10_000
"""Number of the last recoveries whose spans are counted."""

LONGEST_NAME = 60
LONGEST = timedelta(days=1)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 4e18
"""Largest time in nanoseconds, of the year 2096."""


class Told:
    """Numbers of intervals that recoveries have sent to this gateway."""

    def __init__(self) -> None:
        self._counts: OrderedDict[Place, int] = OrderedDict()

    def add(self, report: SpansReport) -> None:
        """Counts the intervals of a message that is accepted.

        Raises:
            BadInput: the recovery has sent too many.
        """
        recovery = place_of(report.trace)
        assert recovery, "the message was accepted"
        count = self._counts.get(recovery, 0) + len(report.intervals)
        if count > MOST:
            raise BadInput(f"intervals: {count} of one recovery are not accepted, accepted are {MOST}")
        self._counts[recovery] = count
        self._counts.move_to_end(recovery)
        if len(self._counts) > KEPT:
            self._counts.popitem(last=False)


def training_spans(report: SpansReport, state: JobState) -> list[Span]:
    """Returns the spans of a message.

    Raises:
        BadInput: the trace is none of the job's last recoveries, or an interval is none. The message names the field.
    """
    recovery = place_of(report.trace)
    if recovery is None or recovery not in _recoveries(state):
        raise BadInput(f"trace: {report.trace[:60]!r} is not accepted, accepted is what the answer to a report has named")
    if len(report.intervals) > MOST:
        raise BadInput(f"intervals: {len(report.intervals)} of one recovery are not accepted, accepted are {MOST}")
    places: list[Place] = []
    spans = []
    for number, interval in enumerate(report.intervals):
        if problem := _problem(interval, number):
            raise BadInput(f"intervals[{number}].{problem}")
        around = places[interval.within - 1] if interval.within else recovery
        places.append(around.inner(interval.name, interval.began, interval.rank if interval.HasField("rank") else ""))
        spans.append(_span(interval, places[-1], around))
    return spans


def _span(interval: Interval, place: Place, around: Place) -> Span:
    is_rank = interval.HasField("rank")
    about: dict[str, Plain] = {Names.RANK: interval.rank} if is_rank else {}
    process = Process.RANK if is_rank else Process.MANAGER
    return Span(interval.name, place, around, _time(interval.began), _time(interval.ended), process, about, interval.error)


def _recoveries(state: JobState) -> Iterator[Place | None]:
    """Returns the places of the recoveries of the job's last incidents. Any mode may run now."""
    ran = {(incident.number, verdict.mode) for incident in state.history for verdict in incident.ladder}
    for incident, mode in {*ran, *((state.incidents, mode) for mode in Mode)}:
        yield mode_place(recovery_workflow(state.job, incident, mode))


def _problem(interval: Interval, number: int) -> str:
    texts = (interval.name, interval.error)
    if not interval.name or any(len(text) > LONGEST_NAME or not text.isprintable() for text in texts):
        return f"name, error: accepted are printable texts of up to {LONGEST_NAME} characters, and a name"
    if not 0 < interval.began <= interval.ended <= min(LATEST, interval.began + LONGEST.total_seconds() * 1e9):
        return f"began, ended: accepted are nanoseconds since 1970, at most {LONGEST} apart"
    return "" if 0 <= interval.within <= number else "within: accepted is the place of an earlier interval"


def _time(nanoseconds: int) -> datetime:
    return BEGINNING + timedelta(microseconds=nanoseconds // 1000)
