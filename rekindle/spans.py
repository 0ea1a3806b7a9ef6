"""Spans of the trace of an incident: their names, attributes and ids. `rekindle.otlp` exports them.

Every id is derived from names. So every process makes the same span at any time, also one that follows a process that was killed,
and a span that is exported twice is still one span.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

Plain = str | int | float | bool | tuple[str, ...]


class Names:
    """Keys of attributes. `k8s.*` and `error.*` are those of OpenTelemetry's semantic conventions, the others are ours."""

    ERROR = "error.type"
    NAMESPACE = "k8s.namespace.name"
    NODE = "k8s.node.name"
    POD = "k8s.pod.name"
    JOB = "rekindle.job.name"
    JOB_ID = "rekindle.job.id"
    INCIDENT = "rekindle.incident"
    SECONDS = "rekindle.incident.seconds"
    SUMMARY = "rekindle.summary"
    VERDICT = "rekindle.verdict"
    POLICY = "rekindle.policy.after"
    FAULT = "rekindle.fault"
    FAULT_KIND = "rekindle.fault.kind"
    FAULT_CODE = "rekindle.fault.code"
    RULE = "rekindle.fault.rule"
    SOURCE = "rekindle.source"
    RANK = "rekindle.rank"
    RANKS = "rekindle.ranks"
    POD_RANKS = "rekindle.pod_ranks"
    MODE = "rekindle.mode"
    MODES = "rekindle.modes"
    REASON = "rekindle.reason"
    APPROVED = "rekindle.approved"
    STEPS_LOST = "rekindle.steps_lost"
    STEP = "rekindle.step"
    NOTE = "rekindle.note"
    WORKFLOW = "rekindle.workflow"
    ACTIVITY = "rekindle.activity"
    WORKER = "rekindle.worker"
    TRIES = "rekindle.tries"
    ORDER = "rekindle.order"
    ATTEMPT = "rekindle.attempt"
    REPORT = "rekindle.report"


class Process:
    """Processes that spans are of. The name of the service is `rekindle-` and this, unless `OTEL_SERVICE_NAME` gives another."""

    CONTROL = "control"
    GATEWAY = "gateway"
    WATCHER = "watcher"
    MANAGER = "manager"
    RANK = "rank"


class Place(NamedTuple):
    """Place of a span in its trace."""

    trace: int
    span: int

    def inner(self, *names: object) -> "Place":
        """Returns the place of the span with these names under this one."""
        return Place(self.trace, _number(8, self.trace, self.span, *names))

    @property
    def traceparent(self) -> str:
        """The place as W3C's `traceparent`, which is sampled."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


def incident_place(recovery: str) -> Place | None:
    """Returns the place of the root span of a recovery's incident; None: the text is not the id of a recovery's workflow."""
    found = re.fullmatch(r"(recovery/.+/[0-9]{1,9})-[^/]*(/[^/]*)", recovery)
    if found is None:
        return None
    trace = _number(16, found[1], found[2])
    return Place(trace, _number(8, trace, "incident"))


def mode_place(recovery: str) -> Place | None:
    """Returns the place of the span of a mode, by the id of its workflow; None: the text is no such id."""
    root = incident_place(recovery)
    return root and root.inner(recovery)


def activity_place(around: Place, activity_id: str) -> Place:
    """Returns the place of an activity of a mode, or of the job's workflow during an incident."""
    return around.inner("activity", activity_id)


def place_of(traceparent: str) -> Place | None:
    """Reads W3C's `traceparent`; None: it is none."""
    found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}", traceparent)
    place = Place(int(found[1], 16), int(found[2], 16)) if found else None
    return place if place and all(place) else None


def _number(size: int, *names: object) -> int:
    """Returns a number of so many bytes that follows from the names, and is not 0, which is no id."""
    digest = sha256("\0".join(str(name) for name in names).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1


@dataclass(frozen=True)
class Span:
    """Interval of an incident."""

    name: str
    place: Place
    parent: Place | None
    """Place of the span around it. None: it is the root."""
    began: datetime
    ended: datetime
    process: str = Process.CONTROL
    """Process that did it."""
    about: Mapping[str, Plain] = field(default_factory=dict)
    """Attributes. Empty texts and lists are left out."""
    error: str = ""
    """Kind of its failure, for `error.type`. Empty: it did not fail."""

    @property
    def attributes(self) -> dict[str, Plain]:
        given = {key: value for key, value in self.about.items() if value not in ("", ())}
        return {**given, Names.ERROR: self.error} if self.error else given


_here: ContextVar[Place | None] = ContextVar("rekindle_span", default=None)


def here() -> Place | None:
    """Returns the place of the span in which the caller runs, for its log lines. None: it runs in none."""
    return _here.get()


@contextmanager
def within(place: Place | None) -> Iterator[None]:
    """Runs a block in a span, so that its log lines carry the ids of the span."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


def enter(place: Place | None) -> None:
    """Marks the rest of the current task, and tasks that it starts, as part of a span."""
    _here.set(place)
