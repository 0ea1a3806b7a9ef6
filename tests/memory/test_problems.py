"""Pods that no recovery could tell apart are waited for."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.recovery import Mode, ModeRequest
from rekindle.model.state import JobState
from rekindle.policy import incidents, requests

NOW = datetime(2026, 1, 1, tzinfo=UTC)

JOB = Job(id=JobId("job"), name="gpt", pods=2, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH)
ILL = Fault(episode="ill", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), node="node-1", seen_at=NOW, source="test")


def broken(episode: str) -> Fault:
    return ILL.model_copy(update={"episode": episode, "kind": FaultKind.NODE})


def with_problems(*found: str, before: JobState | None = None) -> JobState:
    return incidents.found_problems(before or JobState.of(JOB), found)


def work_off(state: JobState) -> tuple[JobState, list[incidents.Case]]:
    """Declines and begins whatever there is, until nothing is left to decide."""
    cases: list[incidents.Case] = []
    while case := incidents.next_case(state):
        assert len(cases) < 100
        cases.append(case)
        state = incidents.without(state, case)
        if case.pod_rank is not None:
            state = incidents.judged(state, case.pod_rank, case.plan.refused or "begun")
    return state, cases


def test_a_real_fault_waits_until_the_problems_are_over() -> None:
    """It is declined once, with the first problem, and is one incident with those that joined it."""
    state, cases = work_off(incidents.take_fault(with_problems("twice", "none"), broken("a")))
    assert [case.plan.refused for case in cases] == ["the job cannot be recovered as it is: twice"]
    state, cases = work_off(incidents.take_fault(state, broken("b")))
    assert [[fault.episode for fault in case.faults] for case in cases] == [["b"]]
    state, (case,) = work_off(with_problems(before=state))
    assert ([fault.episode for fault in case.faults], case.plan.modes) == (["a", "b"], (Mode.JOB_RESCHEDULING,))
    assert (state.faults, state.held) == ((), ())


def test_it_is_judged_again_when_the_reason_is_another() -> None:
    """Another first problem is another reason; one more behind it is not."""
    ready = {"capabilities": (), "training_side": "rekindle"}
    state = incidents.take_fault(JobState.of(JOB.model_copy(update=ready)), ILL)
    state, _ = work_off(incidents.take_fault(with_problems("twice", before=state), broken("a")))
    assert work_off(with_problems("twice", "none", before=state))[1] == []
    state, cases = work_off(with_problems("none", before=state))
    assert [case.plan.refused for case in cases] == ["the job cannot be recovered as it is: none"] * 2
    assert state.sub_healthy[0].judged == "the job cannot be recovered as it is: none"


def test_a_policy_of_ignore_comes_before_problems() -> None:
    """Nothing would be done about that sub-health anyway."""
    ignores = JobState.of(JOB.model_copy(update={"sub_health": SubHealthStrategy.IGNORE}))
    _, (case,) = work_off(incidents.take_fault(with_problems("twice", before=ignores), ILL))
    assert case.plan.ignored


@pytest.mark.parametrize("mode", list(Mode))
def test_a_request_is_refused_with_the_first_problem(mode: Mode) -> None:
    """Whether it asks now or waits since before the problem."""
    request = ModeRequest(mode=mode, pod_rank=1, force=True)
    state = with_problems("twice", "none")
    assert requests.refused(state, request) == "the job cannot be recovered as it is: twice"
    _, (case,) = work_off(state.model_copy(update={"requests": (request,)}))
    assert case.plan.refused == "the job cannot be recovered as it is: twice"


FAULTS = st.builds(broken, st.text("abc", min_size=1, max_size=2)).map(lambda fault: ("fault", fault))
PROBLEMS = st.lists(st.sampled_from(["twice", "none"]), max_size=2, unique=True).map(lambda found: ("problems", tuple(found)))


@given(st.lists(st.one_of(FAULTS, PROBLEMS), max_size=30))
def test_whatever_comes_and_goes_no_real_fault_is_lost(news: list[tuple[str, Any]]) -> None:
    """Every one is in an incident that was begun, or still waits; and each piece of news is worked off to its end."""
    state, told, begun = JobState.of(JOB), set(), set()
    for what, thing in news:
        state = incidents.take_fault(state, thing) if what == "fault" else incidents.found_problems(state, thing)
        told |= {thing.episode} if what == "fault" else set()
        state, cases = work_off(state)
        begun |= {fault.episode for case in cases if case.plan.modes for fault in case.faults}
        assert {fault.episode for fault in state.faults} == told - begun
        assert set(state.held) == {fault.episode for fault in state.faults}
        assert bool(state.faults) <= bool(state.problems)


def test_what_waits_is_bounded() -> None:
    """Pods that fail again and again while a problem lasts do not grow the state for ever; the newest stay."""
    state = with_problems("twice")
    for number in range(incidents.KEPT_FAULTS + 5):
        state, _ = work_off(incidents.take_fault(state, broken(str(number))))
    assert len(state.faults) == len(state.held) == incidents.KEPT_FAULTS
    assert state.faults[-1].episode == str(incidents.KEPT_FAULTS + 4)


def test_a_fault_that_waits_is_not_taken_twice() -> None:
    """Also when so many came after it that its episode was forgotten."""
    state, _ = work_off(incidents.take_fault(with_problems("twice"), broken("a")))
    forgotten = state.model_copy(update={"seen": ()})
    assert incidents.take_fault(forgotten, broken("a")) == forgotten
