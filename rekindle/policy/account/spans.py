"""Spans of an incident: which part of it was spent on what. Pure."""

from collections.abc import Iterable, Sequence

from rekindle.model import bounds
from rekindle.model.account import Bucket, Row, Span
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Phase
from rekindle.model.standby import was_standby
from rekindle.model.verdict import Verdict

PHASES: dict[str, Bucket] = {
    "all pods stop": Bucket.PODS,
    "all ranks begin again": Bucket.LOADING,
    "backup loads, training pauses": Bucket.REBUILDING,
    "backup pod is scheduled": Bucket.PODS,
    "backup pod runs": Bucket.PODS,
    "backup pod takes over the rank": Bucket.REBUILDING,
    "devices are found": Bucket.DECISION,
    "devices are tested": Bucket.REBUILDING,
    "faults settle and are announced": Bucket.REBUILDING,
    "faulty processes start again": Bucket.REBUILDING,
    "links are switched": Bucket.REBUILDING,
    "new pods start": Bucket.PODS,
    "new pods take over the ranks": Bucket.REBUILDING,
    "old pod is deleted": Bucket.PODS,
    "old pods are deleted": Bucket.PODS,
    "platform confirms the faults": Bucket.DECISION,
    "platform prepares the rank table": Bucket.DECISION,
    "pods start on healthy nodes": Bucket.PODS,
    "ranks are found": Bucket.DECISION,
    "ranks save their state": Bucket.CHECKPOINT,
    "pods that have left are deleted": Bucket.PODS,
    "the size is decided": Bucket.DECISION,
    "the step is repeated": Bucket.REBUILDING,
    "training goes on": Bucket.REBUILDING,
    "training goes on with fewer pods": Bucket.REBUILDING,
    "training goes on with more pods": Bucket.REBUILDING,
    "training pauses": Bucket.REBUILDING,
    "training repeats a step": Bucket.REBUILDING,
    "training resumes": Bucket.REBUILDING,
    "training resumes from its last checkpoint": Bucket.LOADING,
    "training side prepares": Bucket.REBUILDING,
    "training side says what it offers": Bucket.REBUILDING,
    "training stops": Bucket.REBUILDING,
    "what was found is judged": Bucket.DECISION,
}
"""Buckets by the names of phases. What is between two phases is a decision."""

STOPS = ("all pods stop", "backup loads, training pauses", "training pauses", "training stops")
"""Phases in which training comes to stand, where it did not stand before."""

STANDS = {
    Mode.HOT_SWITCH: ("old pod is deleted", "training resumes"),
    Mode.LINK_SWITCH: ("links are switched", "training goes on"),
    Mode.STRESS_TEST: ("devices are tested", "what was found is judged", "training goes on"),
}
"""Phases of planned modes in which training may stand. It stands from the first of them to the phase in which it goes on."""

REPAIRS = (
    *(Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING, Mode.ELASTIC_TRAINING),
    *(Mode.POD_RESCHEDULING, Mode.JOB_RESCHEDULING),
)
"""Modes after which training goes on that a fault had stopped."""

GOES_ON = ("training resumes", "training goes on")

LONGEST_CODE, LONGEST_NODE = 32, 100
"""Bytes of a fault code, and of the name of a node. Longer ones are cut."""


def row_of(incident: Incident) -> Row:
    """Returns the row of an incident that has ended. Spans of the row do not overlap and cover all of it."""
    since, last = incident.started_at.timestamp(), incident.ladder[-1]
    until = since + incident.seconds
    people = [Span(since=one.since.timestamp(), until=one.until.timestamp(), bucket=Bucket.PERSON) for one in incident.waits]
    phases = [_span(phase) for verdict in incident.ladder for phase in verdict.phases if phase.at]
    fault = next(iter(incident.faults), None)
    return Row(
        number=incident.number,
        since=since,
        seconds=incident.seconds,
        mode=last.mode,
        outcome=incident.verdict,
        cause=fault.kind.value if fault else "request",
        code=bounds.cut(_code(fault), LONGEST_CODE) if fault else "",
        node=bounds.cut(fault.node, LONGEST_NODE) if fault else "",
        restarts=any(verdict.restarted_at or verdict.mode is Mode.POD_RESCHEDULING for verdict in incident.ladder),
        standbys=_took_standbys(incident),
        stopped=_stopped(incident) or 0.0,
        waited=sum(span.until - span.since for span in people),
        spans=_joined(_covered(sorted([*people, *phases], key=lambda span: span.since), since, until)),
    )


def stood(incident: Incident) -> tuple[float, float] | None:
    """Returns the time in which training stood because of an incident, by what the control plane knows. None: it did not."""
    last = incident.ladder[-1]
    if last.outcome is not Outcome.RECOVERED:
        return None
    since = _stopped(incident)
    until = last.went_on_at.timestamp() if last.went_on_at else incident.started_at.timestamp() + incident.seconds
    return (since, until) if since else None


def _stopped(incident: Incident) -> float | None:
    """Returns when training came to stand: with a real fault, or when a mode stopped it. None: it did not."""
    stops = (phase.at for verdict in incident.ladder for phase in verdict.phases if phase.at and phase.name in STOPS)
    is_real = any(fault.kind is not FaultKind.SUB_HEALTH for fault in incident.faults)
    since = incident.started_at if is_real else min(stops, default=None)
    return since.timestamp() if since else None


def planned_pause(verdict: Verdict) -> float | None:
    """Returns the seconds from the moment in which training stood to the end of the phase in which it went on. None: the mode
    plans no pause, or training never went on."""
    names = [phase.name for phase in verdict.phases]
    end = max((index for index, name in enumerate(names) if name in GOES_ON), default=None)
    if end is None or verdict.mode not in STANDS:
        return None
    return sum(phase.seconds for phase in verdict.phases[: end + 1] if phase.name in STANDS[verdict.mode])


def _took_standbys(incident: Incident) -> bool:
    names = [moved.after.name for verdict in incident.ladder for moved in verdict.switched]
    return bool(names) and all(map(was_standby, names))


def _span(phase: Phase) -> Span:
    assert phase.at is not None
    since = phase.at.timestamp()
    return Span(since=since, until=since + phase.seconds, bucket=PHASES.get(phase.name, Bucket.REBUILDING))


def _code(fault: Fault) -> str:
    return fault.code or next((one.code for one in fault.details if one.code), "")


def _covered(spans: Iterable[Span], since: float, until: float) -> Iterable[Span]:
    """Returns the spans within these times, one after the other, with decisions between them."""
    for span in spans:
        if span.since > since:
            yield Span(since=since, until=min(span.since, until), bucket=Bucket.DECISION)
        begins, since = max(span.since, since), max(since, min(span.until, until))
        if since > begins:
            yield Span(since=begins, until=since, bucket=span.bucket)
    if until > since:
        yield Span(since=since, until=until, bucket=Bucket.DECISION)


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Returns the spans with adjacent ones of one bucket as one."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].bucket is span.bucket:
            joined[-1] = joined[-1].model_copy(update={"until": span.until})
        else:
            joined.append(span)
    return tuple(joined)


def split(since: float, until: float, rows: Sequence[Row], *, first: bool) -> Iterable[tuple[Span, int]]:
    """Splits a time in which training stood, by what the incidents did meanwhile.

    Args:
        rows: incidents in their order.
        first: the job had not trained before.

    Returns:
        Spans that cover the time, each with the number of its incident; 0: it has none.
    """
    before: Row | None = None
    for row in rows:
        if row.until <= since or row.since >= until:
            continue
        if row.since > since:
            yield Span(since=since, until=row.since, bucket=_without(before, row, first=first)), (before or row).number
        for span in row.spans:
            begins, ends = max(span.since, since), min(span.until, until)
            if ends > begins:
                yield Span(since=begins, until=ends, bucket=span.bucket), row.number
        ends = min(row.until, until)
        if ends > since and not row.spans:
            yield Span(since=max(since, row.since), until=ends, bucket=Bucket.NOT_RECOVERED), row.number
        since, before = max(since, ends), row
    if until > since:
        yield Span(since=since, until=until, bucket=_without(before, None, first=first)), before.number if before else 0


def _without(before: Row | None, after: Row | None, *, first: bool) -> Bucket:
    """Returns the bucket of a time in which training stood and no incident was running."""
    if before is None:
        return Bucket.START_UP if first else Bucket.DETECTION if after else Bucket.UNKNOWN
    if before.outcome is not Outcome.RECOVERED:
        return Bucket.NOT_RECOVERED
    return Bucket.DETECTION if after else Bucket.REBUILDING
