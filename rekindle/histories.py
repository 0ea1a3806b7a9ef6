"""Histories of recoveries, as Temporal keeps them: reads what a picture shows of them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.events import ENDS_OF_ACTIVITIES, ENDS_OF_TIMERS, History, at, content, fields, is_for_gateway, summary
from rekindle.model import bounds
from rekindle.model.attachment import Progress
from rekindle.model.base import Value
from rekindle.model.dialogue import Report
from rekindle.model.fault import FaultsNow
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.job import Job
from rekindle.model.mode import Mode
from rekindle.model.picture import Item, Recovery
from rekindle.model.ranks import written_ranks
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.cases import describe

V = TypeVar("V", bound=Value)

ENDS: Mapping["EventType.ValueType", str] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed out",
}
"""Events that end a workflow, and how it ended; empty: with a result."""

CLOSES = {**ENDS_OF_ACTIVITIES, **ENDS_OF_TIMERS}


async def recorded(rekindle: Rekindle, job: Job, incident: int, now: float) -> list[Recovery]:
    """Returns the recoveries of an incident. Those that are older than the retention of the namespace are gone.

    Args:
        now: seconds since the epoch, for what has not ended.

    Raises:
        Unavailable: Temporal does not answer.
    """
    found = await asyncio.gather(*(_history(rekindle, ids.recovery_workflow(job, incident, mode)) for mode in Mode))
    return [recovery(history, now) for history in found if history]


async def _history(rekindle: Rekindle, workflow_id: str) -> History:
    try:
        return (await rekindle.temporal.get_workflow_handle(workflow_id).fetch_history()).events
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return ()
        raise rekindle.unanswered(error) from error


def recovery(history: History, now: float) -> Recovery:
    """Returns what a history says of its recovery.

    Args:
        now: seconds since the epoch, for what has not ended.
    """
    return _Reader(history, now).read()


class _Reader:
    def __init__(self, history: History, now: float) -> None:
        last = at(history[-1]).timestamp()
        self._ended = fields(history[-1]) if history[-1].event_type in ENDS else None
        self._how = ENDS.get(history[-1].event_type, "")
        self._until = max(now, last) if self._ended is None else last
        self._history = history
        self._orders: list[Item] = []
        self._calls: list[Item] = []
        self._waits: list[Item] = []
        self._reports: list[Item] = []
        self._phases: list[tuple[float, str]] = []
        self._open: dict[int, tuple[list[Item], float, str]] = {}

    def read(self) -> Recovery:
        for event in self._history:
            self._take(event, at(event).timestamp())
        runs = self._ended is None
        for items, since, text in self._open.values():
            items.append(Item(since=since, until=self._until, text=text, running=runs, failed=not runs))
        started = self._history[0]
        given = fields(started).input.payloads
        request, context = _read(ModeRequest, given), _read(RecoveryContext, given[1:])
        verdict = _verdict(self._ended)
        return Recovery(
            mode=request.mode if request else None,
            summary=summary(started),
            faults=context.situation.faults if context else (),
            since=at(started).timestamp(),
            until=self._until,
            ended=self._how,
            is_running=runs,
            verdict=verdict,
            orders=tuple(self._orders),
            calls=tuple(self._calls),
            waits=tuple(self._waits),
            reports=tuple(self._reports),
            phases=tuple(_phases(verdict) or self._shown_phases(running=runs)),
        )

    def _take(self, event: HistoryEvent, time: float) -> None:
        if event.event_type in CLOSES:
            self._close(fields(event), time, CLOSES[event.event_type])
        elif take := TAKEN.get(event.event_type):
            take(self, event, time)

    def phase(self, event: HistoryEvent, time: float) -> None:
        shown = fields(event).search_attributes.indexed_fields.get("RekindlePhase")
        if shown:
            self._phases.append((time, str(content(shown))))

    def activity(self, event: HistoryEvent, time: float) -> None:
        items = self._orders if is_for_gateway(event) else self._calls
        self._open[event.event_id] = items, time, summary(event) or fields(event).activity_type.name

    def timer(self, event: HistoryEvent, time: float) -> None:
        self._open[event.event_id] = self._waits, time, summary(event) or "wait"

    def _close(self, end: Any, time: float, how: str) -> None:
        items, since, text = self._open.pop(getattr(end, "scheduled_event_id", 0) or end.started_event_id)
        why = _why(end.failure) if how == "failed" else ""
        said = "".join((text, f": {how}" if how else "", f", {why}" if why else ""))
        items.append(Item(since=since, until=time, text=said, failed=how in ("failed", "timed out")))

    def update(self, event: HistoryEvent, time: float) -> None:
        accepted = fields(event)
        given = (accepted.request if hasattr(accepted, "request") else accepted.accepted_request).input
        if not given.name:  # the event before, which says that it was admitted, has it
            return
        report = _read(Report, given.args.payloads) if given.name == ids.Updates.REPORT else None
        text = _of_report(report) if report else given.name
        self._reports.append(Item(since=time, until=time, text=text, failed=bool(report and report.code)))

    def signal(self, event: HistoryEvent, time: float) -> None:
        words = SIGNALS.get(fields(event).signal_name)
        text = words(fields(event).input.payloads) if words else ""
        if text:
            self._reports.append(Item(since=time, until=time, text=text))

    def _shown_phases(self, *, running: bool) -> Iterator[Item]:
        """Yields the phases as they were shown while the recovery ran."""
        ends = [*(since for since, _ in self._phases[1:]), self._until]
        for number, ((since, text), until) in enumerate(zip(self._phases, ends, strict=False), 1):
            yield Item(since=since, until=until, text=text, running=running and number == len(self._phases))


TAKEN: Mapping["EventType.ValueType", Callable[[_Reader, HistoryEvent, float], None]] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: _Reader.phase,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: _Reader.phase,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: _Reader.activity,
    EventType.EVENT_TYPE_TIMER_STARTED: _Reader.timer,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: _Reader.update,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED: _Reader.update,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: _Reader.signal,
}


def _phases(verdict: Verdict | None) -> list[Item]:
    """Returns the phases as the verdict has them. Those of an earlier version have no times."""
    found = []
    for phase in verdict.phases if verdict else ():
        if phase.at:
            since, text = phase.at.timestamp(), f"{phase.name}: {phase.note}" if phase.note else phase.name
            found.append(Item(since=since, until=since + phase.seconds, text=text, failed=bool(phase.note)))
    return found


def _of_report(report: Report) -> str:
    parts = [f"reports {report.kind}", *report.strategies, report.strategy]
    if report.code:
        parts.append(f"code {report.code}")
    if report.fault_ranks:
        parts.append(f"faulty ranks {written_ranks(one.rank for one in report.fault_ranks)}")
    return " ".join((*filter(None, parts), report.info)).strip()


def _of_faults(given: Sequence[Payload]) -> str:
    now = _read(FaultsNow, given)
    return f"faults now: {bounds.few([describe(fault) for fault in now.faults], between='; ') or 'none'}" if now else ""


def _of_progress(given: Sequence[Payload]) -> str:
    progress = _read(Progress, given)
    return f"reports step {progress.step}, the first one since it began again" if progress else ""


SIGNALS: Mapping[str, Callable[[Sequence[Payload]], str]] = {
    ids.Signals.ATTACHED: lambda _: "stream attached",
    ids.Signals.DETACHED: lambda _: "stream ended",
    ids.Signals.PROGRESSED: _of_progress,
    ids.Signals.FAULTS: _of_faults,
    ids.Signals.MANAGER_LOST: lambda _: "manager lost",
}
"""Signals that a picture shows, with their words."""


def _read(kind: type[V], given: Sequence[Payload]) -> V | None:
    """Returns the first payload. None: it is of another kind, as any client may send what it likes."""
    try:
        return kind.model_validate(content(given[0])) if given else None
    except ValidationError:
        return None


def _verdict(end: Any) -> Verdict | None:
    """Returns the verdict from the result of a workflow, or from the details of its failure."""
    if result := getattr(end, "result", None):
        return _read(Verdict, result.payloads)
    details = (one.application_failure_info.details.payloads for one in _failures(getattr(end, "failure", None)))
    return _read(Verdict, next(filter(None, details), ()))


def _failures(failure: Failure | None) -> Iterable[Failure]:
    while failure:
        yield failure
        failure = failure.cause if failure.HasField("cause") else None


def _why(failure: Failure) -> str:
    """Returns the message of the innermost failure."""
    return next(filter(None, reversed([one.message for one in _failures(failure)])), "")
