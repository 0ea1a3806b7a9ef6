"""Spans that a training side sends: what the gateway accepts of them."""

import pytest

from rekindle.errors import BadInput
from rekindle.ids import recovery_workflow
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.spans import mode_place
from rekindle_wire.training_pb2 import Interval, SpansReport
from tests.support.harness import a_job
from workers.gateway.training_spans import training_spans

STATE = JobState.of(a_job()).with_(incidents=3)
NOW = 1_800_000_000_000_000_000


def a_report(*intervals: Interval, incident: int = 3) -> SpansReport:
    place = mode_place(recovery_workflow(STATE.job, incident, Mode.HOT_SWITCH))
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


def test_a_message_has_a_largest_size() -> None:
    """A manager bounds what it sends to less."""
    with pytest.raises(BadInput, match="2049 are not accepted, accepted are 2048"):
        training_spans(a_report(*[an_interval()] * 2049), STATE)
