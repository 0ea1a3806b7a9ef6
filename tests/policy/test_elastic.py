"""Sizes of an elastic job: what its owner allows, which pods may leave, and what is seen of those that are missing."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.elastic import Elastic, Resized, Small, accepted_elastic, is_named, read_elastic
from rekindle.model.fault import EXPECTED_HOLDER, HOLDERS, UNKNOWN_HOLDER, WATCHER, Decided, Fault, FaultKind, Sighting
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.standby import Standby
from rekindle.model.state import MENDED, JobState, Registration, Standing
from rekindle.model.training_side import TrainingSide
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import cases, elastic, eligibility, ladder, requests
from workflows.job_reducers import registered, sighted

STEP = Progress(incarnation="life", step=1, steps_lost=0)
NOW = datetime(2026, 1, 2, 14, 2, tzinfo=UTC)
HERE = Attachment(queue="gateway", session="s", since=NOW)
JOB = Job(id=JobId("j"), name="gpt", pods=4, ranks_per_pod=2, elastic=Elastic(least=2))
PODS = ("uid-0", "uid-1", "uid-2", "uid-3")


def verdict(**changes: Any) -> Verdict:
    return Verdict(mode=Mode.ELASTIC_TRAINING, outcome=Outcome.RECOVERED, reason="smaller", **changes)


def small(*missing: int, **changes: Any) -> JobState:
    """Returns the state of a job of which these pods are missing."""
    state = JobState(job=JOB, holders=PODS, small=Small(since=NOW, missing=missing, **changes))
    return elastic.without_missing(state)


def lost(*pods: int, kind: FaultKind = FaultKind.NODE, **changes: Any) -> Fault:
    ranks = JOB.layout.ranks_of_all(pods)
    return Fault(id=f"lost {pods}", kind=kind, pod_ranks=pods, ranks=ranks, source=WATCHER, accepted_at=NOW, **changes)


@pytest.mark.parametrize(
    ("said", "least", "wait"),
    [("2", 2, 30), (" 2 ; wait=60s ", 2, 60), ("4;wait=0", 4, 0), ("1; wait=2m", 1, 120), ("1; wait=1h", 1, 3600)],
)
def test_the_owner_names_the_least_size_and_the_wait_for_a_spare(said: str, least: int, wait: int) -> None:
    """The wait is half a minute where none is named."""
    assert read_elastic(said, 4) == Elastic(least=least, wait=timedelta(seconds=wait))


@pytest.mark.parametrize(
    "said",
    [
        *("", "0", "5", "two", "2; wait=", "2; wait=-1s", "2 wait=5", "2; wait=5d", "٢"),
        *("2; pods=3", "3; pods=2", "1; pods=0", "1; pods=8", "1; pods=", "1; wait=5; pods=2"),
    ],
)
def test_any_other_word_is_not_accepted(said: str) -> None:
    """Neither are sizes below 1 or above that of the job, or pods that cannot be divided into replicas."""
    assert read_elastic(said, 4) is None


@pytest.mark.parametrize(
    ("said", "accepted"),
    [
        ("5", "a number of pods from 1 to 4"),
        ("3; pods=2", "a number of replicas from 1 to 2"),
        ("1; pods=3", "a number of pods of a replica by which 4 pods can be divided, 1, 2, 4"),
    ],
)
def test_the_numbers_that_are_accepted_are_named(said: str, accepted: str) -> None:
    """Accepted numbers depend on the pods of the job, and on those of a replica."""
    assert accepted_elastic(said, 4).startswith(accepted)


def test_a_replica_of_several_pods_counts_once() -> None:
    """The least size, the words of `show` and the size to which a job grows are replicas."""
    assert read_elastic("1; pods=2; wait=0", 4) == Elastic(least=1, pods=2, wait=timedelta(0))
    job = JOB.model_copy(update={"elastic": Elastic(least=2, pods=2)})
    assert elastic.too_few(job, None, (3,)).startswith("1 of 2 replicas would be left, its owner wants 2 or more")
    state = small(2, 3, nodes=("node-3",)).with_(job=job)
    assert elastic.words(state, "14:02") == "1 of 2 replicas, since 14:02, node-3 lost, waits for 2 nodes"
    assert state.small
    assert elastic.next_size(job, state.small, at_once=False) == 2
    ordered = elastic.resized(state.with_(small=None), verdict(resized=Resized(left=(2, 3), by_hand=True)), NOW)
    assert ordered.small
    assert ordered.small.size == 1


def test_the_word_of_mindcluster_allows_it_too() -> None:
    """A job that was written for the replaced system needs no further annotation."""
    assert is_named("recover, elastic-training,dump")
    assert not is_named("recover,dump")


def test_pods_leave_down_to_the_least_size() -> None:
    """Pods that are missing already count."""
    assert elastic.too_few(JOB, None, (0, 1)) == ""
    words = "1 of 4 replicas would be left, its owner wants 2 or more"
    assert elastic.too_few(JOB, None, (0, 1, 2)).startswith(words)
    assert elastic.too_few(JOB, small(3).small, (0, 1)).startswith(words)
    assert elastic.too_few(JOB, small(3).small, (0, 3)) == ""
    assert elastic.too_few(JOB.model_copy(update={"elastic": None}), None, (0,)) == elastic.NOT_ELASTIC


def test_a_job_that_may_not_get_smaller_waits_for_a_spare_as_any_other() -> None:
    """The owner's shorter wait holds while there is another way to go on."""
    limit = timedelta(seconds=270)
    assert elastic.patience_for_spare(JOB, None, (0,), limit) == timedelta(seconds=30)
    assert elastic.patience_for_spare(JOB, None, (0, 1, 2), limit) == limit
    assert elastic.patience_for_spare(JOB, None, (0,), timedelta(seconds=5)) == timedelta(seconds=5)


def test_the_words_about_a_small_job_say_what_it_waits_for() -> None:
    """Words are those of `show`."""
    state = small(2, nodes=("node-2",))
    assert elastic.words(state, "14:02") == "3 of 4 replicas, since 14:02, node-2 lost, waits for one node"
    assert elastic.words(state.with_(storm="30 of 100 nodes"), "14:02").endswith("waits for one node, and until a storm is over")
    by_hand = small(2, 3, by_hand=True)
    assert elastic.words(by_hand, "14:02") == "2 of 4 replicas, since 14:02, as ordered by hand"
    assert elastic.words(small(2, 3, last_try="no spare"), "14:02").endswith("waits for 2 nodes, last attempt: no spare")
    assert elastic.words(JobState(job=JOB), "14:02") == ""


def test_pods_that_leave_and_come_back_change_the_size_once() -> None:
    """The same verdict may be applied twice. The time of the first loss stays."""
    state, later = JobState(job=JOB, holders=PODS), NOW + timedelta(hours=1)
    gone = verdict(resized=elastic.leave((2,), (lost(2, node="node-2"),)))
    once = elastic.resized(state, gone, NOW)
    pause = JOB.limits.grow_again
    same: dict[str, Any] = {"since": NOW, "nodes": ("node-2",), "places": ((2,),)}
    assert once.small == Small(**same, missing=(2,), lingering=(2,), old={2: "uid-2"}, try_at=NOW + pause)
    assert elastic.resized(once, gone, later) == once
    both = elastic.resized(once, verdict(resized=Resized(left=(3,))), later)
    old = {2: "uid-2", 3: "uid-3"}
    assert both.small == Small(**same, missing=(2, 3), lingering=(2, 3), old=old, try_at=later + pause)
    assert both.holders == ("uid-0", "uid-1", "", "")
    back = elastic.resized(both, verdict(resized=Resized(came=(2,))), later)
    assert back.small == Small(since=NOW, missing=(3,), lingering=(3,), old={3: "uid-3"})
    assert elastic.resized(back, verdict(resized=Resized(came=(3,))), later).small is None
    assert elastic.resized(both, verdict(restarted_at=later), later).small is None


def test_only_nodes_of_pods_that_are_missing_are_named() -> None:
    """Pods that are back have left no node. One is named if another pod has left it too, or nobody kept whose it was."""
    faults = (lost(1, 2, node="node-1"), lost(3, node="node-3"), lost(2, node="node-2", kind=FaultKind.PROCESS))
    gone = elastic.leave((1, 2, 3), faults)
    assert (gone.nodes, gone.places) == (("node-1", "node-3"), ((1, 2), (3,)))
    state = elastic.resized(JobState(job=JOB, holders=PODS), verdict(resized=gone), NOW)
    back = elastic.resized(state, verdict(resized=Resized(came=(1, 3))), NOW)
    assert elastic.words(back, "14:02") == "3 of 4 replicas, since 14:02, node-1 lost, waits for one node"
    assert state.small
    before = state.with_(small=state.small.model_copy(update={"places": ()}))
    for change in (Resized(came=(1,)), elastic.leave((1,), (lost(1, node="node-3"),)), Resized(came=(1, 2))):
        before = elastic.resized(before, verdict(resized=change), NOW)
        assert before.small
        assert (before.small.nodes, before.small.places) == (("node-1", "node-3"), ((), ()))
    assert elastic.leave(range(90), (lost(*range(90), node="node-1"),)).places == ((),)


def test_a_fault_of_missing_pods_alone_is_none() -> None:
    """A fault of others too leaves missing pods out. That of a pod that is to take over is left to its mode."""
    told = Sighting(
        holders=("uid-0", "uid-1", "uid-x", "uid-3"),
        faults=(lost(2), lost(1, 2), lost(2, backup=True), lost(3), lost(2, kind=FaultKind.SUB_HEALTH)),
    )
    found = elastic.seen(small(2), told)
    assert found.holders == ("uid-0", "uid-1", "", "uid-3")
    assert [(fault.pod_ranks, fault.ranks) for fault in found.faults] == [
        ((1,), (2, 3)),
        ((2,), (4, 5)),
        ((3,), (6, 7)),
    ]
    whole = JobState(job=JOB, holders=PODS)
    assert elastic.seen(whole, told) is told


def test_faults_that_were_seen_before_the_pod_had_left_are_over() -> None:
    """The holder was missed while the mode ran."""
    faults = (Standing(fault=lost(2).model_copy(update={"id": HOLDERS})), Standing(fault=lost(3)))
    state = JobState(job=JOB, holders=PODS, faults=faults)
    after = elastic.resized(state, verdict(resized=Resized(left=(2,))), NOW)
    assert [one.fault.pod_ranks for one in after.faults] == [(3,)]


def test_another_party_that_restarts_all_pods_makes_the_job_whole() -> None:
    """The job is whole when each rank has another pod than before. One pod for the missing rank is not enough."""
    state = small(2)
    assert elastic.is_whole(state, Sighting(holders=("a", "b", "c", "d")))
    assert not elastic.is_whole(state, Sighting(holders=("uid-0", "b", "c", "d")))
    assert not elastic.is_whole(state, Sighting(holders=("a", "b", "", "d")))
    assert not elastic.is_whole(JobState(job=JOB, holders=PODS), Sighting(holders=("a", "b", "c", "d")))
    assert not elastic.is_whole(small(2, old={2: "c"}), Sighting(holders=("a", "b", "c", "d")))


@pytest.mark.parametrize("old", [{2: "uid-2"}, {}])
def test_pods_of_a_small_job_that_another_party_restarts_are_no_faults(old: dict[int, str]) -> None:
    """Ranks have not passed to other pods: nothing of the new training is faulty. The last step was one of the old one."""
    state = small(2, old=old).with_(progress=STEP, attachment=HERE)
    after = sighted(state, Sighting(holders=("a", "b", "c", "d")), NOW, restarting=False)
    assert (after.small, after.faults, after.progress) == (None, (), None)
    assert after.holders == ("a", "b", "c", "d")
    by_us = sighted(state, Sighting(holders=("a", "b", "c", "d")), NOW, restarting=True)
    assert (by_us.small, by_us.faults, by_us.progress) == (None, (), STEP)


def test_only_ranks_that_the_job_has_are_missing() -> None:
    """Owners may change the number of pods, and anybody the memory on the job's object. A job without any pod is none."""
    state = small(2, 3, there=(2, 3))
    resized = state.with_(job=JOB.model_copy(update={"pods": 3}), holders=PODS[:3])
    after = elastic.without_missing(resized).small
    assert after
    assert (after.missing, after.there) == ((2,), (2,))
    assert elastic.without_missing(state.with_(job=JOB.model_copy(update={"pods": 2}))).small is None
    assert small(0, 1, 2, 3).small is None
    same = registered(small(2), Registration(job=JOB.model_copy(update={"pods": 2})), NOW)
    assert same.small is None


def test_any_number_of_attempts_that_is_remembered_costs_no_time() -> None:
    """The pause is computed from it."""
    after = elastic.tried(small(2, tries=10**15), attempt(), NOW).small
    assert after
    assert after.try_at == NOW + elastic.MOST_PAUSES * JOB.limits.grow_again


@given(st.sets(st.integers(0, 3), max_size=3), st.sets(st.integers(0, 3), min_size=1))
def test_a_sighting_of_a_small_job_names_no_missing_pod(missing: set[int], struck: set[int]) -> None:
    """Tries all combinations of missing and faulty pods."""
    state = small(*sorted(missing))
    found = elastic.seen(state, Sighting(holders=PODS, faults=(lost(*sorted(struck)),)))
    assert [rank for fault in found.faults for rank in fault.pod_ranks] == sorted(struck - missing)


def test_the_mode_is_in_the_ladder_before_the_state_is_saved_and_the_job_is_restarted() -> None:
    """The mode comes after other pods, and only where the owner allows it. No other owner is told about it."""
    state = JobState(job=JOB, introduced=True, progress=None, faults=(Standing(fault=lost(2)),))
    ready = state.with_(progress=STEP)
    plan = ladder.for_real_faults(ready, (FaultKind.NODE,))
    assert plan.modes[0] is Mode.PROCESS_RESCHEDULING
    assert plan.modes[1] is Mode.ELASTIC_TRAINING
    fixed = ready.with_(job=JOB.model_copy(update={"elastic": None}))
    assert Mode.ELASTIC_TRAINING not in ladder.for_real_faults(fixed, (FaultKind.NODE,)).modes
    assert eligibility.elastic_training(fixed, None) == (elastic.NOT_ELASTIC,)


def test_a_fault_of_a_missing_rank_is_answered_without_it() -> None:
    """The training side may report one of a process that was to come back. Another pod for the rank would be in the way."""
    fault = Fault(id="p", kind=FaultKind.PROCESS, ranks=(4,), source="training-side", accepted_at=NOW)
    state = small(2).with_(introduced=True, attachment=HERE, progress=STEP, faults=(Standing(fault=fault),))
    assert ladder.for_real_faults(state, (FaultKind.PROCESS,)).modes[0] is Mode.ELASTIC_TRAINING
    words = "pod rank 2 has left the job, which goes on without"
    assert words in eligibility.in_place(state, None)
    assert words in eligibility.process_rescheduling(state, None)
    whole = state.with_(small=None)
    assert ladder.for_real_faults(whole, (FaultKind.PROCESS,)).modes[0] is Mode.IN_PLACE


def test_with_every_pod_lost_nothing_can_go_on() -> None:
    """Missing pods count as lost."""
    state = small(2, 3).with_(
        introduced=True, progress=STEP, faults=(Standing(fault=lost(0, 1)),), job=JOB.model_copy(update={"elastic": Elastic()})
    )
    assert "every pod is lost" in eligibility.elastic_training(state, None)
    assert "every pod is faulty" in eligibility.process_rescheduling(state, None)
    assert "replicas of it are missing" in " ".join(eligibility.pod_rescheduling(state, None))


# ---- growth


def attempt(**changes: Any) -> Verdict:
    return Verdict(mode=Mode.SCALING, outcome=Outcome.IGNORED, reason="no spare", **changes)


def test_attempts_to_grow_come_later_each_time_up_to_five_times() -> None:
    """The first one comes at once where nothing else is said. An attempt that a fault interrupted does not count."""
    state, pauses = small(2), []
    assert elastic.may_grow(state, NOW)
    for _ in range(6):
        state = elastic.tried(state, attempt(), NOW)
        assert state.small
        assert state.small.try_at
        pauses.append((state.small.try_at - NOW).total_seconds())
        assert not elastic.may_grow(state, NOW)
    assert pauses == [60, 120, 240, 300, 300, 300]
    again = elastic.tried(small(2), attempt(training=Training.FAULTED), NOW)
    assert again.small
    assert (again.small.tries, again.small.try_at) == (0, NOW + JOB.limits.grow_again)


def test_a_size_that_a_person_has_set_stays() -> None:
    """Neither does a job grow in a storm, or one that is only observed."""
    assert elastic.grows_at(small(2, by_hand=True)) is None
    assert not elastic.may_grow(small(2).with_(storm="20 of 40 nodes report faults"), NOW)
    assert not elastic.may_grow(small(2).with_(job=JOB.model_copy(update={"observe": True})), NOW)
    assert elastic.grows_at(JobState(job=JOB)) is None


def test_a_job_grows_back_to_the_size_that_a_person_has_set() -> None:
    """A pod that leaves because of a fault comes back, and the size stays known. Those that left by request do not."""
    ordered = elastic.resized(JobState(job=JOB, holders=PODS), verdict(resized=Resized(left=(3,), by_hand=True)), NOW)
    struck = elastic.resized(ordered, verdict(resized=Resized(left=(1,), nodes=("node-1",))), NOW)
    assert struck.small
    assert elastic.grows_at(struck) == NOW + JOB.limits.grow_again
    assert elastic.next_size(JOB, struck.small, at_once=True) == 3
    assert elastic.words(struck, "14:02") == "2 of 4 replicas, since 14:02, node-1 lost, waits for one node"
    tried = elastic.tried(struck, attempt(), NOW)
    assert tried.small
    assert tried.small.tries == 1
    back = elastic.resized(tried, verdict(resized=Resized(came=(1,))), NOW)
    assert elastic.grows_at(back) is None
    assert elastic.words(back, "14:02").endswith("as ordered by hand")


def test_a_pod_that_others_make_and_a_standby_begin_an_attempt_at_once() -> None:
    """A pod that was seen before does not begin another one."""
    late = small(2, try_at=NOW + timedelta(hours=1), tries=3)
    assert not elastic.may_grow(late, NOW)
    came = elastic.pods_that_come(late, Sighting(holders=("uid-0", "uid-1", "uid-9", "uid-3")))
    assert elastic.may_grow(came, NOW)
    tried = elastic.tried(came, attempt(), NOW)
    assert not elastic.may_grow(elastic.pods_that_come(tried, Sighting(holders=("uid-0", "uid-1", "uid-9", "uid-3"))), NOW)
    first = small(2, try_at=NOW + timedelta(hours=1)).with_(standbys=(Standby(name="s", uid="s", node="n", runs=True),))
    assert elastic.may_grow(first, NOW)


def test_pods_that_a_controller_makes_again_and_again_begin_few_attempts_at_once() -> None:
    """Attempts with such pods fail. The pause is not reset, and further pods wait for its end. Another size begins anew."""
    state, pauses = small(2, 3), []
    for number in range(5):
        state = elastic.pods_that_come(state, Sighting(holders=("uid-0", "uid-1", f"made-{number}", "")))
        assert elastic.may_grow(state, NOW) is (number < elastic.MOST_HURRIED)
        state = elastic.tried(state, attempt(), NOW)
        assert state.small
        assert state.small.try_at
        pauses.append((state.small.try_at - NOW).total_seconds())
        state = elastic.pods_that_come(state, Sighting(holders=("uid-0", "uid-1", "", "")))
    assert pauses == [60, 120, 240, 300, 300]
    grown = elastic.resized(state, verdict(resized=Resized(came=(3,))), NOW)
    assert elastic.may_grow(elastic.pods_that_come(grown, Sighting(holders=("uid-0", "uid-1", "made-5", "uid-9"))), NOW)


def test_pods_of_any_number_of_missing_replicas_are_told_from_those_that_have_left() -> None:
    """The holders of the first ones are remembered. For any other one its rank was seen without a pod first."""
    count = elastic.MOST_HOLDERS + 1
    job = JOB.model_copy(update={"pods": count + 1, "elastic": Elastic()})
    before = tuple(f"u{rank}" for rank in range(count + 1))
    left = tuple(range(count))
    state = elastic.resized(JobState(job=job, holders=before), verdict(resized=Resized(left=left)), NOW)
    assert state.small
    assert (elastic.come(state.small, before), len(elastic.to_sweep(state))) == ((), elastic.MOST_HOLDERS)
    gone = elastic.pods_that_come(state, Sighting(holders=(*[""] * count, before[-1]))).small
    assert gone
    assert (gone.lingering, gone.there) == ((), ())
    assert elastic.come(gone, tuple(f"n{rank}" for rank in range(count + 1))) == left


def test_a_pod_that_was_not_seen_yet_when_it_left_is_no_pod_that_comes() -> None:
    """Whichever pod of a restart is seen first has the rank. One that has left by then is seen to be gone first."""
    expected = JobState(job=JOB, holders=(*PODS[:2], EXPECTED_HOLDER, PODS[3]))
    state = elastic.resized(expected, verdict(resized=Resized(left=(2,))), NOW)
    assert state.small
    assert (state.small.old, elastic.come(state.small, PODS)) == ({}, ())
    gone = elastic.pods_that_come(state, Sighting(holders=(*PODS[:2], "", PODS[3]))).small
    assert gone
    assert elastic.come(gone, (*PODS[:2], "uid-9", PODS[3])) == (2,)


def test_a_pod_that_has_left_is_deleted_as_long_as_it_is_seen() -> None:
    """A pod that follows it does not end that. With MindIO other components delete pods."""
    state = small(2, lingering=(2,), old={2: "uid-2"})
    here = Sighting(holders=("uid-0", "uid-1", "uid-2", "uid-3"))
    beside = Sighting(holders=("uid-0", "uid-1", UNKNOWN_HOLDER, "uid-3"))
    gone = Sighting(holders=("uid-0", "uid-1", "uid-9", "uid-3"))
    assert [elastic.to_sweep(elastic.pods_that_come(state, one)) for one in (here, beside, gone)] == [{2: "uid-2"}] * 2 + [{}]
    assert elastic.to_sweep(elastic.swept(state, (2,))) == {}
    assert elastic.to_sweep(state.with_(job=JOB.model_copy(update={"training_side": TrainingSide.MINDIO}))) == {}


def test_a_request_brings_back_as_many_pods_as_one_recovery_can_create() -> None:
    """Pods that others have created do not count."""
    job = JOB.model_copy(update={"pods": 100})
    state = JobState(job=job, introduced=True, progress=STEP, small=Small(since=NOW, missing=tuple(range(50, 100)), there=(50,)))

    def refused(replicas: int) -> str:
        return requests.refused(state, ModeRequest(mode=Mode.SCALING, replicas=replicas))

    assert refused(62) == "at most 10 pods are created for one request: accepted is 61, and more with the next one"
    assert "at most" not in refused(61)


def test_only_the_latest_of_several_vain_attempts_is_kept() -> None:
    """An attempt that did something stays."""
    vain = Incident(
        number=1,
        summary="back",
        started_at=NOW,
        seconds=1,
        verdict=Outcome.IGNORED,
        ladder=(attempt(),),
        policy_after=SubHealthStrategy.IGNORE,
    )
    assert elastic.repeated((vain,), "back", attempt()) == vain
    assert elastic.repeated((vain,), "another", attempt()) is None
    assert elastic.repeated((vain,), "back", verdict()) is None
    done = vain.model_copy(update={"verdict": Outcome.RECOVERED})
    assert elastic.repeated((done,), "back", attempt()) is None


def test_ranks_come_back_one_after_the_other_or_all_at_once() -> None:
    """The training side decides how many come back at once."""
    state = small(2, 3).small
    assert state
    assert elastic.next_size(JOB, state, at_once=False) == 3
    assert elastic.next_size(JOB, state, at_once=True) == 4


def test_a_small_job_grows_while_a_device_shows_a_fault_that_was_mended() -> None:
    """A device may show it for days. Nothing of the job is faulty, so that a request is not refused either."""
    fault = lost(1, kind=FaultKind.PROCESS, decided=Decided(rule="nvidia/xid-contained", saw="XID 94"))
    state = small(2).with_(registered=True, introduced=True, attachment=HERE, progress=STEP)
    shown = state.with_(faults=(Standing(fault=fault, judged=f"{MENDED} 1, and shown still"),))
    assert cases.next_case(shown, NOW + timedelta(hours=1)) == cases.next_case(state, NOW + timedelta(hours=1))
    assert cases.next_case(shown, NOW + timedelta(hours=1))
    assert requests.refused(shown, ModeRequest(mode=Mode.SCALING, replicas=4)) == ""
    left_alone = state.with_(faults=(Standing(fault=fault, judged="ignored"),))
    assert "something of it is faulty" in requests.refused(left_alone, ModeRequest(mode=Mode.SCALING, replicas=4))
