"""Spans from the sight of a fault to its incident."""

from datetime import UTC, datetime, timedelta

import pytest

from activities.incident_spans import IncidentSpans
from rekindle.model.fault import WATCHER, Decided, Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from tests.support.harness import a_job

NOW = datetime(2026, 11, 28, tzinfo=UTC)


@pytest.mark.parametrize(
    ("waited", "settle", "names"),
    [
        (timedelta(seconds=1), 0.0, ["incident", "detection", "conclusion"]),
        (timedelta(minutes=5), 300.0, ["incident", "detection", "conclusion"]),
        (timedelta(days=3), 0.0, ["incident", "conclusion"]),
    ],
)
def test_a_fault_that_was_ignored_is_not_detected_for_days(waited: timedelta, settle: float, names: list[str]) -> None:
    """The policy is lifted after three days. The trace is as long as the incident, and its parts can be seen."""
    fault = Fault(
        id="slow",
        kind=FaultKind.SUB_HEALTH,
        source=WATCHER,
        seen_at=NOW - waited,
        accepted_at=NOW - waited,
        decided=Decided(rule="slow", saw="it is slow", settle=settle),
    )
    incident = Incident(
        number=1,
        summary="node-1 is slow",
        started_at=NOW,
        seconds=2.0,
        verdict=Outcome.IGNORED,
        ladder=(Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.IGNORED, reason="denied"),),
        policy_after=SubHealthStrategy.HOT_SWITCH,
        faults=(fault,),
    )
    spans = IncidentSpans(a_job(), [incident], (), {}).drawn()
    assert [span.name for span in spans] == names
    assert spans[0].began == (NOW - waited if "detection" in names else NOW)
