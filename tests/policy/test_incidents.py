"""The bookkeeping of incidents: no real fault is lost, known episodes change nothing, refused ones are judged again."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.keys import DOWNGRADED
from rekindle.model.recovery import Incident, Mode, ModeRequest, Outcome, PodRef, Switched, Verdict
from rekindle.model.state import KEPT_INCIDENTS, JobState
from rekindle.policy import incidents

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=3, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH)
STATE = JobState.of(JOB)


def a_fault(episode: str = "e", kind: FaultKind = FaultKind.NODE, seconds: int = 0, **fields: object) -> Fault:
    values = {"episode": episode, "kind": kind, "seen_at": NOW + timedelta(seconds=seconds), "source": "test", **fields}
    return Fault.model_validate(values)


def an_incident(*verdicts: Verdict, at: datetime = NOW, number: int = 1) -> Incident:
    return Incident(
        number=number,
        summary="s",
        started_at=at,
        seconds=1.0,
        verdict=verdicts[-1].outcome,
        ladder=verdicts,
        policy_after=SubHealthStrategy.HOT_SWITCH,
    )


def a_verdict(mode: Mode = Mode.JOB_RESCHEDULING, outcome: Outcome = Outcome.RECOVERED, **fields: object) -> Verdict:
    return Verdict.model_validate({"mode": mode, "outcome": outcome, "reason": "r", **fields})


faults = st.builds(
    a_fault,
    episode=st.text("abcd", min_size=1, max_size=2),
    kind=st.sampled_from(list(FaultKind)),
    seconds=st.integers(0, 9),
    pod_ranks=st.lists(st.integers(0, 2), max_size=3, unique=True).map(tuple),
)


@given(st.lists(faults, max_size=30))
def test_no_fault_is_lost_and_none_is_taken_twice(taken: list[Fault]) -> None:
    """Every first fault of an episode waits, in the order of arrival: real ones for an incident, sub-healths by pod."""
    state = STATE
    for fault in taken:
        state = incidents.take_fault(state, fault)
    first = list({fault.episode: fault for fault in reversed(taken)}.values())[::-1]
    by_arrival = sorted(first, key=taken.index)
    real = [fault for fault in by_arrival if fault.kind is not FaultKind.SUB_HEALTH]
    ill = [(rank, fault) for fault in by_arrival if fault.kind is FaultKind.SUB_HEALTH for rank in fault.pod_ranks]
    assert list(state.faults) == real
    assert [(pod.pod_rank, pod.fault) for pod in state.sub_healthy] == ill


@given(st.lists(faults, min_size=1, max_size=20), st.data())
def test_a_known_episode_changes_nothing(taken: list[Fault], data: st.DataObject) -> None:
    """Repeating any fault that was taken, in whatever form, leaves the state as it is."""
    state = STATE
    for fault in taken:
        state = incidents.take_fault(state, fault)
    again = data.draw(st.sampled_from(taken)).model_copy(update={"message": "once more"})
    assert incidents.take_fault(state, again) == state


@given(st.lists(faults, max_size=12))
def test_every_fault_comes_to_a_case_or_a_judgement(taken: list[Fault]) -> None:
    """Working off case after case ends, with no real fault waiting and no sub-health unjudged; real faults come first."""
    state = STATE
    for fault in taken:
        state = incidents.take_fault(state, fault)
    for _ in range(100):
        case = incidents.next_case(state)
        if case is None:
            break
        assert not state.faults or case.faults == state.faults
        state = incidents.without(state, case)
        if case.pod_rank is not None:
            state = incidents.judged(state, case.pod_rank, "refused: whatever")
    assert incidents.next_case(state) is None
    assert state.faults == ()
    assert all(pod.judged for pod in state.sub_healthy)


@given(st.lists(faults, max_size=20), st.integers(0, 9))
def test_a_restart_settles_what_was_seen_before_it_and_nothing_else(taken: list[Fault], seconds: int) -> None:
    """Real faults that were seen after the pods started anew wait for the next incident."""
    state = STATE
    for fault in taken:
        state = incidents.take_fault(state, fault)
    restarted = NOW + timedelta(seconds=seconds)
    after = incidents.concluded(state, an_incident(a_verdict(restarted_at=restarted)))
    assert after.faults == tuple(fault for fault in state.faults if fault.seen_at >= restarted)
    assert after.sub_healthy == ()


def test_refused_sub_healths_are_judged_again_at_a_real_fault() -> None:
    """The fault may have changed what was in the way."""
    state = incidents.take_fault(STATE, a_fault("ill", FaultKind.SUB_HEALTH, pod_ranks=(1,)))
    state = incidents.judged(state, 1, "refused: no step yet")
    assert incidents.next_case(state) is None
    state = incidents.take_fault(state, a_fault("broken"))
    assert state.sub_healthy[0].judged == ""


def test_a_second_episode_of_a_pod_outlives_the_end_of_the_first() -> None:
    """Two things wrong with one node are two episodes: clearing one leaves the other."""
    state = incidents.take_fault(STATE, a_fault("one", FaultKind.SUB_HEALTH, pod_ranks=(1,)))
    state = incidents.take_fault(state, a_fault("two", FaultKind.SUB_HEALTH, pod_ranks=(1,)))
    state = incidents.clear_episode(state, "one")
    assert [pod.fault.episode for pod in state.sub_healthy] == ["two"]
    assert incidents.clear_episode(state, "never heard of") == state


def test_a_pod_that_moved_is_not_sub_healthy_any_more() -> None:
    """A hot switch settles all episodes of its pod rank, and those of no other."""
    state = incidents.take_fault(STATE, a_fault("ill", FaultKind.SUB_HEALTH, pod_ranks=(0, 1)))
    moved = Switched(pod_rank=1, before=PodRef(name="a", uid="1"), after=PodRef(name="b", uid="2"))
    after = incidents.concluded(state, an_incident(a_verdict(Mode.HOT_SWITCH, switched=(moved,))))
    assert [pod.pod_rank for pod in after.sub_healthy] == [0]


@pytest.mark.parametrize("late", [False, True], ids=["while it ran", "seen late"])
def test_the_end_of_a_removed_pod_is_no_fault(*, late: bool) -> None:
    """A pod that a recovery deleted may be reported while it runs or afterwards; neither starts an incident."""
    gone = a_fault("gone", FaultKind.POD, pod_uid="uid-1")
    done = an_incident(a_verdict(Mode.HOT_SWITCH, removed_pods=("uid-1",)))
    if late:
        state = incidents.take_fault(incidents.concluded(STATE, done), gone)
    else:
        state = incidents.concluded(incidents.take_fault(STATE, gone), done)
    assert state.faults == ()


def test_the_end_of_a_backup_pod_is_no_fault() -> None:
    """It is the affair of the hot switch that made it."""
    assert incidents.take_fault(STATE, a_fault("b", FaultKind.POD, pod_uid="u", backup=True)) == STATE


@given(st.integers(0, 12), st.integers(0, 120))
def test_five_restarts_an_hour_are_enough(restarts: int, minutes: int) -> None:
    """The sixth within an hour is one too many; older ones do not count, and neither do incidents without a restart."""
    state = STATE
    for number in range(restarts):
        state = incidents.concluded(state, an_incident(a_verdict(restarted_at=NOW), number=number))
        state = incidents.concluded(state, an_incident(a_verdict(Mode.HOT_SWITCH), number=number))
    assert incidents.may_restart(state, NOW + timedelta(minutes=minutes)) is (restarts < 5 or minutes >= 60)


def test_the_history_is_bounded() -> None:
    """The last incidents are kept, with few of their ranks: the state is carried from run to run."""
    state = STATE
    for number in range(KEPT_INCIDENTS + 5):
        many = a_fault(f"{number}", FaultKind.PROCESS, ranks=tuple(range(1000)))
        incident = an_incident(a_verdict(), number=number).model_copy(update={"faults": (many,)})
        state = incidents.concluded(state, incident)
    assert [incident.number for incident in state.history] == list(range(5, KEPT_INCIDENTS + 5))
    assert all(len(fault.ranks) == incidents.KEPT_RANKS for incident in state.history for fault in incident.faults)


def test_a_verdict_lowers_the_policy_once() -> None:
    """The first reason stays; a policy that is `ignore` by its owner is not downgraded."""
    lowers = a_verdict(Mode.HOT_SWITCH, Outcome.IGNORED, policy_after=SubHealthStrategy.IGNORE)
    once = incidents.downgraded(STATE, lowers, NOW)
    assert once.policy is SubHealthStrategy.IGNORE
    assert once.downgrade
    assert once.downgrade.before is SubHealthStrategy.HOT_SWITCH
    assert incidents.downgraded(once, lowers.model_copy(update={"reason": "another"}), NOW) == once
    owners = JobState.of(JOB.model_copy(update={"sub_health": SubHealthStrategy.IGNORE}))
    assert incidents.downgraded(owners, lowers, NOW) == owners
    assert incidents.downgraded(STATE, a_verdict(), NOW) == STATE


def test_our_own_label_is_not_the_owners_policy() -> None:
    """A job registered again with the label of its downgrade keeps the owner's policy for the day when it is lifted, and on that
    day, before the label is taken back."""
    lowered = incidents.downgraded(STATE, a_verdict(policy_after=SubHealthStrategy.IGNORE), NOW)
    labelled = JOB.model_copy(update={"sub_health": SubHealthStrategy.IGNORE, "annotations": {DOWNGRADED: "r"}})
    again = incidents.registered(lowered, labelled)
    assert again.policy is SubHealthStrategy.IGNORE
    lifted = again.model_copy(update={"downgrade": None})
    assert lifted.policy is SubHealthStrategy.HOT_SWITCH
    assert incidents.registered(lifted, labelled).policy is SubHealthStrategy.HOT_SWITCH
    assert incidents.registered(STATE, JOB) == STATE


def test_a_request_is_judged_again_when_its_turn_comes() -> None:
    """What came before it may have made it pointless: a pod that is healthy by then is not moved."""
    request = ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=1)
    state = STATE.model_copy(update={"requests": (request,)})
    case = incidents.next_case(state)
    assert case
    assert "pod rank 1 is healthy" in case.plan.refused
    assert incidents.without(state, case).requests == ()
