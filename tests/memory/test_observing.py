"""The workflow of a job that is only observed keeps and shows its decisions, and lowers no policy."""

from datetime import UTC, datetime, timedelta

import pytest

from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Pending, Registration
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import observe_only, requests
from rekindle.policy.modes.cases import next_case
from workflows import job_reducers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=2, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH, observe=True)
STATE = JobState.of(JOB)
ILL = Fault(id="ill", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), node="node-1", source="test")
LOWERS = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.IGNORED, reason="no spare", policy_after=SubHealthStrategy.IGNORE)
TOLD = job_reducers.reported(STATE, FaultReport(faults=(ILL,)), NOW)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_request_is_refused_with_what_would_let_it_act(mode: Mode) -> None:
    """Setting and label are in the text; it is judged so again when its turn comes."""
    request = ModeRequest(mode=mode, pod_rank=1, force=True)
    assert "REKINDLE_OBSERVE=false" in requests.refused(STATE, request)
    assert "rekindle.io/mode=active" in requests.refused(STATE, request)
    case = next_case(job_reducers.requested(STATE, Pending(id="r", request=request)), NOW)
    assert case
    assert (case.plan.modes, case.plan.refused) == ((), observe_only.ONLY)


def test_the_policy_is_never_lowered() -> None:
    """Also not by a recovery that ran when the installation began to observe."""
    assert job_reducers.downgraded(STATE, LOWERS, NOW) == STATE


def test_from_the_day_it_may_act_faults_are_judged_again() -> None:
    """A registration that differs in nothing but `observe` is a reason."""
    case = next_case(TOLD, NOW)
    assert case
    state = job_reducers.registered(job_reducers.observed(TOLD, case, "observed: a", NOW), Registration(job=JOB), NOW)
    assert next_case(state, NOW) is None
    active = Registration(job=JOB.model_copy(update={"observe": False}))
    again = next_case(job_reducers.registered(state, active, NOW), NOW)
    assert again
    assert [fault.id for fault in again.faults] == ["ill"]


def test_the_same_decision_is_shown_once() -> None:
    """A repeated decision is one incident of the history. Another reason or another fault is another decision."""
    case = next_case(TOLD, NOW)
    assert case
    state = job_reducers.observed(TOLD, case, "observed: a", NOW)
    assert job_reducers.was_observed(state, case, "observed: a")
    assert not job_reducers.was_observed(state, case, "observed: b")
    assert not job_reducers.was_observed(state, case.model_copy(update={"summary": "another"}), "observed: a")
    back = (ILL.model_copy(update={"accepted_at": NOW + timedelta(seconds=1)}),)
    assert not job_reducers.was_observed(state, case.model_copy(update={"faults": back}), "observed: a")
    assert job_reducers.observed(state, case, "observed: a", NOW) == state
    (incident,) = state.history
    assert (incident.number, incident.verdict, incident.ladder[0].reason) == (1, Outcome.REFUSED, "observed: a")


def test_decisions_about_many_pods_are_shown_once_each() -> None:
    """Ten pods on an unhealthy rack are judged again at every attachment. None of them fills the history again."""
    ill = tuple(
        ILL.model_copy(update={"id": f"ill/{rank}", "pod": f"gpt-{rank}", "node": "", "pod_ranks": (1,)}) for rank in range(10)
    )
    state = job_reducers.reported(STATE, FaultReport(faults=ill), NOW)
    for _ in range(2):
        while case := next_case(state, NOW):
            state = job_reducers.observed(state, case, "observed: a", NOW)
        assert state.incidents == 10
        state = job_reducers.lifted(state)
