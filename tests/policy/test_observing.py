"""An installation that only observes decides as another would, and says so."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Capability, Job, JobId, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.recovery import Attachment, Incident, Mode, ModeRequest, Outcome, Progress, Verdict
from rekindle.model.state import JobState, Registration
from rekindle.policy import incidents, ladder, observing, requests

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=2, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH, observe=True)
STATE = JobState.of(JOB)
ILL = Fault(episode="ill", kind=FaultKind.SUB_HEALTH, pod_ranks=(1,), node="node-1", seen_at=NOW, source="test")
LOWERS = Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.IGNORED, reason="no spare", policy_after=SubHealthStrategy.IGNORE)


def test_what_is_not_known_of_somebody_elses_training_side_hides_no_decision() -> None:
    """Neither a missing stream nor a missing step refuses the hot switch; both are named as what would have to hold."""
    plan = ladder.for_sub_health(STATE, 1)
    assert observing.would(plan, 1) == (
        "would run hot switch (pod rank 1), then job rescheduling if that fails, "
        "provided that the training side is attached to a gateway and a training step was completed"
    )
    active = JobState.of(JOB.model_copy(update={"observe": False}))
    assert "not attached" in ladder.for_sub_health(active, 1).refused


def test_what_holds_is_not_asked_for() -> None:
    """A training side that is attached and trains leaves no condition open."""
    known = {"attachment": Attachment(queue="q", session="s", since=NOW), "progress": Progress(incarnation="life", step=1)}
    plan = ladder.for_sub_health(STATE.model_copy(update=known), 1)
    assert observing.would(plan, 1) == "would run hot switch (pod rank 1), then job rescheduling if that fails"


def test_a_real_fault_has_no_conditions() -> None:
    """The last mode needs nothing of the training side."""
    assert observing.would(ladder.for_real_fault(STATE), None) == "would run job rescheduling"


@pytest.mark.parametrize(
    ("changes", "pod_rank", "refused", "ignored"),
    [
        ({}, 0, "pod rank 0 cannot be replaced", ""),
        ({"capabilities": (Capability.WATCHDOG,)}, 1, "the watchdog is on", ""),
        ({"sub_health": SubHealthStrategy.IGNORE}, 1, "", "the job's policy is ignore"),
    ],
)
def test_other_refusals_are_the_decision(changes: dict[str, Any], pod_rank: int, refused: str, ignored: str) -> None:
    """What the job itself rules out is refused or ignored as anywhere else."""
    plan = ladder.for_sub_health(JobState.of(JOB.model_copy(update=changes)), pod_rank)
    assert plan.modes == ()
    assert refused in plan.refused
    assert ignored in plan.ignored


@pytest.mark.parametrize("mode", list(Mode))
def test_a_request_is_refused_with_what_would_let_it_act(mode: Mode) -> None:
    """Setting and label are in the text; it is judged so again when its turn comes."""
    request = ModeRequest(mode=mode, pod_rank=1, force=True)
    assert "REKINDLE_OBSERVE=false" in requests.refused(STATE, request)
    assert "rekindle.io/mode=active" in requests.refused(STATE, request)
    case = incidents.next_case(STATE.model_copy(update={"requests": (request,)}))
    assert case
    assert (case.plan.modes, case.plan.refused) == ((), observing.ONLY)


def test_the_policy_is_never_lowered() -> None:
    """Also not by a recovery that ran when the installation began to observe."""
    assert incidents.downgraded(STATE, LOWERS, NOW) == STATE


def test_from_the_day_it_may_act_sub_healths_are_judged_again() -> None:
    """A registration that differs in nothing but `observe` is a reason."""
    state = incidents.judged(incidents.take_fault(STATE, ILL), 1, "observed: would run something")
    assert incidents.next_case(incidents.registered(state, JOB)) is None
    case = incidents.next_case(incidents.registered(state, JOB.model_copy(update={"observe": False})))
    assert case
    assert case.faults == (ILL,)


def test_the_same_decision_is_known() -> None:
    """Another reason, and another fault, are other decisions."""
    case = incidents.next_case(incidents.take_fault(STATE, ILL))
    assert case
    shown = Incident(
        number=1,
        summary=case.summary,
        started_at=NOW,
        seconds=0.0,
        verdict=Outcome.REFUSED,
        ladder=(Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.REFUSED, reason="observed: a"),),
        policy_after=STATE.policy,
        faults=case.faults,
    )
    state = incidents.concluded(STATE, shown)
    assert incidents.is_told(state, case, "observed: a")
    assert not incidents.is_told(state, case, "observed: b")
    assert not incidents.is_told(state, case.model_copy(update={"faults": ()}), "observed: a")


@pytest.mark.parametrize("observe", [True, False])
def test_who_reads_the_cluster_says_whether_a_job_is_only_observed(*, observe: bool) -> None:
    """The job object carries it into the job; no label of the job's owner does."""
    spec = JobSpec(pods=2, ranks_per_pod=1, template=PodTemplate(command=("train",)))
    labels = {"rekindle.io/mode": "observe"}
    found = JobObject(metadata=ObjectMeta(name="gpt", uid="u", labels=labels), spec=spec, observe=observe)
    assert job_of(found, Limits()).observe is observe


def test_a_registration_is_a_job_with_one_field_more() -> None:
    """Processes of two releases understand one another: what the older one sends, and what it reads, is the job."""
    limits = Limits.model_validate({"pause": 60})
    job = JOB.model_copy(update={"limits": limits})
    sent = Registration.of(job, ("twice",)).model_dump_json()
    read = Registration.model_validate_json(sent)
    assert (read.job, read.problems) == (job, ("twice",))
    assert Job.model_validate_json(sent) == job
    assert Registration.model_validate_json(job.model_dump_json()).problems is None
