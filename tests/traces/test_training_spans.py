"""Spans that a training side sends: what the gateway accepts of them."""

from datetime import UTC, datetime

import pytest

from rekindle.errors import BadInput
from rekindle.ids import recovery_workflow
from rekindle.model.incident import Incident
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.spans import mode_place
from rekindle_wire.training_pb2 import Interval, SpansReport
from tests.support.harness import a_job
from workers.gateway.training_spans import Told, training_spans

STATE = JobState.of(a_job()).with_(incidents=3)
NOW = 1_800_000_000_000_000_000


def a_report(*intervals: Interval, incident: int = 3, mode: Mode = Mode.HOT_SWITCH) -> SpansReport:
    place = mode_place(recovery_workflow(STATE.job, incident, mode))
    assert place is not None
    return SpansReport(trace=place.traceparent, intervals=intervals)


def an_interval(**fields: object) -> Interval:
    return Interval(**{"name": "rebuild", "began": NOW, "ended": NOW + 1000, **fields})  # type: ignore[arg-type]


def test_an_interval_that_is_told_twice_is_one_span() -> None:
    """Ids follow from what is told, so a message that is repeated changes nothing."""
    report = a_report(an_interval(), an_interval(rank=1, within=1), an_interval(rank=2, within=1))
    spans = training_spans(report, STATE)
    assert spans == training_spans(report, STATE)
    assert len({span.place for span in spans}) == 3
    assert [span.process for span in spans] == ["manager", "rank", "rank"]


@pytest.mark.parametrize(
    ("interval", "field"),
    [
        (an_interval(name=""), "name"),
        (an_interval(name="n" * 61), "name"),
        (an_interval(error="e" * 61), "name, error"),
        (an_interval(name="two\nlines"), "name, error"),
        (an_interval(error="\x1b[2J"), "name, error"),
        (an_interval(began=0), "began"),
        (an_interval(ended=NOW - 1), "began, ended"),
        (an_interval(ended=NOW + 10**15), "began, ended"),
        (an_interval(began=2**63 - 2, ended=2**63 - 1), "began, ended"),
        (an_interval(within=1), "within"),
        (an_interval(within=-1), "within"),
    ],
)
def test_an_interval_that_is_none_is_refused(interval: Interval, field: str) -> None:
    """The error names the field, and nothing of the message is exported."""
    with pytest.raises(BadInput, match=rf"^intervals\[0\]\.{field}"):
        training_spans(a_report(interval), STATE)


def test_a_pod_adds_nothing_to_a_trace_of_another_job() -> None:
    """Spans of the last incidents of the job that sends them are accepted, and no others."""
    for report in (a_report(incident=4), SpansReport(trace="00-banana"), SpansReport()):
        with pytest.raises(BadInput, match=r"^trace: "):
            training_spans(report, STATE)


def test_a_recovery_has_a_largest_number_of_spans() -> None:
    """A training side that sends without end fills the queue of all jobs. A manager sends less."""
    many = a_report(*[an_interval()] * 1024)
    told = Told()
    for _ in range(2):
        told.add(many)
    with pytest.raises(BadInput, match="3072 of one recovery are not accepted, accepted are 2048"):
        told.add(many)
    told.add(a_report(an_interval(), incident=2))
    with pytest.raises(BadInput, match="2049 of one recovery are not accepted, accepted are 2048"):
        training_spans(a_report(*[an_interval()] * 2049), STATE)


def test_a_mode_that_did_not_run_has_no_spans() -> None:
    """Modes of an incident that has ended are accepted, and no others: they would be further traces to send without end."""
    verdict = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.RECOVERED, reason="moved")
    ended = Incident(
        number=2,
        summary="",
        started_at=datetime.now(UTC),
        seconds=1.0,
        verdict=Outcome.RECOVERED,
        ladder=(verdict,),
        policy_after=SubHealthStrategy.HOT_SWITCH,
    )
    state = STATE.with_(history=(ended,))
    assert training_spans(a_report(an_interval(), incident=2), state)
    with pytest.raises(BadInput, match=r"^trace: "):
        training_spans(a_report(an_interval(), incident=2, mode=Mode.LINK_SWITCH), state)
