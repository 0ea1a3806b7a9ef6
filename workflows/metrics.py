"""Metrics of incidents, counted by workflows as they conclude.

A replay counts nothing. A workflow task that the server did not accept runs again, and is counted once in each process.
"""

from collections import OrderedDict
from datetime import datetime
from itertools import product

from prometheus_client import Counter, Histogram
from temporalio import workflow

from rekindle.model.fault import TRAINING_SIDE, WATCHER, Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Situation
from rekindle.model.verdict import Verdict
from rekindle.policy.account import spans

PAUSES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
WAITS = tuple(0.1 * 2**power for power in range(17))
"""Upper bounds in seconds, from 0.1 s to almost two hours."""

REQUEST = "request"
"""Cause of an incident without a fault."""

OTHER = "other"
"""Source of a fault that another one reported."""

KEPT = 10_000
"""Number of the last counted subjects that are remembered."""

INCIDENTS = Counter("rekindle_incidents", "Incidents that have ended.", ("mode", "verdict", "fault"))
INCIDENT_SECONDS = Histogram(
    "rekindle_incident_seconds",
    "Time from the beginning to the end of an incident.",
    ("mode", "verdict", "waited_for"),
    buckets=WAITS,
)
PHASE_SECONDS = Histogram("rekindle_phase_seconds", "Time of a phase of a mode.", ("mode", "phase"), buckets=WAITS)
PAUSE_SECONDS = Histogram(
    "rekindle_training_pause_seconds", "Time for which a planned mode lets training stand.", ("mode",), buckets=PAUSES
)
FIRST_ORDER_SECONDS = Histogram(
    "rekindle_fault_to_first_order_seconds",
    "Time from the acceptance of a fault until the first order was sent.",
    ("source",),
    buckets=PAUSES,
)
STEP_SECONDS = Histogram(
    "rekindle_fault_to_step_seconds",
    "Time from the acceptance of a fault until training went on.",
    ("mode", "fault"),
    buckets=WAITS,
)
DETECTION_SECONDS = Histogram(
    "rekindle_detection_seconds",
    "Time from the moment that the source of a fault gives until its acceptance.",
    ("source",),
    buckets=PAUSES,
)
STEPS_REDONE = Counter("rekindle_steps_redone", "Steps that training repeated.", ("mode",))
ESCALATIONS = Counter("rekindle_escalations", "Modes that were followed by another mode.", ("from", "to", "reason"))

# Incidents are rare. `increase` sees the first one of its labels only if the series was there before.
for _labels in product(Mode, set(Outcome) - {Outcome.ESCALATE}, (*FaultKind, REQUEST)):
    INCIDENTS.labels(*_labels)
for _mode in Mode:
    STEPS_REDONE.labels(_mode)
    INCIDENT_SECONDS.labels(_mode, Outcome.RECOVERED, "nothing")
for _mode in spans.STANDS:
    PAUSE_SECONDS.labels(_mode)
for _repair in product(spans.REPAIRS, FaultKind):
    STEP_SECONDS.labels(*_repair)
for _source in (WATCHER, TRAINING_SIDE, OTHER):
    FIRST_ORDER_SECONDS.labels(_source)
    DETECTION_SECONDS.labels(_source)

_counted: OrderedDict[tuple[str, str], None] = OrderedDict()


def _is_first(subject: str) -> bool:
    """Returns whether something of this workflow is to be counted now."""
    key = workflow.info().workflow_id, subject
    if workflow.unsafe.is_replaying() or key in _counted:
        return False
    _counted[key] = None
    if len(_counted) > KEPT:
        _counted.popitem(last=False)
    return True


def first_order(situation: Situation) -> None:
    """Counts the first order of an incident that a fault began."""
    fault = next(iter(situation.faults), None)
    if fault and fault.accepted_at and not situation.tried and _is_first("first order"):
        FIRST_ORDER_SECONDS.labels(_source_of(fault)).observe(_since(fault.accepted_at, workflow.now()))


def concluded(incident: Incident, waited_for: str) -> None:
    """Counts an incident with its modes, phases and times.

    Args:
        waited_for: `person`, `storm` or `nothing`.
    """
    if not _is_first(f"{incident.number} {incident.started_at}"):
        return
    last, fault = incident.ladder[-1], next(iter(incident.faults), None)
    kind = fault.kind if fault else REQUEST
    INCIDENTS.labels(last.mode, last.outcome, kind).inc()
    INCIDENT_SECONDS.labels(last.mode, last.outcome, waited_for).observe(incident.seconds)
    for before, after in zip(incident.ladder, incident.ladder[1:], strict=False):
        reason = before.training or "other"
        ESCALATIONS.labels(before.mode, after.mode, reason).inc()
    for verdict in incident.ladder:
        _count_mode(verdict)
    for one in incident.faults:
        began = (one.decided and one.decided.since) or one.seen_at
        if began and one.accepted_at:
            DETECTION_SECONDS.labels(_source_of(one)).observe(_since(began, one.accepted_at))
    went_on = last.went_on_at or (workflow.now() if last.resumed_at else None)
    if last.outcome is Outcome.RECOVERED and went_on and fault and fault.accepted_at:
        STEP_SECONDS.labels(last.mode, kind).observe(_since(fault.accepted_at, went_on))


def _count_mode(verdict: Verdict) -> None:
    mode = verdict.mode
    for phase in verdict.phases:
        if not phase.name.startswith("undo: "):
            PHASE_SECONDS.labels(mode, phase.name).observe(phase.seconds)
    if verdict.steps_lost:
        STEPS_REDONE.labels(mode).inc(verdict.steps_lost)
    if verdict.outcome is Outcome.RECOVERED and (paused := spans.planned_pause(verdict)) is not None:
        PAUSE_SECONDS.labels(mode).observe(paused)


def _source_of(fault: Fault) -> str:
    """Returns the source of a fault. The names of other reporters are not bounded."""
    return fault.source if fault.source in (WATCHER, TRAINING_SIDE) else OTHER


def _since(before: datetime, after: datetime) -> float:
    """Returns the seconds between two moments of two clocks, which may differ."""
    return max((after - before).total_seconds(), 0.0)
