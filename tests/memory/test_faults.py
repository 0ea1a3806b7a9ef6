"""A fault of a job is a difference between what is seen and what is expected. It is over when the difference is gone."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.fault import HOLDERS, WATCHER, Fault, FaultKind, FaultReport, FaultType, FaultyRanks, Sighting, not_among
from rekindle.model.job import Job, JobId, ManagerLost, SubHealthStrategy
from rekindle.model.situation import PodRef
from rekindle.model.sizes import LONGEST_NOTE
from rekindle.model.state import KEPT_REFUSING, JobState, Standing
from rekindle.model.training_side import TrainingSide
from rekindle.policy.modes import cases
from rekindle.policy.placement import avoided_nodes
from workflows import attachments, faults, job_reducers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
JOB = Job(id=JobId("job"), name="gpt", pods=3, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH)
STATE = JobState.of(JOB)
WHOLE = ("aaaa", "bbbb", "cccc")
SLOW = Fault(id="n1/slow", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), ranks=(2, 3), node="node-1", source=WATCHER)
LOST = Fault(id="n1/lost", kind=FaultKind.NODE, pod_ranks=(1,), ranks=(2, 3), node="node-1", source=WATCHER)
FAILED = Fault(id="failed/0/exit 1", kind=FaultKind.POD, pod_ranks=(1,), ranks=(2, 3), generation="0", source=WATCHER)


def see(
    state: JobState, *found: Fault, holders: tuple[str, ...] = WHOLE, at: datetime = NOW, restarting: bool = False
) -> JobState:
    return job_reducers.sighted(state, Sighting(holders=holders, faults=found), at, restarting=restarting)


def told(state: JobState, *found: Fault, cleared: tuple[str, ...] = (), at: datetime = NOW) -> JobState:
    return job_reducers.reported(state, FaultReport(faults=found, cleared=cleared), at)


def ids(state: JobState) -> list[str]:
    return [one.fault.id for one in state.faults]


def by_a_person(fault: Fault) -> Fault:
    return fault.model_copy(update={"source": "operator"})


def crash(*ranks: int, of: FaultType = FaultType.OTHER) -> Fault:
    details = (FaultyRanks(ranks=ranks, type=of),)
    return Fault(id="processes", kind=FaultKind.PROCESS, ranks=ranks, details=details, source="training-side")


def test_pods_that_start_are_no_fault() -> None:
    """A rank without a holder so far is held by the first pod that is seen."""
    state = see(STATE, holders=("", "", ""))
    state = see(state, holders=("aaaa", "", "cccc"))
    state = see(state)
    assert (state.holders, state.faults) == (WHOLE, ())


def test_what_becomes_of_a_pod_that_was_left_behind_is_no_fault() -> None:
    """A hot switch replaced it and could not delete it: it may fail, or its node may."""
    old = PodRef(name="gpt-1", uid="bbbb-old")
    state = see(STATE).with_(left_behind=(old,))
    failed, lost = (fault.model_copy(update={"pod_uids": (old.uid,)}) for fault in (FAILED, LOST))
    assert see(state, failed, lost).faults == ()
    assert see(state, FAILED.model_copy(update={"pod_uids": (old.uid, "cccc")})).faults


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (("aaaa", "", "cccc"), "pod rank 1 lost the pod that held it"),
        (("aaaa", "dddd", "cccc"), "pod rank 1 passed to another pod, whose processes are new"),
    ],
    ids=["gone", "replaced"],
)
def test_a_rank_that_loses_its_pod_is_a_fault(now: tuple[str, ...], words: str) -> None:
    """The processes of the rank are gone, regardless of who deleted the pod and whether its controller created another."""
    state = see(see(STATE), holders=now, at=LATER)
    (one,) = state.faults
    assert (one.fault.kind, one.fault.pod_ranks, one.fault.ranks) == (FaultKind.POD, (1,), (2, 3))
    assert (one.fault.message, one.fault.accepted_at, one.judged) == (words, LATER, "")
    assert state.holders == WHOLE
    case = cases.next_case(state, LATER)
    assert case
    assert case.plan.modes == ("job rescheduling",)
    assert case.summary == f"pod: {words}"


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (("aaaa", "", ""), "pod: pod ranks 1, 2 lost the pods that held them"),
        (("aaaa", "dddd", "eeee"), "pod: pod ranks 1, 2 passed to other pods, whose processes are new"),
    ],
    ids=["gone", "replaced"],
)
def test_of_several_pods_ranks_and_pod_ranks_are_not_mixed_up(now: tuple[str, ...], words: str) -> None:
    """Each pod has two ranks, which the summary does not call pod ranks."""
    case = cases.next_case(see(see(STATE), holders=now, at=LATER), LATER)
    assert case
    assert case.summary == words


def test_it_is_over_when_the_pod_is_there_again() -> None:
    """A watch that broke showed less than there was."""
    assert see(see(see(STATE), holders=("", "", "")), holders=WHOLE).faults == ()


def test_a_rank_that_two_pods_claim_keeps_the_holder_that_is_known() -> None:
    """The known holder keeps the rank, since its owner is not certain before one of the pods is gone."""
    state = see(see(STATE), holders=("aaaa", "?", "cccc"))
    assert (state.holders, state.faults) == (WHOLE, ())


def test_a_job_that_somebody_else_restarted_begins_another_life() -> None:
    """Every rank has a pod, and each another one: nothing is missing."""
    state = see(see(STATE), holders=("dddd", "eeee", "ffff"))
    assert (state.holders, state.faults) == (("dddd", "eeee", "ffff"), ())


def test_ranks_whose_pods_failed_or_whose_node_is_lost_are_not_told_twice() -> None:
    """The failed pod, or the lost node, explains why no pod holds the rank."""
    state = see(see(STATE), FAILED, holders=("aaaa", "", "cccc"))
    assert ids(state) == ["failed/0/exit 1"]
    state = see(see(STATE), LOST, holders=("aaaa", "", ""))
    assert [(one.fault.id, one.fault.pod_ranks) for one in state.faults] == [("n1/lost", (1,)), ("holders", (2,))]


def test_a_mode_that_replaces_all_pods_is_not_told_that_they_go() -> None:
    """Missing pods are no fault while such a mode runs: the holders of the ranks are settled at its end."""
    assert see(see(STATE), holders=("", "", ""), restarting=True).faults == ()


def test_a_fault_is_stamped_with_our_clock_once() -> None:
    """Seen again it is as old as it was; gone and seen again it is another."""
    state = see(STATE, SLOW, at=NOW)
    state = see(state, SLOW, at=LATER)
    assert [one.fault.accepted_at for one in state.faults] == [NOW]
    state = see(see(state, at=LATER), SLOW, at=LATER)
    assert [one.fault.accepted_at for one in state.faults] == [LATER]


def test_what_was_judged_holds_until_it_grows_or_something_new_breaks() -> None:
    """A fault that shrinks is the same; one more rank, or another real fault, is a reason to judge again."""
    two = FAILED.model_copy(update={"pod_ranks": (1, 2), "ranks": (2, 3, 4, 5)})
    state = see(STATE, two, SLOW)
    case = cases.next_case(state, NOW)
    assert case
    state = job_reducers.judged(state, case, "given_up: enough")
    assert cases.next_case(see(state, FAILED), LATER) is None or ids(state) == [two.id, SLOW.id]
    shrunk = see(state, FAILED, SLOW)
    assert shrunk.faults[0].judged == "given_up: enough"
    grown = see(shrunk, two, SLOW)
    assert [one.judged for one in grown.faults] == ["", ""]
    another = see(shrunk, FAILED, SLOW, LOST)
    assert [one.judged for one in another.faults] == ["", "", ""]


def test_a_lost_node_is_given_time_unless_something_else_shows_that_it_is_lost() -> None:
    """A kubelet that restarts is back within seconds. A failed pod or a report of the training side ends the wait at once."""
    state = see(STATE, LOST)
    soon = NOW + JOB.limits.node_lost
    assert cases.next_case(state, NOW) is None
    assert cases.next_due(state, NOW) == soon
    case = cases.next_case(state, soon)
    assert case
    assert [fault.id for fault in case.faults] == ["n1/lost"]
    assert cases.next_case(see(state), soon) is None
    for sooner in (see(state, LOST, FAILED), told(state, crash(2))):
        case = cases.next_case(sooner, NOW)
        assert case
        assert "n1/lost" in [fault.id for fault in case.faults]


def test_reports_about_processes_add_up_rank_by_rank() -> None:
    """The newer word on a rank holds; a report that says nothing new changes nothing."""
    state = told(STATE, crash(0, 1, of=FaultType.MEMORY))
    state = told(state, crash(1, 4, of=FaultType.NETWORK), at=LATER)
    (one,) = state.faults
    assert (one.fault.ranks, one.fault.accepted_at) == ((0, 1, 4), LATER)
    kinds = [(detail.ranks, detail.type) for detail in one.fault.details]
    assert kinds == [((0,), FaultType.MEMORY), ((1, 4), FaultType.NETWORK)]
    assert told(state, crash(4, of=FaultType.NETWORK), at=LATER + timedelta(hours=1)) == state


def test_who_told_a_fault_clears_it_and_a_sighting_does_not() -> None:
    """The watcher knows nothing of what others saw."""
    state = told(see(STATE), by_a_person(SLOW))
    assert ids(see(state)) == ["n1/slow"]
    assert ids(told(state, cleared=("n1/slow",))) == []


def test_a_sighting_is_no_reason_to_judge_anew_what_others_told() -> None:
    """A reported fault whose recovery was given up is not judged again by a sighting. It would restart the job at each look."""
    state = told(see(STATE), by_a_person(LOST))
    case = cases.next_case(state, NOW)
    assert case
    state = job_reducers.judged(state, case, "given_up: enough")
    assert [one.judged for one in see(state, at=LATER).faults] == ["given_up: enough"]


def test_a_sub_health_of_two_pods_is_decided_rank_by_rank() -> None:
    """The one may be moved while the other stays."""
    state = told(STATE, by_a_person(SLOW).model_copy(update={"pod_ranks": (0, 1)}))
    assert [one.fault.pod_ranks for one in state.faults] == [(0,), (1,)]


def test_the_end_of_a_backup_pod_is_no_case() -> None:
    """A failed backup pod begins no case: the hot switch that created it handles its end."""
    assert cases.next_case(see(STATE, FAILED.model_copy(update={"backup": True})), NOW) is None


def test_reported_faults_that_do_not_fit_are_refused_and_counted() -> None:
    """None is dropped without a word; those of processes merge, and are always taken; what is cleared makes room."""
    state, told_so_far = STATE, 0
    while not (problem := faults.room_problem(state, report := a_report(told_so_far))):
        state = job_reducers.reported(state, report, NOW)
        told_so_far += 1
    assert f"1 more do not fit beside the {told_so_far} that stand" in problem
    assert ids(state) == [f"e{number}" for number in range(told_so_far)]
    assert not faults.room_problem(state, a_report(0))
    assert not faults.room_problem(state, FaultReport(faults=(crash(1),)))
    assert not faults.room_problem(state, report.model_copy(update={"cleared": ("e0", "e1")}))


def test_a_platform_that_names_each_fault_of_processes_does_not_fill_the_state() -> None:
    """Only the training side's reports of processes become one fault."""
    many = tuple(Fault(id=f"e{number}", kind=FaultKind.PROCESS, message="x" * 300, source="platform") for number in range(100))
    assert "100 more do not fit" in faults.room_problem(STATE, FaultReport(faults=many))
    assert not faults.room_problem(STATE, FaultReport(faults=many[:9]))


def a_report(number: int) -> FaultReport:
    return FaultReport(faults=(by_a_person(LOST).model_copy(update={"id": f"e{number}", "message": "x" * 300}),))


def test_a_judgement_is_short() -> None:
    """A judgement is cut to a limit, since it is stored with each of perhaps a hundred faults."""
    state = see(STATE, FAILED)
    case = cases.next_case(state, NOW)
    assert case
    (one,) = job_reducers.judged(state, case, "given_up: " + "x" * 2000).faults
    assert len(one.judged) == LONGEST_NOTE


found = st.lists(st.sampled_from([SLOW, LOST, FAILED]), max_size=3, unique=True).map(tuple)
World = tuple[tuple[str, ...], tuple[Fault, ...]]
worlds = st.tuples(st.tuples(*[st.sampled_from(["", uid, uid.upper(), "?"]) for uid in WHOLE]), found)


@given(st.lists(worlds, max_size=8), worlds)
def test_only_the_last_look_at_the_world_counts(before: list[World], last: World) -> None:
    """However the world came to be as it is, the watcher's faults are those of now, and looking again changes nothing."""
    holders, seen = last
    state = STATE
    for other, others in before:
        state = see(state, *others, holders=other)
    once = see(state, *seen, holders=holders, at=LATER)
    assert [one.fault.id for one in once.faults if one.fault.id != HOLDERS] == [fault.id for fault in seen]
    assert see(once, *seen, holders=holders, at=LATER + timedelta(hours=1)) == once


@given(st.lists(worlds, max_size=10))
def test_every_fault_comes_to_a_case_or_a_judgement(news: list[World]) -> None:
    """Working off case after case ends, with nothing left that was not judged."""
    state, now = STATE, NOW
    for holders, seen in news:
        state = see(state, *seen, holders=holders, at=now)
        now += timedelta(minutes=1)
        for _ in range(20):
            if not (case := cases.next_case(state, now)):
                break
            state = job_reducers.judged(state, case, "done")
        assert all(one.judged for one in state.faults if not one.fault.backup)


def test_a_fault_that_stands_is_shown_once() -> None:
    """Standing and judged survive a round through JSON, as the state does at each continue-as-new."""
    state = see(STATE, SLOW, LOST)
    assert JobState.model_validate_json(state.model_dump_json()) == state
    assert isinstance(state.faults[0], Standing)


def test_behind_a_restart_every_rank_has_to_be_held() -> None:
    """The first pod that is seen holds its rank. A pod that was evicted meanwhile is missed, although it was never seen."""
    state = STATE.with_(holders=("*", "*", "*"))
    whole = see(state)
    assert (whole.holders, whole.faults) == (WHOLE, ())
    state = see(state, holders=("aaaa", "", "cccc"))
    assert [(one.fault.id, one.fault.pod_ranks) for one in state.faults] == [(HOLDERS, (1,))]
    assert state.holders == ("aaaa", "*", "cccc")
    assert see(state).faults == ()


def test_a_report_on_a_renewed_stream_adds_to_what_is_being_recovered() -> None:
    """The stream broke in the middle of a recovery. The ranks of the earlier report are still faulty."""
    first, second = (crash(rank).model_copy(update={"session": f"s{rank}"}) for rank in (1, 2))
    state = told(STATE, first)
    state = job_reducers.reported(state, FaultReport(faults=(second,)), LATER, recovering=True)
    assert [(one.fault.ranks, one.fault.session) for one in state.faults] == [((1, 2), "s2")]


def test_what_is_reported_of_other_processes_is_another_fault() -> None:
    """A report from another session is a fault of its own: the judgement of the first report does not cover it."""
    first, second = (crash(1).model_copy(update={"session": session}) for session in ("s1", "s2"))
    state = told(STATE, first)
    state = state.with_(faults=tuple(Standing(fault=one.fault, judged="given up") for one in state.faults))
    assert told(state, first, at=LATER).faults == state.faults
    state = told(state, second, at=LATER)
    assert [(one.judged, one.fault.ranks, one.fault.accepted_at) for one in state.faults] == [("", (1,), LATER)]


def step(incarnation: str) -> Progress:
    return Progress(incarnation=incarnation, step=1, session=incarnation)


def test_the_first_step_of_a_new_life_ends_what_was_reported_of_the_last() -> None:
    """A user restarted the job in its pods, or replaced a pod. Training has a new life, so the old faults are over."""
    state = job_reducers.progressed(see(STATE), step("one"), NOW, recovering=False)
    state = told(see(state, holders=("aaaa", "new", "cccc")), crash(1))
    assert ids(state) == ["holders", "processes"]
    assert job_reducers.progressed(state, step("one"), NOW, recovering=False).faults
    trains = job_reducers.progressed(state, step("two"), NOW, recovering=False)
    assert ids(see(trains, holders=("aaaa", "new", "cccc"))) == []
    assert ids(job_reducers.progressed(state, step("two"), NOW, recovering=True)) == ["holders", "processes"]


def test_another_life_has_another_manager() -> None:
    """All pods are others, without our doing: what was known of the manager was of the old ones."""
    state = see(STATE).with_(client="taskd/1", manager="m1", manager_lost="lost", progress=step("one"))
    state = see(state, holders=("dddd", "eeee", "ffff"))
    assert (state.client, state.manager_lost, state.progress, state.faults) == ("", "", None, ())


def test_another_life_brings_its_manager_and_is_not_restarted_for_it() -> None:
    """A user restarted all pods, also the manager's. A job that wants a restart for a lost manager needs none."""
    wants = {"training_side": TrainingSide.MINDIO, "manager_lost": ManagerLost.RESTART}
    state = see(JobState.of(JOB.model_copy(update=wants))).with_(manager="m1")
    new = job_reducers.sighted(state, Sighting(holders=("dddd", "eeee", "ffff"), manager="m2"), NOW, restarting=False)
    assert (new.manager, new.manager_lost, new.faults) == ("m2", "", ())
    other = job_reducers.sighted(state, Sighting(holders=WHOLE, manager="m2"), NOW, restarting=False)
    assert (other.manager_lost, ids(other)) == ("manager m2 is another process", ["manager/m2"])


def test_another_life_is_told_nothing_by_the_last() -> None:
    """A report from a stream that has ended is ignored when a person has started the processes again."""
    old, here = (Attachment(queue="q", session=session, since=NOW) for session in ("old", "new"))
    state = job_reducers.attached(job_reducers.attached(see(STATE), old, NOW, restarting=False), here, NOW, restarting=False)
    state = see(state, holders=("dddd", "eeee", "ffff"))
    assert told(state, crash(1).model_copy(update={"session": "old"})).faults == ()
    assert ids(told(state, crash(1).model_copy(update={"session": "new"}))) == ["processes"]


def test_another_life_ends_what_was_reported_of_the_last() -> None:
    """A user restarted all pods after a restart that was given up. Reports about the new processes stay."""
    judged = told(see(STATE), crash(1), by_a_person(SLOW))
    judged = judged.with_(faults=tuple(faults.judged(judged.faults, [judged.faults[0].fault], "given_up: r")))
    assert ids(see(judged, holders=("dddd", "eeee", "ffff"))) == [SLOW.id]
    here = Attachment(queue="q", session="new", since=NOW)
    news = job_reducers.attached(told(see(STATE), crash(1).model_copy(update={"session": "new"})), here, NOW, restarting=False)
    assert ids(see(news, holders=("dddd", "eeee", "ffff"))) == ["processes"]


def test_another_life_ends_what_the_last_one_reported_also_before_its_stream_comes() -> None:
    """The streams of the pods that a person ended have ended with them; those that were started have none yet."""
    old = Attachment(queue="q", session="old", since=NOW)
    state = job_reducers.attached(told(see(STATE), crash(1).model_copy(update={"session": "old"})), old, NOW, restarting=False)
    state = attachments.detached(state, "old")
    assert ids(see(state, holders=("dddd", "eeee", "ffff"))) == []


def test_a_fault_that_is_given_time_neither_ends_a_mode_nor_lets_one_begin() -> None:
    """A node that is not ready for a moment is no reason to restart; what is begun meanwhile would be ended in its middle."""
    state = see(STATE, LOST, SLOW)
    due = NOW + JOB.limits.node_lost
    assert (cases.counting(state, NOW), cases.next_case(state, NOW)) == ((), None)
    assert [fault.id for fault in cases.counting(state, due)] == [LOST.id]
    healed = cases.next_case(see(state, SLOW), NOW)
    assert healed
    assert healed.faults[0].id == SLOW.id


def test_beside_a_dead_pod_a_lost_node_counts_at_once() -> None:
    """The job stands, whether it comes back or not."""
    assert [fault.id for fault in cases.counting(see(STATE, LOST, FAILED), NOW)] == [LOST.id, FAILED.id]


def test_words_alone_make_no_fault_a_new_one() -> None:
    """A fault whose text changes is no new fault for a running mode. A fault that has grown is one."""
    warmer = LOST.model_copy(update={"message": "95 degrees"})
    wider = LOST.model_copy(update={"pod_ranks": (1, 2)})
    assert (not_among([warmer], [LOST]), not_among([wider], [LOST])) == ([], [wider])


# ---- nodes that refuse pods

REFUSED = FAILED.model_copy(update={"id": "failed/0/OutOfcpu/node-1", "code": "OutOfcpu", "node": "node-1"})


def test_a_node_that_has_refused_a_pod_is_kept_away_from_for_a_while() -> None:
    """Whichever mode makes the next one: otherwise a node without its devices swallows all restarts, beside one that is free."""
    state = see(see(STATE), REFUSED)
    assert job_reducers.refusing(state, NOW) == ("node-1",)
    later = see(state)
    assert later.faults == ()
    assert job_reducers.refusing(later, NOW + job_reducers.REFUSES - timedelta(seconds=1)) == ("node-1",)
    assert job_reducers.refusing(later, NOW + job_reducers.REFUSES) == ()
    assert avoided_nodes.to_avoid((), SubHealthStrategy.IGNORE, job_reducers.refusing(later, NOW)) == ("node-1",)


def test_nodes_that_refuse_are_remembered_up_to_a_number() -> None:
    """The latest ones, each once."""
    state = see(STATE)
    for number in range(2 * KEPT_REFUSING):
        state = see(state, REFUSED.model_copy(update={"node": f"node-{number // 2}"}))
    names = [one.node for one in state.refusing]
    assert names == [f"node-{number}" for number in range(KEPT_REFUSING)]
