"""State that a job's workflow remembers: incidents, requests, its policy, and what an earlier workflow of the job knew."""

from datetime import datetime, timedelta
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.ids import incident_of, is_recovery_of, recovery_workflow, runs_mode
from rekindle.model.attachment import Attachment
from rekindle.model.fault import HOLDERS, TRAINING_SIDE, WATCHER, Fault, FaultKind, FaultReport, FaultyRanks, Sighting
from rekindle.model.incident import ModeRequest
from rekindle.model.job import ManagerLost, SubHealthStrategy
from rekindle.model.keys import DOWNGRADED
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Phase, PodRef, Switched
from rekindle.model.state import KEPT_ANSWERS, KEPT_INCIDENTS, JobState, JobStateChanges, Pending, Registration, Remembered
from rekindle.model.training_side import TrainingSide
from rekindle.model.verdict import Training, Verdict, VerdictChanges
from rekindle.policy.modes import cases, ladder
from rekindle.policy.modes.cases import Case
from rekindle.policy.modes.eligibility import MOST_REPAIRS
from rekindle.policy.modes.mode_table import MODES
from tests.support.incidents import ASKED, JOB, NOW, STATE, a_fault, a_verdict, an_incident, concluded, told
from workflows import attachments, faults, job_reducers


def anything() -> Case:
    case = cases.next_case(told(STATE, a_fault("anything")), NOW)
    assert case
    return case


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_restart_settles_what_was_told_before_it_and_nothing_else(seconds: int, restarted: int) -> None:
    """A fault that was reported after the pods restarted waits for the next incident."""
    state = told(STATE, a_fault("first"))
    moment = NOW + timedelta(seconds=seconds)
    late = told(state, a_fault("second"), at=moment)
    case = cases.next_case(state, NOW)
    assert case
    verdict = a_verdict(restarted_at=NOW + timedelta(seconds=restarted))
    after = job_reducers.concluded(late, case, an_incident(verdict))
    assert [one.fault.id for one in after.faults] == (["second"] if seconds >= restarted else [])


def test_what_is_told_behind_a_repair_stands_without_the_ranks_that_it_mended() -> None:
    """The mended ranks are removed also if several reports name them, and if a mended rank died again."""
    seconds = [NOW + timedelta(seconds=number) for number in range(5)]

    def crash(*ranks: int) -> Fault:
        return a_fault("processes", FaultKind.PROCESS, ranks=ranks, source=TRAINING_SIDE, details=(FaultyRanks(ranks=ranks),))

    def tell(state: JobState, at: datetime, *ranks: int) -> JobState:
        return job_reducers.reported(state, FaultReport(faults=(crash(*ranks),)), at, recovering=True)

    first = told(STATE, crash(0, 2, 3))
    state = tell(tell(tell(first, seconds[1], 4), seconds[3], 1), seconds[4], 2)
    case = cases.next_case(first, NOW)
    assert case
    (left,) = job_reducers.concluded(state, case, an_incident(a_verdict(Mode.PROCESS_RESCHEDULING, went_on_at=seconds[2]))).faults
    assert (left.fault.ranks, left.fault.details) == ((1, 2), (FaultyRanks(ranks=(1, 2)),))


def test_a_training_side_that_says_much_is_remembered_in_few_words() -> None:
    """Rank by rank, of a job of thousands: no rank is forgotten, and the state stays small."""
    state = told(STATE, a_fault("processes", FaultKind.PROCESS, ranks=(0,), source=TRAINING_SIDE))
    for rank in range(1, 100):
        fault = a_fault("processes", FaultKind.PROCESS, ranks=(rank,), source=TRAINING_SIDE)
        state = job_reducers.reported(state, FaultReport(faults=(fault,)), NOW + timedelta(seconds=rank), recovering=True)
    (one,) = state.faults
    assert len(one.told) == faults.MOST_TOLD
    assert sorted(rank for words in one.told for rank in words.ranks) == list(range(100))


def test_a_report_of_the_old_stream_is_of_the_old_life() -> None:
    """A report that is stored late describes processes that are gone, and does not survive the restart."""
    old = a_fault("processes", FaultKind.PROCESS, ranks=(1,), session="old")
    here = Attachment(queue="q", session="new", since=NOW)
    state = told(job_reducers.attached(STATE, here, NOW, restarting=False), a_fault("lost"))
    state = told(state, old, at=NOW + timedelta(minutes=1))
    case = cases.next_case(told(STATE, a_fault("lost")), NOW)
    assert case
    assert job_reducers.concluded(state, case, an_incident(a_verdict(restarted_at=NOW))).faults == ()


def test_a_report_of_a_stream_that_has_ended_is_of_the_old_life_while_no_stream_is_open() -> None:
    """The new life's stream breaks as the restart ends. In a workflow that was just registered nothing is known of streams."""
    old, new = (Attachment(queue="q", session=session, since=NOW) for session in ("old", "new"))
    state = attachments.detached(job_reducers.attached(told(STATE, a_fault("lost")), old, NOW, restarting=False), "old")
    case = cases.next_case(state, NOW)
    assert case
    state = told(state, a_fault("processes", FaultKind.PROCESS, ranks=(1,), session="old"), at=NOW + timedelta(minutes=1))
    state = attachments.detached(job_reducers.attached(state, new, NOW, restarting=True), "new")
    restarted = an_incident(a_verdict(restarted_at=NOW + timedelta(seconds=1)))
    assert job_reducers.concluded(state, case, restarted).faults == ()
    nothing_known = state.with_(replaced=(), detached=())
    assert [one.fault.session for one in job_reducers.concluded(nothing_known, case, restarted).faults] == ["old"]


def test_what_the_old_life_tells_when_the_restart_is_over_is_no_news() -> None:
    """A report may be on its way for longer than the restart took; the life that now runs is listened to."""
    old = Attachment(queue="gateway/a", session="old", since=NOW)
    state = job_reducers.attached(STATE, old, NOW, restarting=False)
    state = job_reducers.attached(state, old.model_copy(update={"session": "new"}), NOW, restarting=True)
    state = concluded(told(state, a_fault("crash")), a_verdict(restarted_at=NOW + timedelta(seconds=1)))
    assert told(state, a_fault("late", FaultKind.PROCESS, session="old")).faults == ()
    assert told(state, a_fault("fresh", FaultKind.PROCESS, session="new")).faults


def test_a_restart_that_was_given_up_ended_the_faulty_processes_too() -> None:
    """The pods of such a restart may find a node hours later. A report of the life before must not shorten the time of a node
    that is not ready for a moment. A fault of a node, or of the new life, stands."""
    state = told(STATE, a_fault("ranks", FaultKind.PROCESS, ranks=(1,), session="old"), a_fault("switch is down"))
    case = cases.next_case(state, NOW)
    assert case
    state = told(state, a_fault("new ranks", FaultKind.PROCESS, ranks=(2,), session="new"), at=NOW + timedelta(seconds=9))
    given_up = a_verdict(outcome=Outcome.GIVEN_UP, restarted_at=NOW + timedelta(seconds=1))
    after = job_reducers.concluded(state, case, an_incident(given_up))
    assert {one.fault.id: one.judged for one in after.faults} == {"switch is down": "given_up: r", "new ranks": ""}


def test_pods_that_could_not_be_deleted_are_known_until_a_restart() -> None:
    """The pods are also known to a later workflow of the job."""
    old = PodRef(name="gpt-1", uid="old")
    state = concluded(told(STATE, a_fault("ill")), a_verdict(Mode.HOT_SWITCH, left_behind=(old,)))
    assert job_reducers.to_remember(state, "").left_behind == (old,)
    assert concluded(told(state, a_fault("crash")), a_verdict(restarted_at=NOW)).left_behind == ()


def test_what_the_recovery_of_a_lost_workflow_did_is_taken_over() -> None:
    """The lost recovery restarted the job: faults from before it are over, each rank needs a holder, and it counts as a
    restart."""
    state = told(STATE.with_(lost_recovery="recovery/x"), a_fault("crash", FaultKind.PROCESS))
    state = job_reducers.settled(state, (a_verdict(restarted_at=NOW + timedelta(seconds=1)),), NOW + timedelta(seconds=2))
    assert (state.faults, state.lost_recovery, len(state.restarts)) == ((), "", 1)
    assert state.holders == ("*", "*", "*")


def test_each_mode_of_a_lost_incident_is_taken_over() -> None:
    """The first mode has left a pod behind, and the second one has recovered the job. Both are in the history."""
    left = PodRef(name="gpt-1-hot", uid="new")
    first = a_verdict(Mode.PROCESS_RESCHEDULING, Outcome.ESCALATE, left_behind=(left,))
    state = STATE.with_(lost_recovery="recovery/x")
    state = job_reducers.settled(state, (first, a_verdict(Mode.ELASTIC_TRAINING)), NOW)
    assert state.left_behind == (left,)
    assert [verdict.mode for verdict in state.history[-1].ladder] == [Mode.PROCESS_RESCHEDULING, Mode.ELASTIC_TRAINING]
    assert state.history[-1].verdict is Outcome.RECOVERED


def test_a_switch_of_a_lost_workflow_takes_no_rank_from_who_was_seen_since() -> None:
    """The job was restarted between the end of the switch and the moment in which its verdict was found."""
    moved = Switched(pod_rank=1, before=PodRef(name="old", uid="bbbb"), after=PodRef(name="new", uid="dddd"))
    verdict = a_verdict(Mode.HOT_SWITCH, switched=(moved,))
    seen_since = STATE.with_(lost_recovery="recovery/x", holders=("eeee", "ffff", "gggg"))
    assert job_reducers.settled(seen_since, (verdict,), NOW).holders == ("eeee", "ffff", "gggg")
    still_held = seen_since.with_(holders=("aaaa", "bbbb", "cccc"))
    assert job_reducers.settled(still_held, (verdict,), NOW).holders == ("aaaa", "dddd", "cccc")


def test_a_switch_of_a_rank_that_had_passed_to_another_pod_ends_that_fault() -> None:
    """A switch was given up and the job trained on. A switch of the pod that holds the rank now settles the fault of the
    holder."""
    held, passed, moved = (Sighting(holders=("aaaa", uid, "cccc")) for uid in ("bbbb", "xxxx", "dddd"))
    state = job_reducers.sighted(job_reducers.sighted(STATE, held, NOW, restarting=False), passed, NOW, restarting=False)
    state = concluded(state, a_verdict(outcome=Outcome.GIVEN_UP))
    assert [one.fault.id for one in state.faults] == [HOLDERS]
    switched = Switched(pod_rank=1, before=PodRef(name="old", uid="xxxx"), after=PodRef(name="new", uid="dddd"))
    state = job_reducers.concluded(
        state, Case(plan=ladder.Plan(), summary="s"), an_incident(a_verdict(Mode.HOT_SWITCH, switched=(switched,)))
    )
    after = job_reducers.sighted(state, moved, NOW, restarting=False)
    assert (after.holders, after.faults) == (("aaaa", "dddd", "cccc"), ())


def test_a_fault_that_came_while_a_recovery_failed_is_not_judged_with_it() -> None:
    """Given up is what the incident was about; what is new begins another one."""
    state = told(STATE, a_fault("first"))
    case = cases.next_case(state, NOW)
    assert case
    state = told(state, a_fault("second"))
    state = job_reducers.concluded(state, case, an_incident(a_verdict(outcome=Outcome.GIVEN_UP)))
    assert [(one.fault.id, one.judged) for one in state.faults] == [("first", "given_up: r"), ("second", "")]
    assert cases.next_case(state, NOW)


def test_refused_sub_healths_are_judged_again_at_a_real_fault() -> None:
    """The fault may have changed what was in the way."""
    state = told(STATE, a_fault("ill", FaultKind.SUB_HEALTH, pod_ranks=(1,)))
    case = cases.next_case(state, NOW)
    assert case
    state = job_reducers.judged(state, case, "refused: no step yet")
    assert cases.next_case(state, NOW) is None
    state = told(state, a_fault("broken"))
    assert [one.judged for one in state.faults] == ["", ""]


def test_a_pod_that_was_replaced_is_not_switched_again_for_want_of_a_look() -> None:
    """The cluster may not answer for minutes after a switch. The sub-health of the replaced pod is then no case any more, while
    that of another pod on the node is."""
    ill = a_fault("ill/0/1", FaultKind.SUB_HEALTH, pod_ranks=(1,), pod_uids=("old",)).model_copy(update={"source": WATCHER})
    other = ill.model_copy(update={"id": "ill/0/2", "pod_ranks": (2,), "pod_uids": ("other",)})
    state = job_reducers.sighted(STATE, Sighting(holders=("a", "old", "other"), faults=(ill, other)), NOW, restarting=False)
    moved = Switched(pod_rank=1, before=PodRef(name="gpt-1", uid="old"), after=PodRef(name="gpt-1-hot", uid="new"))
    after = concluded(state, a_verdict(Mode.HOT_SWITCH, switched=(moved,)))
    assert [one.fault.id for one in after.faults] == ["ill/0/2"]


def test_a_pod_that_moved_is_not_sub_healthy_any_more() -> None:
    """A hot switch settles all sub-healths of its pod rank, and those of no other; the backup holds the rank."""
    state = told(
        STATE, a_fault("ill", FaultKind.SUB_HEALTH, pod_ranks=(0, 1)), a_fault("worse", FaultKind.SUB_HEALTH, pod_ranks=(1,))
    )
    moved = Switched(pod_rank=1, before=PodRef(name="a", uid="1"), after=PodRef(name="b", uid="0123456789"))
    state = state.with_(holders=("a", "1", "c"))
    after = concluded(state, a_verdict(Mode.HOT_SWITCH, switched=(moved,)))
    assert [one.fault.pod_ranks for one in after.faults] == []
    assert after.holders == ("a", "01234567", "c")


def test_recoveries_of_processes_are_counted() -> None:
    """Recoveries of processes that ended well are counted, whatever the mode. A job remembers as many as it may have within an
    hour."""
    state = told(STATE, a_fault())
    for number in range(60):
        mode = Mode.IN_PLACE if number % 2 else Mode.PROCESS_RESCHEDULING
        state = concluded(told(state, a_fault()), a_verdict(mode, went_on_at=NOW), number=number)
        state = concluded(told(state, a_fault()), a_verdict(mode, Outcome.GIVEN_UP), number=number).with_(faults=())
    assert state.repairs == (NOW,) * MOST_REPAIRS


def test_a_step_that_a_failed_operation_had_repeated_is_no_recovery_of_processes() -> None:
    """Nothing was faulty."""
    failed = a_verdict(Mode.LINK_SWITCH, Outcome.ESCALATE, training=Training.WHOLE)
    after = concluded(told(STATE, a_fault()), failed, a_verdict(Mode.ONLINE_RETRY, went_on_at=NOW))
    assert after.repairs == ()


@given(st.integers(0, 12), st.integers(0, 120), st.integers(1, 60))
def test_five_restarts_an_hour_are_enough(restarts: int, minutes: int, within: int) -> None:
    """The sixth within the limit of the job is one too many; older ones and incidents without a restart do not count."""
    limits = Limits(bounds_within=timedelta(minutes=within))
    state, case = STATE.with_(job=STATE.job.model_copy(update={"limits": limits})), anything()
    for number in range(restarts):
        state = job_reducers.concluded(state, case, an_incident(a_verdict(restarted_at=NOW), number=number))
        state = job_reducers.concluded(state, case, an_incident(a_verdict(Mode.HOT_SWITCH), number=number))
    now = NOW + timedelta(minutes=minutes)
    assert (not cases.no_restart(state, now, requested=False)) is (restarts < 5 or minutes >= within)
    assert not cases.no_restart(state, now, requested=True)


def test_the_history_is_bounded() -> None:
    """The last incidents are kept, the latest with phases and few of their ranks: the state is carried from run to run."""
    state, case = STATE, anything()
    for number in range(KEPT_INCIDENTS + 5):
        many = a_fault(f"{number}", FaultKind.PROCESS, ranks=tuple(range(1000)))
        verdict = a_verdict(phases=(Phase(name="all pods stop", seconds=1.0),))
        state = job_reducers.concluded(state, case, an_incident(verdict, number=number, about=(many,)))
    assert [incident.number for incident in state.history] == list(range(5, KEPT_INCIDENTS + 5))
    *older, first, _second, _last = state.history
    assert [len(fault.ranks) for fault in first.faults] == [faults.KEPT_RANKS]
    assert first.ladder[0].phases
    assert not any(incident.faults or incident.ladder[0].phases for incident in older)


def test_a_verdict_lowers_the_policy_once() -> None:
    """The first reason stays; a policy of its owner's that is not `hotSwitch` is not ours to lower."""
    lowers = a_verdict(Mode.HOT_SWITCH, Outcome.IGNORED, policy_after=SubHealthStrategy.IGNORE)
    once = job_reducers.downgraded(STATE, lowers, NOW)
    assert once.policy is SubHealthStrategy.IGNORE
    assert once.downgrade
    assert once.downgrade.before is SubHealthStrategy.HOT_SWITCH
    assert job_reducers.downgraded(once, lowers.with_(reason="another"), NOW) == once
    for word in (SubHealthStrategy.IGNORE, SubHealthStrategy.GRACE_EXIT):
        owners = JobState.of(JOB.model_copy(update={"sub_health": word}))
        assert job_reducers.downgraded(owners, lowers, NOW) == owners
    assert job_reducers.downgraded(STATE, a_verdict(), NOW) == STATE


LABELLED = JOB.model_copy(update={"sub_health": SubHealthStrategy.IGNORE, "annotations": {DOWNGRADED: "r"}})


def test_our_own_label_is_not_the_owners_policy() -> None:
    """A job registered again with the label of its downgrade keeps the owner's policy for the day when it is lifted, and on that
    day, before the label is taken back."""
    known = job_reducers.registered(STATE, Registration(job=JOB), NOW)
    lowered = job_reducers.downgraded(known, a_verdict(policy_after=SubHealthStrategy.IGNORE), NOW)
    again = job_reducers.registered(lowered, Registration(job=LABELLED), NOW)
    assert again.policy is SubHealthStrategy.IGNORE
    lifted = job_reducers.lifted(again)
    assert lifted.policy is SubHealthStrategy.HOT_SWITCH
    assert job_reducers.registered(lifted, Registration(job=LABELLED), NOW).policy is SubHealthStrategy.HOT_SWITCH


def test_an_owner_who_writes_another_policy_into_the_label_means_it() -> None:
    """Also while a downgrade stands: it holds when that is lifted."""
    lowered = job_reducers.downgraded(STATE, a_verdict(policy_after=SubHealthStrategy.IGNORE), NOW)
    changed = LABELLED.model_copy(update={"sub_health": SubHealthStrategy.FORCE_EXIT})
    state = job_reducers.registered(lowered, Registration(job=changed), NOW)
    assert (state.policy, job_reducers.lifted(state).policy) == (SubHealthStrategy.IGNORE, SubHealthStrategy.FORCE_EXIT)


def test_a_workflow_that_was_lost_is_rebuilt_from_the_jobs_object() -> None:
    """Downgrade with its reason and the policy before it, incidents and restarts counted on, and the recovery that ran."""
    runs = recovery_workflow(JOB, 7, Mode.HOT_SWITCH)
    knew = Remembered(job=JOB.id, incidents=7, recovery=runs, downgrade="no spare", restarts=(NOW,))
    state = job_reducers.registered(JobState.of(LABELLED), Registration(job=LABELLED, remembered=knew), NOW)
    assert (state.incidents, state.restarts, state.lost_recovery) == (7, (NOW,), runs)
    assert state.downgrade
    assert (state.downgrade.reason, job_reducers.lifted(state).policy) == ("no spare", SubHealthStrategy.HOT_SWITCH)
    assert job_reducers.to_remember(state, runs) == knew
    case = cases.next_case(state, NOW)
    assert case
    assert (case.plan.modes, job_reducers.begun(state, case).lost_recovery) == ((Mode.JOB_RESCHEDULING,), "")


def test_what_stands_on_the_object_is_read_once() -> None:
    """A workflow that runs knows better than the object."""
    known = job_reducers.registered(STATE, Registration(job=JOB), NOW)
    knew = Remembered(incidents=7, recovery="recovery/x", downgrade="no spare")
    assert job_reducers.registered(known, Registration(job=JOB, remembered=knew), NOW) == known


def test_a_request_is_judged_again_when_its_turn_comes() -> None:
    """A request that earlier events made pointless is refused: a pod that is healthy by then is not moved."""
    asked = Pending(id="r1", request=ModeRequest(mode=Mode.HOT_SWITCH, pod_rank=1))
    case = cases.next_case(job_reducers.requested(STATE, asked), NOW)
    assert case
    assert "pod rank 1 is healthy" in case.plan.refused


def test_an_answer_is_remembered_and_nothing_waits_any_more() -> None:
    """The last answers stay, each under the id of its request."""
    state = job_reducers.answered(job_reducers.requested(STATE, ASKED), "r1", a_verdict(reason="mine"))
    assert state.request is None
    for number in range(KEPT_ANSWERS + 5):
        state = job_reducers.answered(state, f"n{number}", a_verdict())
    assert job_reducers.answer_of(state, "r1") is None
    assert job_reducers.answer_of(state, f"n{KEPT_ANSWERS + 4}")
    assert len(state.answers) == KEPT_ANSWERS


@pytest.mark.parametrize("came_first", [True, False], ids=["waits", "has not arrived"])
def test_a_request_that_is_withdrawn_never_begins(*, came_first: bool) -> None:
    """The request does not begin either when its withdrawal arrives first."""
    state = job_reducers.withdrawn(job_reducers.requested(STATE, ASKED) if came_first else STATE, "r1")
    answer = job_reducers.answer_of(state, "r1")
    assert state.request is None
    assert answer
    assert answer.outcome is Outcome.CANCELLED


def test_changes_name_every_field() -> None:
    """The typed changes of a state are its fields, with their types; those of a verdict are among its fields."""
    assert get_type_hints(JobStateChanges) == {
        name: hint for name, hint in get_type_hints(JobState).items() if name in JobState.model_fields
    }
    hints = get_type_hints(Verdict)
    assert all(hints[name] == hint for name, hint in get_type_hints(VerdictChanges).items())


def test_a_manager_in_a_pod_of_its_own_is_seen_to_be_another_process() -> None:
    """A new manager of MindIO is a lost manager before it attaches, since it knows no rank. A restart of all pods, and a manager
    of ours, are none."""
    mindio = JobState.of(JOB.model_copy(update={"training_side": TrainingSide.MINDIO, "manager_lost": ManagerLost.RESTART}))
    first = job_reducers.sighted(mindio, Sighting(manager="uid-1/8:00"), NOW, restarting=False)
    assert first.manager_lost == ""
    lost = job_reducers.sighted(first, Sighting(manager="uid-1/9:00"), NOW, restarting=False)
    assert (lost.manager_lost, len(lost.faults)) == ("manager uid-1/9:00 is another process", 1)
    assert job_reducers.sighted(first, Sighting(manager="uid-2/9:00"), NOW, restarting=True).manager_lost == ""
    ours = job_reducers.sighted(STATE, Sighting(manager="uid-1/8:00"), NOW, restarting=False)
    assert job_reducers.sighted(ours, Sighting(manager="uid-1/9:00"), NOW, restarting=False).manager_lost == ""


def test_what_the_last_mode_was_given_and_did_not_mend_begins_no_incident_either() -> None:
    """A second fault came while the restart was under way, which was given up: another one would end alike."""
    state = told(STATE, a_fault("first"))
    case = cases.next_case(state, NOW)
    assert case
    state = told(state, a_fault("second"))
    met = [one.fault for one in state.faults]
    state = job_reducers.concluded(state, case, an_incident(a_verdict(outcome=Outcome.GIVEN_UP)), met)
    assert [one.judged for one in state.faults] == ["given_up: r"] * 2
    assert cases.next_case(state, NOW) is None


def test_a_restart_by_us_knows_no_manager_from_before() -> None:
    """The new manager is another process on purpose, and may be seen only after the incident."""
    mindio = JobState.of(JOB.model_copy(update={"training_side": TrainingSide.MINDIO}))
    old = Attachment(queue="q", session="s1", client="10.0.0.7 one 2026-01-01T00:00:00Z", since=NOW)
    new = Attachment(queue="q", session="s2", client="10.0.0.8 two 2026-01-01T00:00:00Z", since=NOW)
    state = attachments.detached(job_reducers.attached(mindio, old, NOW, restarting=False), "s1")
    state = job_reducers.sighted(state, Sighting(manager="m1/1"), NOW, restarting=False)
    case = cases.next_case(told(state, a_fault()), NOW)
    assert case
    state = job_reducers.concluded(state, case, an_incident(a_verdict(restarted_at=NOW)))
    state = job_reducers.sighted(state, Sighting(manager="m2/2"), NOW, restarting=False)
    state = job_reducers.attached(state, new, NOW, restarting=False)
    assert (state.manager, state.manager_lost) == ("m2/2", "")


def test_a_restart_by_a_lost_workflow_brings_another_manager_too() -> None:
    """The next workflow waits for that restart, and the new manager that it sees is no reason for another one."""
    wants = {"training_side": TrainingSide.MINDIO, "manager_lost": ManagerLost.RESTART}
    state = JobState.of(JOB.model_copy(update=wants)).with_(lost_recovery="recovery/x", manager="m1")
    state = job_reducers.sighted(state, Sighting(manager="m2"), NOW + timedelta(seconds=2), restarting=False)
    assert len(state.faults) == 1
    restarted = a_verdict(restarted_at=NOW + timedelta(seconds=1))
    state = job_reducers.settled(state, (restarted,), NOW + timedelta(seconds=3))
    assert (state.manager_lost, state.faults) == ("", ())


def test_a_job_that_is_registered_again_misses_the_ranks_that_its_lost_workflow_knew() -> None:
    """A rank without a pod is a fault if the lost workflow knew a holder, although the end of that pod was not seen."""
    now_held = Sighting(holders=("aaaa", "", "cccc"))
    knew = Registration(job=JOB, sighting=now_held, holders=("aaaa", "bbbb", "cccc"))
    state = job_reducers.sighted(job_reducers.registered(STATE, knew, NOW), now_held, NOW, restarting=False)
    assert [one.fault.pod_ranks for one in state.faults] == [(1,)]


def test_a_pod_that_took_over_is_not_missed_by_the_next_workflow() -> None:
    """The watcher had reported only the end of the old pod when the job's workflow was lost. Another pod would be a fault."""
    moved = Switched(pod_rank=1, before=PodRef(name="old", uid="bbbb"), after=PodRef(name="new", uid="dddd"))
    state = concluded(told(STATE, a_fault()), a_verdict(Mode.HOT_SWITCH, switched=(moved,)))
    note = Remembered.model_validate_json(job_reducers.to_remember(state, "").model_dump_json())
    knew = Registration(job=JOB, remembered=note, holders=("aaaa", "bbbb", "cccc"))
    again = job_reducers.registered(STATE, knew, NOW)
    for holder, missed in (("dddd", []), ("eeee", [(1,)])):
        seen = job_reducers.sighted(again, Sighting(holders=("aaaa", holder, "cccc")), NOW, restarting=False)
        assert [one.fault.pod_ranks for one in seen.faults] == missed


def test_a_recovery_is_known_by_its_id_alone() -> None:
    """The recoveries of a lost workflow are looked up by id, and any user may write one on the job's object."""
    recovery = recovery_workflow(JOB, 12, Mode.JOB_RESCHEDULING)
    assert (incident_of(recovery), is_recovery_of(JOB, recovery)) == (12, True)
    assert [mode for mode in Mode if runs_mode(recovery, mode)] == [Mode.JOB_RESCHEDULING]
    for strange in (
        "",
        "job/job",
        "recovery/default.gpt/x/job",
        "recovery/default.gpt/1-dance/job",
        recovery.replace("gpt", "other"),
    ):
        assert not is_recovery_of(JOB, strange)


def test_a_recovery_that_was_not_noted_is_looked_for_where_an_earlier_workflow_was() -> None:
    """A recovery is noted only after its start, so that one with the next number is looked for. A job that never had a workflow
    has none."""
    perhaps = recovery_workflow(JOB, 4, MODES[0].mode)
    noted = Registration(job=JOB, remembered=Remembered(job=JOB.id, incidents=3))
    held = Registration(job=JOB, holders=("aaaa", "bbbb", "cccc"))
    found = [job_reducers.registered(STATE, one, NOW).lost_recovery for one in (noted, held, Registration(job=JOB))]
    assert found == [perhaps, recovery_workflow(JOB, 1, MODES[0].mode), ""]
