"""Pods that no recovery could tell apart are waited for."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.attachment import Progress
from rekindle.model.fault import Fault, FaultKind, FaultReport, Sighting
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Pending
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import ladder, requests
from rekindle.policy.modes.cases import Case, next_case
from rekindle.policy.modes.mode_table import LAST
from workflows import job_reducers

NOW = datetime(2026, 1, 1, tzinfo=UTC)

JOB = Job(id=JobId("job"), name="gpt", pods=2, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH)
ILL = Fault(id="ill", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), node="node-1", source="test")
AS_IT_IS = "the job cannot be recovered as it is"


def broken(name: str) -> Fault:
    return ILL.model_copy(update={"id": name, "kind": FaultKind.NODE})


def told(state: JobState, fault: Fault) -> JobState:
    return job_reducers.reported(state, FaultReport(faults=(fault,)), NOW)


def with_problems(*found: str, before: JobState | None = None) -> JobState:
    return job_reducers.sighted(before or JobState.of(JOB), Sighting(problems=found), NOW, restarting=False)


def work_off(state: JobState) -> tuple[JobState, list[Case]]:
    """Declines or recovers whatever there is, until nothing is left to decide."""
    cases: list[Case] = []
    while case := next_case(state, NOW):
        assert len(cases) < 100
        cases.append(case)
        state = recovered(state, case) if case.plan.modes else declined(state, case)
    return state, cases


def declined(state: JobState, case: Case) -> JobState:
    why = case.plan.ignored or case.plan.refused
    return job_reducers.judged(answered(state, case, Outcome.REFUSED), case, why)


def recovered(state: JobState, case: Case) -> JobState:
    ladder = (Verdict(mode=case.mode, outcome=Outcome.RECOVERED, reason="r"),)
    state = job_reducers.begun(state, case)
    incident = Incident(
        number=state.incidents,
        summary="s",
        started_at=NOW,
        seconds=1.0,
        verdict=Outcome.RECOVERED,
        ladder=ladder,
        policy_after=state.policy,
        faults=case.faults,
    )
    return answered(job_reducers.concluded(state, case, incident), case, Outcome.RECOVERED)


def answered(state: JobState, case: Case, outcome: Outcome) -> JobState:
    if not case.request:
        return state
    return job_reducers.answered(state, case.request.id, Verdict(mode=case.mode, outcome=outcome, reason="r"))


def test_a_real_fault_waits_until_the_problems_are_over() -> None:
    """The fault is declined once with the first problem, and again together with one that joins it. Both are one incident
    afterwards."""
    state, cases = work_off(told(with_problems("twice", "none"), broken("a")))
    assert [case.plan.refused for case in cases] == [f"{AS_IT_IS}: twice"]
    state, cases = work_off(told(state, broken("b")))
    assert [[fault.id for fault in case.faults] for case in cases] == [["a", "b"]]
    state, (case,) = work_off(with_problems(before=state))
    assert ([fault.id for fault in case.faults], case.plan.modes) == (["a", "b"], (Mode.JOB_RESCHEDULING,))
    assert state.faults == ()


def test_it_is_judged_again_when_the_reason_is_another() -> None:
    """Another first problem is another reason. One more problem after the first is not."""
    state, _ = work_off(told(told(with_problems("twice"), ILL), broken("a")))
    assert work_off(with_problems("twice", "none", before=state))[1] == []
    state, cases = work_off(with_problems("none", before=state))
    assert [case.plan.refused for case in cases] == [f"{AS_IT_IS}: none"] * 2
    assert [one.judged for one in state.faults] == [f"{AS_IT_IS}: none"] * 2


def test_a_policy_of_ignore_comes_before_problems() -> None:
    """Nothing would be done about that sub-health anyway."""
    ignores = JobState.of(JOB.model_copy(update={"sub_health": SubHealthStrategy.IGNORE}))
    _, (case,) = work_off(told(with_problems("twice", before=ignores), ILL))
    assert case.plan.ignored


@pytest.mark.parametrize("mode", list(Mode))
def test_a_request_is_refused_with_the_first_problem(mode: Mode) -> None:
    """A request is refused when it comes, and so is one that was waiting before the problem."""
    request = ModeRequest(mode=mode, pod_rank=1, force=True)
    state = with_problems("twice", "none")
    assert requests.refused(state, request) == f"{AS_IT_IS}: twice"
    _, (case,) = work_off(job_reducers.requested(state, Pending(id="r", request=request)))
    assert case.plan.refused == f"{AS_IT_IS}: twice"


FAULTS = st.builds(broken, st.text("abc", min_size=1, max_size=2)).map(lambda fault: ("fault", fault))
PROBLEMS = st.lists(st.sampled_from(["twice", "none"]), max_size=2, unique=True).map(lambda found: ("problems", tuple(found)))


@given(st.lists(st.one_of(FAULTS, PROBLEMS), max_size=30))
def test_whatever_comes_and_goes_no_real_fault_is_lost(news: list[tuple[str, Any]]) -> None:
    """Each is part of an incident as soon as there are no problems, and stands until then; all news is worked off to its end."""
    state = JobState.of(JOB)
    waiting: set[str] = set()
    for what, thing in news:
        state = told(state, thing) if what == "fault" else with_problems(*thing, before=state)
        waiting |= {thing.id} if what == "fault" else set()
        state, cases = work_off(state)
        begun = {fault.id for case in cases if case.plan.modes for fault in case.faults}
        assert begun == (set() if state.problems else waiting)
        waiting -= begun
        assert {one.fault.id for one in state.faults} == waiting
        assert all(one.judged for one in state.faults)


COUNTED = "the training side has 18 ranks, but 2 pods with 2 ranks each have 4: set annotation rekindle.io/ranks-per-pod to 9"


def trains(ranks: int, before: JobState | None = None) -> JobState:
    progress = Progress(incarnation="life", step=1, ranks=ranks)
    return job_reducers.progressed(before or JobState.of(JOB), progress, NOW, recovering=False)


def test_ranks_that_the_training_side_counts_otherwise_are_a_problem() -> None:
    """The wrong pod would be replaced, and the wrong ranks be announced. A restart of all pods has no such risk."""
    state = trains(18)
    assert state.problems == (COUNTED,)
    assert with_problems("no rank", before=state).problems == (COUNTED, "no rank")
    assert ladder.blocked(state, Mode.HOT_SWITCH) == f"{AS_IT_IS}: {COUNTED}"
    assert ladder.blocked(state, LAST.mode) == ""


def test_a_count_that_is_no_whole_number_of_pods_has_no_advice() -> None:
    """The user has to find out which of the two counts is wrong."""
    assert trains(5).problems == ("the training side has 5 ranks, but 2 pods with 2 ranks each have 4",)


@pytest.mark.parametrize("ranks", [0, 4])
def test_a_manager_that_counts_alike_or_says_nothing_is_no_problem(ranks: int) -> None:
    """One of an earlier version says nothing. A problem of before is over, and others stay."""
    assert trains(ranks).problems == ()
    assert trains(ranks, before=with_problems("no rank", before=trains(18))).problems == ("no rank",)
