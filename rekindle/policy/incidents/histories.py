"""Reads the history of a recovery's workflow, as items of a picture. Pure."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from rekindle.model import bounds
from rekindle.model.attachment import Progress
from rekindle.model.base import Value
from rekindle.model.dialogue import Report
from rekindle.model.fault import Fault, FaultsNow
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode
from rekindle.model.picture import Item, Recorded
from rekindle.model.ranks import written_ranks
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.cases import describe

Event = dict[str, Any]
V = TypeVar("V", bound=Value)

TYPE = "EVENT_TYPE_"
GATEWAYS = "gateway/"
"""Prefix of the queues of gateways. Activities on all other queues are calls to the cluster."""

ENDS = {
    "WORKFLOW_EXECUTION_COMPLETED": "",
    "WORKFLOW_EXECUTION_FAILED": "failed",
    "WORKFLOW_EXECUTION_CANCELED": "cancelled",
    "WORKFLOW_EXECUTION_TERMINATED": "terminated",
    "WORKFLOW_EXECUTION_TIMED_OUT": "timed out",
}
CLOSES = {
    "ACTIVITY_TASK_COMPLETED": "",
    "ACTIVITY_TASK_FAILED": "failed",
    "ACTIVITY_TASK_TIMED_OUT": "timed out",
    "ACTIVITY_TASK_CANCELED": "cancelled",
    "TIMER_FIRED": "time limit reached",
    "TIMER_CANCELED": "",
}
"""Events that end an activity or a timer, with what is said of it."""


class Recovery:
    """Items of one history.

    Args:
        now: seconds since the epoch, for what has not ended.
    """

    def __init__(self, recorded: Recorded, now: float) -> None:
        self.mode: Mode | None = None
        self.summary = ""
        self.faults: tuple[Fault, ...] = ()
        """Faults at its beginning."""
        self.since = self.until = self._last = now
        self.ended = ""
        """Way in which the workflow ended without a result. Empty: it has one, or it is running."""
        self.is_running = True
        self.verdict: Verdict | None = None
        self.orders: list[Item] = []
        self.calls: list[Item] = []
        self.waits: list[Item] = []
        self.reports: list[Item] = []
        self._phases: list[tuple[float, str]] = []
        self._open: dict[str, tuple[list[Item], float, str]] = {}
        for event in recorded.events:
            self._take(event)
        if self.is_running:
            self.until = max(now, self._last)
        for items, since, text in self._open.values():
            items.append(Item(since=since, until=self.until, text=text, running=self.is_running, failed=not self.is_running))

    @property
    def phases(self) -> list[Item]:
        """Phases as the verdict has them, or else as they were shown while the recovery ran."""
        known = [phase for phase in self.verdict.phases if phase.at] if self.verdict else []
        if known:
            return [_phase(phase.name, phase.at.timestamp(), phase.seconds, phase.note) for phase in known if phase.at]
        ends = [since for since, _ in self._phases[1:]] + [self.until]
        running = [False] * (len(self._phases) - 1) + [self.is_running]
        return [
            Item(since=since, until=until, text=text, running=runs)
            for (since, text), until, runs in zip(self._phases, ends, running, strict=True)
        ]

    def _take(self, event: Event) -> None:
        kind, at = event["eventType"].removeprefix(TYPE), datetime.fromisoformat(event["eventTime"]).timestamp()
        self._last = at
        if kind in ENDS:
            self.until, self.is_running, self.ended = at, False, ENDS[kind]
            self.verdict = _verdict(event)
        elif kind in CLOSES:
            self._close(_attributes(event), at, CLOSES[kind])
        elif take := TAKEN.get(kind):
            take(self, event, at)

    def started(self, event: Event, at: float) -> None:
        self.since, attributes = at, _attributes(event)
        self.summary = _summary(event)
        given = _payloads(attributes.get("input"))
        if request := _read(ModeRequest, given):
            self.mode = request.mode
        if context := _read(RecoveryContext, given[1:]):
            self.faults = context.situation.faults
        self._phase_of(attributes, at)

    def shown(self, event: Event, at: float) -> None:
        self._phase_of(_attributes(event), at)

    def _phase_of(self, attributes: Event, at: float) -> None:
        shown = attributes.get("searchAttributes", {}).get("indexedFields", {}).get("RekindlePhase")
        if shown:
            self._phases.append((at, str(_value(shown))))

    def activity(self, event: Event, at: float) -> None:
        attributes = _attributes(event)
        items = self.orders if attributes["taskQueue"]["name"].startswith(GATEWAYS) else self.calls
        self._open[event["eventId"]] = items, at, _summary(event) or attributes["activityType"]["name"]

    def timer(self, event: Event, at: float) -> None:
        self._open[event["eventId"]] = self.waits, at, _summary(event) or "wait"

    def _close(self, attributes: Event, at: float, how: str) -> None:
        items, since, text = self._open.pop(attributes.get("scheduledEventId") or attributes["startedEventId"])
        why = _why(attributes) if how == "failed" else ""
        said = "".join((text, f": {how}" if how else "", f", {why}" if why else ""))
        items.append(Item(since=since, until=at, text=said, failed=how in ("failed", "timed out")))

    def update(self, event: Event, at: float) -> None:
        attributes = _attributes(event)
        given = (attributes.get("acceptedRequest") or attributes.get("request") or {}).get("input")
        if not given:  # the event before, which says that it was admitted, has it
            return
        report = _read(Report, _payloads(given.get("args"))) if given["name"] == "report" else None
        text = _of_report(report) if report else str(given["name"])
        self.reports.append(Item(since=at, until=at, text=text, failed=bool(report and report.code)))

    def signal(self, event: Event, at: float) -> None:
        attributes = _attributes(event)
        words = SIGNALS.get(attributes["signalName"])
        text = words(_payloads(attributes.get("input"))) if words else ""
        if text:
            self.reports.append(Item(since=at, until=at, text=text))


TAKEN: dict[str, Callable[[Recovery, Event, float], None]] = {
    "WORKFLOW_EXECUTION_STARTED": Recovery.started,
    "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES": Recovery.shown,
    "ACTIVITY_TASK_SCHEDULED": Recovery.activity,
    "TIMER_STARTED": Recovery.timer,
    "WORKFLOW_EXECUTION_UPDATE_ACCEPTED": Recovery.update,
    "WORKFLOW_EXECUTION_UPDATE_ADMITTED": Recovery.update,
    "WORKFLOW_EXECUTION_SIGNALED": Recovery.signal,
}


def _phase(name: str, since: float, seconds: float, note: str) -> Item:
    return Item(since=since, until=since + seconds, text=f"{name}: {note}" if note else name, failed=bool(note))


def _of_report(report: Report) -> str:
    parts = [f"reports {report.kind}", *report.strategies, report.strategy]
    if report.code:
        parts.append(f"code {report.code}")
    if report.fault_ranks:
        parts.append(f"faulty ranks {written_ranks(one.rank for one in report.fault_ranks)}")
    return " ".join((*filter(None, parts), report.info)).strip()


def _of_faults(given: list[object]) -> str:
    now = _read(FaultsNow, given)
    return f"faults now: {bounds.few([describe(fault) for fault in now.faults], between='; ') or 'none'}" if now else ""


def _of_progress(given: list[object]) -> str:
    progress = _read(Progress, given)
    return f"reports step {progress.step}, the first one since it began again" if progress else ""


SIGNALS: dict[str, Callable[[list[object]], str]] = {
    "attached": lambda _: "stream attached",
    "detached": lambda _: "stream ended",
    "progressed": _of_progress,
    "faults": _of_faults,
    "manager_lost": lambda _: "manager lost",
}
"""Signals that a picture shows, with their words."""


# ---- JSON of Temporal's API


def _attributes(event: Event) -> Event:
    return next((value for name, value in event.items() if name.endswith("EventAttributes")), {})


def _payloads(given: Event | None) -> list[object]:
    return [_value(payload) for payload in (given or {}).get("payloads", ())]


def _value(payload: Event) -> object:
    """Returns the content of a payload. None: it is no JSON, as any client may send what it likes."""
    try:
        return json.loads(b64decode(payload.get("data", "")))
    except (ValueError, RecursionError):
        return None


def _summary(event: Event) -> str:
    summary = _value(event.get("userMetadata", {}).get("summary", {}))
    return summary if isinstance(summary, str) else ""


def _read(kind: type[V], given: list[object]) -> V | None:
    """Returns the first payload. None: it is of another kind, as any client may send what it likes."""
    try:
        return kind.model_validate(given[0]) if given else None
    except ValidationError:
        return None


def _verdict(event: Event) -> Verdict | None:
    """Returns the verdict from the result of a workflow, or from the details of its failure."""
    attributes = _attributes(event)
    failures = _failures(attributes.get("failure"))
    details = next((found for one in failures if (found := one.get("applicationFailureInfo", {}).get("details"))), None)
    return _read(Verdict, _payloads(attributes.get("result") or details))


def _failures(failure: Event | None) -> Iterator[Event]:
    while failure:
        yield failure
        failure = failure.get("cause")


def _why(attributes: Event) -> str:
    """Returns the message of the innermost failure."""
    messages = [str(one.get("message", "")) for one in _failures(attributes.get("failure"))]
    return next(filter(None, reversed(messages)), "")
