"""Faults that a rule decides have the grace period of the rule, and a fault that flaps is one fault."""

from datetime import timedelta

from rekindle.model.fault import WATCHER, Decided, Fault, FaultKind, FaultReport, Sighting
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import MENDED, JobState, Pending
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import cases, eligibility
from rekindle.policy.modes.ladder import Plan
from rekindle.policy.placement import avoided_nodes
from tests.memory.test_faults import JOB, NOW
from workflows import faults, given_up, job_reducers

SECOND = timedelta(seconds=1)
HELD = ("pod-0", "pod-1")


def a_fault(kind: FaultKind = FaultKind.SUB_HEALTH, *, settle: float = 30.0, clear: float = 0.0) -> Fault:
    decided = Decided(rule="r", saw="condition GpuXid=True", settle=settle, clear=clear)
    return Fault(id="u/XID79/", kind=kind, pod_ranks=(1,), ranks=(1,), node="node-1", source=WATCHER, decided=decided)


def seen(state: JobState, after: float, *found: Fault, holders: tuple[str, ...] = HELD) -> JobState:
    return job_reducers.sighted(state, Sighting(holders=holders, faults=found), NOW + after * SECOND, restarting=False)


def case(state: JobState, after: float) -> cases.Case | None:
    return cases.next_case(state, NOW + after * SECOND)


STATE = seen(JobState.of(JOB), 0)


def test_a_rule_s_fault_counts_when_it_has_lasted_as_long_as_the_rule_says() -> None:
    """The grace period holds for a sub-health and a real fault alike, and the workflow knows when to look again."""
    for kind in (FaultKind.SUB_HEALTH, FaultKind.NODE, FaultKind.PROCESS):
        state = seen(STATE, 0, a_fault(kind))
        assert cases.next_due(state, NOW) == NOW + 30 * SECOND
        assert (case(state, 29), cases.counting(state, NOW + 29 * SECOND)) == (None, ())
        assert case(state, 30) is not None
        assert case(seen(state, 20), 30) is None, "it healed before"


def test_a_sighting_that_says_the_same_begins_no_new_time() -> None:
    """The grace period goes on, also in another workflow that takes over the state."""
    state = seen(STATE, 0, a_fault())
    for after in range(1, 30):
        state = seen(state, after, a_fault())
    assert case(JobState.model_validate_json(state.model_dump_json()), 30) is not None


def test_a_sub_health_that_is_given_time_holds_up_nothing_else() -> None:
    """A request is carried out during the grace period of a sub-health; during that of a real fault it waits."""
    asked = Pending(id="1", request=ModeRequest(mode=Mode.JOB_RESCHEDULING))
    found = case(job_reducers.requested(seen(STATE, 0, a_fault()), asked), 1)
    assert found is not None
    assert found.request == asked
    assert case(job_reducers.requested(seen(STATE, 0, a_fault(FaultKind.NODE)), asked), 1) is None


def test_a_real_fault_that_is_given_long_holds_up_nothing_else() -> None:
    """Owners give some codes up to a day, for which a request or a drain would wait without notice. It waits only in the last
    minute, since it would be interrupted otherwise."""
    asked = Pending(id="1", request=ModeRequest(mode=Mode.JOB_RESCHEDULING))
    state = job_reducers.requested(seen(STATE, 0, a_fault(FaultKind.NODE, settle=86_400.0)), asked)
    found = case(state, 1)
    assert found is not None
    assert found.request == asked
    assert case(state, 86_399) is None
    assert cases.next_due(state, NOW) == NOW + 86_400 * SECOND


def test_what_is_given_long_is_not_recovered_with_what_is_broken_now() -> None:
    """One that counts within a minute is: both are mended at once."""
    broken = a_fault(FaultKind.PROCESS, settle=0).model_copy(update={"id": "u/XID94/"})
    for settle, kinds in ((3600.0, {FaultKind.PROCESS}), (30.0, {FaultKind.PROCESS, FaultKind.NODE})):
        found = case(seen(STATE, 0, a_fault(FaultKind.NODE, settle=settle), broken), 0)
        assert found is not None
        assert {fault.kind for fault in found.faults} == kinds


def test_what_comes_and_goes_within_the_time_of_its_rule_is_one_fault() -> None:
    """A flapping fault is judged once and its grace period goes on. Nothing is done while the fault is gone."""
    state = seen(STATE, 0, a_fault(clear=60.0))
    state = seen(state, 10)
    assert (case(state, 35), cases.next_due(state, NOW + 35 * SECOND)) == (None, NOW + 70 * SECOND)
    state = seen(state, 40, a_fault(clear=60.0))
    found = case(state, 40)
    assert found is not None
    state = job_reducers.judged(state, found, "ignored: no spare")
    for after in (50, 60, 70, 80):
        state = seen(seen(state, after), after + 5, a_fault(clear=60.0))
        assert case(state, after + 5) is None


def test_what_its_rule_said_while_it_was_not_believed_counts_for_nothing() -> None:
    """A false alarm that a person takes back is believed again of the last nodes for a while. What was judged before is not
    judged once more for that."""
    fault = a_fault(FaultKind.NODE, settle=120.0, clear=300.0)
    doubted = Sighting(holders=HELD, unbelieved=("r",))
    for judged, due in ((False, 370), (True, None)):
        state = seen(STATE, 0, fault)
        state = (
            job_reducers.judged(state, cases.Case(plan=Plan(), summary="", faults=(state.faults[0].fault,)), "no")
            if judged
            else state
        )
        state = job_reducers.sighted(state, doubted, NOW + 60 * SECOND, restarting=False)
        state = seen(state, 250, fault)
        assert case(state, 369) is None
        assert cases.next_due(state, NOW + 250 * SECOND) == (NOW + due * SECOND if due else None)


def test_what_is_gone_for_that_time_is_over() -> None:
    """A fault that comes back later is another fault, also if nothing was reported in between."""
    state = seen(seen(STATE, 0, a_fault(clear=60.0)), 10)
    assert faults.without_over(state, NOW + 69 * SECOND) is state
    assert faults.without_over(state, NOW + 70 * SECOND).faults == ()
    again = seen(state, 80, a_fault(clear=60.0))
    assert [one.fault.accepted_at for one in again.faults] == [NOW + 80 * SECOND]


def test_what_its_pods_have_left_is_over_at_once() -> None:
    """Another pod holds the rank: whatever becomes of the old one's node is no matter."""
    state = seen(STATE, 0, a_fault(clear=60.0))
    assert [one.fault.id for one in seen(state, 10, holders=("pod-0", "pod-2")).faults] == ["holders"]


def test_of_many_that_flap_some_are_held() -> None:
    """The state of a job has its size."""
    many = [a_fault(clear=60.0).model_copy(update={"id": str(number)}) for number in range(100)]
    assert len(seen(seen(STATE, 0, *many), 1).faults) == faults.MOST_HELD


def test_a_device_that_was_mended_without_leaving_it_is_not_mended_again() -> None:
    """A device may show a mended error for days. Another error of it begins a case."""
    state = seen(STATE, 0, a_fault(FaultKind.PROCESS, settle=0))
    found = case(state, 1)
    assert found is not None
    verdict = Verdict(mode=Mode.ONLINE_RETRY, outcome=Outcome.RECOVERED, reason="done", went_on_at=NOW + SECOND)
    incident = Incident(
        number=1, summary="", started_at=NOW, seconds=1, verdict=verdict.outcome, ladder=(verdict,), policy_after=JOB.sub_health
    )
    state = seen(job_reducers.concluded(state, found, incident), 2, a_fault(FaultKind.PROCESS, settle=0))
    assert (case(state, 2), state.faults[0].judged) == (None, "mended in incident 1, and shown still")
    other = a_fault(FaultKind.PROCESS, settle=0).model_copy(update={"id": "u/XID48/"})
    assert case(seen(state, 3, other), 3) is not None


def test_what_was_mended_and_is_shown_still_is_recovered_with_no_other_fault_and_holds_up_nothing() -> None:
    """A fault that was mended and is shown still makes no pod faulty: that pod does not leave with the one of a lost node."""
    fault = a_fault(FaultKind.PROCESS, settle=0)
    shown = seen(STATE, 0, fault)
    mended = shown.with_(faults=tuple(one.model_copy(update={"judged": f"{MENDED} 1, and shown still"}) for one in shown.faults))
    assert eligibility.real_faults(mended) == []
    assert cases.counting(mended, NOW) == ()
    lost = Fault(id="lost", kind=FaultKind.NODE, pod_ranks=(0,), node="node-0", source="test")
    both = job_reducers.reported(mended, FaultReport(faults=(lost,)), NOW + SECOND)
    found = case(both, 1)
    assert found is not None
    assert [one.id for one in found.faults] == ["lost"]
    assert given_up.retried(both, Pending(id="1", request=ModeRequest(mode=Mode.JOB_RESCHEDULING)), NOW).faults[0].judged == ""


def test_a_node_that_a_rule_calls_broken_is_avoided_and_answers_yet() -> None:
    """The pods of such a node end with a grace period, as on any node whose kubelet runs."""
    broken = a_fault(FaultKind.NODE)
    assert (avoided_nodes.to_avoid([broken], JOB.sub_health), avoided_nodes.lost([broken])) == (("node-1",), ())
    lost = broken.model_copy(update={"decided": None})
    assert avoided_nodes.lost([lost]) == ("node-1",)


def test_a_rank_that_passed_to_another_pod_on_a_broken_node_lost_its_processes() -> None:
    """The changed holder of the rank is a fault of its own, which the rule's fault does not explain."""
    state = seen(STATE, 0, a_fault(FaultKind.NODE), holders=("pod-0", "pod-2"))
    assert {one.fault.id for one in state.faults} == {"holders", "u/XID79/"}
