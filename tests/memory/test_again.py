"""Restarts that were given up: when the next one begins, and which are begun by themselves."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Pending
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import cases
from tests.support.harness import a_job, a_mindio_job
from workflows import again, job_reducers

_numbers = count(1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CRASH = Fault(id="crash", kind=FaultKind.PROCESS, ranks=(0,), source="training-side")


def given_up(state: JobState, now: datetime, **changes: Any) -> JobState:
    """The state after an incident with a restart that was given up, for which the next one takes its turn."""
    state = crashed_again(state, now)
    now = max(now, state.again.at) if state.again else now
    case = cases.next_case(state, now)
    assert case
    verdict = Verdict(
        **{"mode": Mode.JOB_RESCHEDULING, "outcome": Outcome.GIVEN_UP, "reason": "why", "restarted_at": now, **changes}
    )
    incident = Incident(
        number=1,
        summary="crash",
        started_at=now,
        seconds=0,
        verdict=verdict.outcome,
        ladder=(verdict,),
        policy_after=SubHealthStrategy.IGNORE,
    )
    return job_reducers.concluded(job_reducers.begun(state, case), case, incident)


def crashed_again(state: JobState, now: datetime) -> JobState:
    """Faults that came after the restart."""
    return job_reducers.reported(state, FaultReport(faults=(CRASH.model_copy(update={"id": f"crash {next(_numbers)}"}),)), now)


def test_restarts_that_fail_one_after_the_other_are_spaced() -> None:
    """The second one follows at once, since it may have learnt of a place; each later one waits twice as long. The loop wakes
    for it."""
    state, now, pauses = JobState.of(a_job()), NOW, []
    for _ in range(4):
        state = crashed_again(given_up(state, now), now)
        due = now if cases.next_case(state, now) else cases.next_due(state, now)
        assert due
        pauses.append((due - now).total_seconds())
        assert cases.next_case(state, due)
        now = due
    assert pauses == [0, 30, 60, 120]


@pytest.mark.parametrize("how", ["a step", "a restart", "a manager of MindIO"])
def test_a_job_that_trains_again_is_restarted_at_once(how: str) -> None:
    """Failures of before do not matter then."""
    state = JobState.of(a_mindio_job() if how == "a manager of MindIO" else a_job())
    state = given_up(given_up(state, NOW), NOW, again="that its pods can be made")
    assert any(one.fault.id == again.FAULT for one in state.faults)
    if how == "a step":
        state = job_reducers.progressed(state, Progress(incarnation="life-2", step=1), NOW, recovering=False)
    elif how == "a restart":
        state = given_up(state, NOW + timedelta(hours=1), outcome=Outcome.RECOVERED)
    else:
        state = job_reducers.attached(state, Attachment(queue="gateway/gateway-0", session="s", since=NOW), NOW, restarting=False)
    assert state.again is None
    assert not any(one.fault.id == again.FAULT for one in state.faults)


def test_what_a_restart_could_not_do_is_begun_again_by_itself_and_ever_more_rarely() -> None:
    """The same holds where nothing else is wrong with the job any more; tries that made no pods count for no restart."""
    state, now, pauses = JobState.of(a_job()), NOW, []
    for _ in range(7):
        state = given_up(state, now, again="the end of pods")
        state = state.with_(faults=tuple(one for one in state.faults if one.fault.id == again.FAULT))
        assert cases.next_case(state, now) is None
        due = cases.next_due(state, now)
        assert due
        assert again.is_due(state, due)
        pauses.append((due - now).total_seconds() / 60)
        state, now = again.judged_again(state), due
        case = cases.next_case(state, now)
        assert case
        assert case.plan.modes[-1] is Mode.JOB_RESCHEDULING
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert state.restarts == ()


def test_a_place_that_a_restart_has_learnt_of_is_left_at_once() -> None:
    """The next one keeps off it; pods were made, so that it counts for a restart."""
    state = given_up(JobState.of(a_job()), NOW, again="a node on which they start", failed_on=("node-1",))
    assert again.is_due(state, NOW)
    assert state.restarts == (NOW,)


def test_a_person_need_not_wait_for_the_next_restart() -> None:
    """A requested restart begins at once."""
    state = crashed_again(given_up(given_up(JobState.of(a_job()), NOW), NOW), NOW)
    assert cases.next_case(state, NOW) is None
    asked = Pending(id="request", request=ModeRequest(job="gpt", mode=Mode.JOB_RESCHEDULING))
    case = cases.next_case(job_reducers.requested(state, asked), NOW)
    assert case
    assert case.request == asked
