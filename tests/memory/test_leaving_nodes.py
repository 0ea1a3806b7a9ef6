"""State of nodes that are to be left: each pod has its turn, and a person has the last word."""

import pytest

from rekindle.model.fault import Decided, Fault, FaultKind, FaultReport
from rekindle.model.job import Drain
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.modes import cases
from tests.support.incidents import ASKED, JOB, NOW, STATE, a_fault, a_verdict, an_incident, told
from workflows import faults, job_reducers


def leaving(pod_rank: int) -> Fault:
    decided = Decided(rule="plain/cordoned", saw="cordoned", maintenance=True)
    return a_fault(f"c{pod_rank}", FaultKind.SUB_HEALTH, pod_ranks=(pod_rank,), node=f"node-{pod_rank}", decided=decided)


def sick(pod_rank: int) -> Fault:
    """Returns a sub-health that counts after half a minute."""
    decided = Decided(rule="plain/node-problem", saw="condition KubeletUnhealthy=True", settle=30)
    return a_fault(f"s{pod_rank}", FaultKind.SUB_HEALTH, pod_ranks=(pod_rank,), node=f"node-{pod_rank}", decided=decided)


def ended(state: JobState, reason: str, outcome: Outcome = Outcome.IGNORED) -> JobState:
    """A hot switch that was given all that stands, as each is."""
    case = cases.next_case(state, NOW)
    assert case
    verdict = a_verdict(Mode.HOT_SWITCH, outcome, reason=reason)
    met = [one.fault for one in state.faults]
    return job_reducers.concluded(state, case, an_incident(verdict), met)


def judged(state: JobState) -> dict[str, str]:
    return {one.fault.id: one.judged for one in state.faults}


@pytest.mark.parametrize("drain", list(Drain))
@pytest.mark.parametrize("outcome", [Outcome.IGNORED, Outcome.CANCELLED])
def test_a_drain_that_moves_nobody_decides_nothing_about_a_sick_node(drain: Drain, outcome: Outcome) -> None:
    """The sub-health of another pod was given time when the drain was tried: it has its turn, and its own verdict."""
    state = told(JobState.of(JOB.model_copy(update={"drain": drain})), leaving(0), leaving(1), sick(2))
    after = judged(ended(state, "the drain waits: no spare", outcome))
    waits = drain is not Drain.LET_GO and outcome is Outcome.IGNORED
    assert (bool(after["c0"]), bool(after["c1"]), after["s2"]) == (True, waits, "")


def test_what_a_person_cancels_in_a_drain_is_not_tried_again_for_another_pod() -> None:
    """The drain of another pod on the node waits, and is tried again."""
    state = ended(told(STATE, leaving(0), leaving(1)), f"{drain_verdicts.BY_REQUEST}, before training paused", Outcome.CANCELLED)
    for _ in range(3):
        state = drain_verdicts.judged_again(ended(state, "the drain waits: no spare"))
        assert [bool(judged(state)[name]) for name in ("c0", "c1")] == [True, False]


def test_what_a_person_cancels_in_a_drain_stays_so_whoever_comes_back() -> None:
    """A gateway that is replaced, another fault, or other limits of the job do not permit a move of the pod. The cancellation
    stays."""
    state = ended(told(STATE, leaving(0), leaving(1)), f"{drain_verdicts.BY_REQUEST}, before training paused", Outcome.CANCELLED)
    assert judged(faults.rejudged(state))["c0"]
    assert judged(faults.rejudged(state, every=True))["c0"]
    anew = told(job_reducers.reported(state, FaultReport(cleared=("c0",)), NOW), leaving(0))
    assert not judged(anew)["c0"]


def test_each_pod_that_is_to_leave_its_node_has_its_turn() -> None:
    """One that never can would keep the others on their nodes for ever, though a node is free for them."""
    state, tried = told(STATE, leaving(0), sick(1), leaving(1), leaving(2)), []
    for _ in range(6):
        case = cases.next_case(state, NOW)
        assert case
        tried.append(case.pod_rank or 0)
        state = drain_verdicts.judged_again(ended(job_reducers.begun(state, case), "the drain waits: no spare"))
    assert sorted(tried) == [0, 0, 1, 1, 2, 2], tried


@pytest.mark.parametrize("outcome", [Outcome.IGNORED, Outcome.REFUSED, Outcome.CANCELLED])
def test_what_a_person_asks_for_meanwhile_is_no_word_on_a_drain(outcome: Outcome) -> None:
    """The drain is tried again as if there had been no request. A sub-health with a grace period is judged by itself."""
    state = job_reducers.requested(told(STATE, leaving(1), sick(2)), ASKED)
    assert judged(ended(state, "cancelled by request, before training paused", outcome)) == {"c1": "", "s2": ""}
