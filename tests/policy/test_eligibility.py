"""Reasons against the modes that recover processes, as far as no recovery has to run to show them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.fault import TRAINING_SIDE, Fault, FaultKind, FaultType, FaultyRanks
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.keys import FAULT_RETRY_TIMES, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import Again, GivenUp, JobState, Pending, Standing
from rekindle.model.training_side import TrainingSide
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import eligibility, faulty_ranks
from rekindle.policy.modes.job_phase import phase
from workflows import again, given_up

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def mindio(pods: int = 3, allows: str | None = "retry,recover", **changes: object) -> Job:
    values: dict[str, object] = {
        "id": JobId("j"),
        "name": "gpt",
        "kind": "AscendJob",
        "training_side": TrainingSide.MINDIO,
        "pods": pods,
        "ranks_per_pod": 2,
        "labels": {"process-recover-enable": "on"},
        "annotations": {} if allows is None else {RECOVER_STRATEGY: allows},
    }
    return Job.model_validate({**values, **changes})


def faulty_job(job: Job, *ranks: int, kind: FaultType = FaultType.OTHER, incidents: tuple[Incident, ...] = ()) -> JobState:
    fault = Fault(
        id="p",
        kind=FaultKind.PROCESS,
        ranks=ranks,
        details=(FaultyRanks(ranks=ranks, type=kind),),
        source=TRAINING_SIDE,
        accepted_at=NOW,
    )
    return JobState.of(job).with_(faults=(Standing(fault=fault),), history=incidents, introduced=True)


def test_mindio_replaces_pods_but_that_of_its_manager() -> None:
    """The controller of MindIO ends with pod rank 0. Without a controller that recreates pods there is no new pod."""
    assert eligibility.process_rescheduling(faulty_job(mindio(), 3), None) == ()
    (first,) = eligibility.process_rescheduling(faulty_job(mindio(), 1), None)
    assert first == "pod rank 0 is faulty, and MindIO's manager is in its pod"
    (nobody,) = eligibility.process_rescheduling(faulty_job(mindio(kind="Job"), 3), None)
    assert nobody == "with MindIO the job's controller recreates pods, and a Job has none that does"


def test_a_job_whose_pods_cannot_be_moved_gets_no_other_pods() -> None:
    """Neither by a hot switch nor for a pod that is lost; the reason is the cluster's."""
    job = mindio(unmovable="they are placed exclusively", training_side=TrainingSide.REKINDLE, kind="JobSet")
    state = faulty_job(job, 3)
    words = "its pods cannot be moved: they are placed exclusively"
    assert words in eligibility.hot_switch(state, 1)
    assert words in eligibility.process_rescheduling(state, None)
    assert words not in eligibility.in_place(state, None)


def test_a_step_of_an_earlier_life_counts_no_more_when_a_restart_was_given_up() -> None:
    """Training has not begun again, and would refuse each order. MindIO, which reports no step, is believed."""
    waits, step = Again(at=NOW), Progress(incarnation="life-1", step=3)
    for side, expected in ((TrainingSide.REKINDLE, False), (TrainingSide.MINDIO, True)):
        state = JobState.of(mindio(training_side=side)).with_(progress=step)
        assert eligibility.readiness(state).completed_a_step
        assert eligibility.readiness(state.with_(again=waits)).completed_a_step is expected


def test_a_step_of_an_earlier_life_counts_no_more_when_a_person_ends_another_try() -> None:
    """Training has not begun again, whether the try is aborted or has yet to begin. The job is not shown as one that trains."""
    gone = GivenUp(since=NOW, incident=1, mode=Mode.JOB_RESCHEDULING, reason="no completed step within 900 s", stopped=True)
    state = JobState.of(mindio(training_side=TrainingSide.REKINDLE)).with_(
        progress=Progress(incarnation="life-1", step=3), again=Again(at=NOW), given_up=gone
    )
    aborted = given_up.aborted(state, Verdict(mode=Mode.JOB_RESCHEDULING, outcome=Outcome.CANCELLED, reason="by ada"), 2, NOW)
    request = Pending(id="1", request=ModeRequest(mode=Mode.JOB_RESCHEDULING))
    for stands in (aborted, given_up.retried(state, request, NOW), given_up.retried(aborted, request, NOW)):
        assert not eligibility.readiness(stands).completed_a_step
        assert eligibility.readiness(again.over(stands)).completed_a_step
    assert phase(aborted, None) == "given up"


def test_hot_switch_alone_allows_mindio_to_recover() -> None:
    """Hot switch sets up the processes for `recover` only. Strategies that the owner names outweigh it."""
    job = mindio(allows=None, sub_health=SubHealthStrategy.HOT_SWITCH)
    assert [faulty_ranks.allows(job, word) for word in ("recover", "retry", "recover-in-place", "dump")] == [
        True,
        False,
        False,
        False,
    ]
    assert not faulty_ranks.allows(mindio(allows="exit", sub_health=SubHealthStrategy.HOT_SWITCH), "recover")
    assert not faulty_ranks.allows(mindio(allows=None), "recover")


def test_blanks_between_strategies_mean_nothing() -> None:
    """Blanks in the annotation do not change the strategies that are read from it."""
    assert all(faulty_ranks.allows(mindio(allows=" retry , recover"), word) for word in ("retry", "recover"))


@pytest.mark.parametrize(("label", "may"), [(None, False), ("", False), ("0", False), ("3", True), (" 10 ", True)])
def test_pods_may_fail_where_the_job_says_how_often(label: str | None, may: bool) -> None:
    """Otherwise the Ascend Operator ends the job for good with the first one."""
    assert faulty_ranks.may_pods_fail(mindio(labels={} if label is None else {FAULT_RETRY_TIMES: label})) is may


def test_a_pod_may_not_fail_where_volcano_ends_the_others_with_it() -> None:
    """Process-level recovery is off in the eyes of who reads labels only."""
    labels = {FAULT_RETRY_TIMES: "3"}
    assert not faulty_ranks.may_pods_fail(mindio(allows=None, labels=labels))
    assert faulty_ranks.may_pods_fail(mindio(allows=None, labels={**labels, "process-recover-enable": "on"}))


def _retried(minutes_ago: int) -> Incident:
    verdict = Verdict(mode=Mode.ONLINE_RETRY, outcome=Outcome.RECOVERED, reason="the step was repeated")
    return Incident(
        number=1,
        summary="memory",
        started_at=NOW - timedelta(minutes=minutes_ago),
        seconds=1,
        verdict=Outcome.RECOVERED,
        ladder=(verdict,),
        policy_after=SubHealthStrategy.IGNORE,
    )


def test_memory_whose_faults_come_back_is_not_retried_for_ever() -> None:
    """A step is repeated ten times within an hour. Then its process starts again, or its pod."""
    often = tuple(_retried(minutes) for minutes in range(10))
    assert eligibility.online_retry(faulty_job(mindio(), 3, kind=FaultType.MEMORY, incidents=often[:9]), None) == ()
    (why,) = eligibility.online_retry(faulty_job(mindio(), 3, kind=FaultType.MEMORY, incidents=often), None)
    assert why == "its step was repeated 10 times within 1:00:00, and its faults come back"
    longer_ago = (*often[:9], _retried(61))
    assert eligibility.online_retry(faulty_job(mindio(), 3, kind=FaultType.MEMORY, incidents=longer_ago), None) == ()


def test_a_person_who_wants_another_try_begins_the_count_of_repeated_steps_again() -> None:
    """`rekindle retry` begins the ladder again, and with it every count of recoveries."""
    often = faulty_job(mindio(), 3, kind=FaultType.MEMORY, incidents=tuple(_retried(number) for number in range(1, 11)))
    assert eligibility.online_retry(often, None)
    assert eligibility.online_retry(often.with_(tried_again=NOW), None) == ()
    (latest,) = (one.started_at for one in often.history[:1])
    assert eligibility.online_retry(often.with_(tried_again=latest - timedelta(hours=1)), None)


def test_steps_that_operations_had_repeated_are_no_faults_that_come_back() -> None:
    """A stress test without results leaves MindIO paused, and it repeats its step: nothing was faulty."""
    failed = Verdict(mode=Mode.STRESS_TEST, outcome=Outcome.ESCALATE, reason="nothing was tested", training=Training.WHOLE)
    tests = [one.model_copy(update={"ladder": (failed, *one.ladder)}) for one in map(_retried, range(10))]
    assert eligibility.online_retry(faulty_job(mindio(), 3, kind=FaultType.MEMORY, incidents=tuple(tests)), None) == ()


def test_processes_that_end_again_and_again_are_not_recovered_for_ever() -> None:
    """Fifty times within an hour; then the whole job starts again, which has its own bound."""
    state, allows = faulty_job(mindio(allows="retry,recover-in-place,recover"), 3, kind=FaultType.MEMORY), eligibility
    often = tuple(NOW - timedelta(minutes=1) for _ in range(50))
    for reasons in (allows.online_retry, allows.in_place, allows.process_rescheduling):
        assert reasons(state.with_(repairs=often[:49]), None) == ()
        assert reasons(state.with_(repairs=(NOW - timedelta(minutes=61), *often[:49])), None) == ()
        assert reasons(state.with_(repairs=often), None) == (
            "its processes were recovered 50 times within 1:00:00, and their faults come back",
        )


def test_the_time_in_which_recoveries_are_counted_is_a_limit_of_the_job() -> None:
    """Recoveries of more than a minute ago do not count, if the job's owner says a minute."""
    job = mindio(allows="retry,recover-in-place,recover")
    minute = job.model_copy(update={"limits": Limits(bounds_within=timedelta(minutes=1))})
    often = tuple(NOW - timedelta(seconds=59) for _ in range(50))
    state = faulty_job(minute, 3, kind=FaultType.MEMORY, incidents=tuple(_retried(1) for _ in range(10)))
    assert eligibility.online_retry(state.with_(repairs=(NOW - timedelta(minutes=1), *often[:49])), None) == ()
    (why,) = eligibility.in_place(state.with_(repairs=often), None)
    assert why == "its processes were recovered 50 times within 0:01:00, and their faults come back"


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        ({"labels": {}}, (3,), "its owner does not ask for it (label pod-rescheduling=on)"),
        ({"labels": {"pod-rescheduling": "off"}}, (3,), "its owner does not ask for it (label pod-rescheduling=on)"),
        ({"unmovable": "they are placed exclusively"}, (3,), "its pods cannot be moved: they are placed exclusively"),
        ({}, (), "nothing of it is known to be faulty"),
        ({}, (1, 3, 5), "every pod is faulty"),
        ({"training_side": TrainingSide.MINDIO}, (3,), "MindIO does not start processes again in their pods"),
    ],
)
def test_pods_are_replaced_one_by_one_where_the_owner_asks_for_it_and_some_are_left(
    changes: dict[str, Any], ranks: tuple[int, ...], reason: str
) -> None:
    """The mode needs no strategy of the annotation."""
    labels: dict[str, Any] = {"labels": {"pod-rescheduling": "on", "process-recover-enable": "on"}}
    job = mindio(allows="exit", kind="Job", **{"training_side": TrainingSide.REKINDLE, **labels, **changes})
    here = Attachment(queue="gateway/1", session="s", since=NOW)
    state = faulty_job(job, *ranks).with_(attachment=here, progress=Progress(incarnation="life-1", step=1))
    if not ranks:
        state = state.with_(faults=())
    assert reason in eligibility.pod_rescheduling(state, None)
    well = faulty_job(job.model_copy(update={"training_side": TrainingSide.REKINDLE, "unmovable": "", **labels}), 3)
    assert eligibility.pod_rescheduling(well.with_(attachment=here, progress=state.progress), None) == ()
    assert eligibility.pod_rescheduling(well.with_(progress=state.progress), None) == (
        "its training side is not attached to a gateway",
    )
