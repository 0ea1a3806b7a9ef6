"""When it is tried again to leave a node."""

from datetime import UTC, datetime, timedelta

import pytest

from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.recovery import Incident, Mode, Outcome, Verdict
from rekindle.policy.drains import MOST_RARELY, WAITS, WENT_BACK, again_at

NOW = datetime(2020, 2, 20, 20, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NO_SPARE, PAUSED = f"{WAITS}: no spare", f"{WAITS}: {WENT_BACK}: exit code 1"


def tried(reason: str, since: datetime) -> Incident:
    """It takes a minute."""
    verdict = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.IGNORED, reason=reason)
    policy, seconds = SubHealthStrategy.HOT_SWITCH, MINUTE.total_seconds()
    return Incident(
        number=1, summary="s", started_at=since, seconds=seconds, verdict=Outcome.IGNORED, ladder=(verdict,), policy_after=policy
    )


@pytest.mark.parametrize(
    ("reasons", "waits"),
    [
        ([NO_SPARE] * 4, [1, 1, 1, 1]),
        ([PAUSED] * 8, [1, 2, 4, 8, 16, 30, 30, 30]),
        ([NO_SPARE, NO_SPARE, PAUSED, PAUSED, NO_SPARE, PAUSED], [1, 1, 1, 2, 1, 1]),
    ],
)
def test_what_costs_a_pause_is_tried_ever_more_rarely(reasons: list[str], waits: list[int]) -> None:
    """A wait for a free node costs training nothing, and is as short each time."""
    job = Job(id=JobId("job"), name="gpt", pods=1)
    now, found = NOW, []
    before: Incident | None = None
    for reason in reasons:
        incident = tried(reason, now)
        now = again_at(job, before, incident)
        found.append((now - incident.started_at) / MINUTE - 1)
        before = incident
    assert found == waits


def test_the_owner_of_a_job_may_have_it_tried_more_often_or_more_rarely() -> None:
    """By a limit of the job; an own one that is longer than the longest of ours holds."""
    for limit in (timedelta(seconds=2), 2 * MOST_RARELY):
        job = Job(id=JobId("job"), name="gpt", pods=1, limits=Limits(drain_again=limit))
        assert again_at(job, tried(PAUSED, NOW), tried(PAUSED, NOW + MINUTE)) == NOW + 2 * MINUTE + limit
