"""An installation that only observes decides as another would, and says so."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.model.attachment import Attachment, Progress
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, PodTemplate
from rekindle.model.fault import FaultKind
from rekindle.model.job import Capability, Job, JobId, SubHealthStrategy
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.state import JobState
from rekindle.policy.modes import ladder, observe_only

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(id=JobId("job"), name="gpt", pods=2, ranks_per_pod=2, sub_health=SubHealthStrategy.HOT_SWITCH, observe=True)
STATE = JobState.of(JOB)


def test_what_is_not_known_of_somebody_elses_training_side_hides_no_decision() -> None:
    """Neither a missing stream nor a missing step refuses the hot switch; both are named as what would have to hold."""
    plan = ladder.for_sub_health(STATE, 1)
    assert observe_only.would(plan, 1) == (
        "would run hot switch (pod rank 1), then job rescheduling if that fails, "
        "provided that the training side is attached to a gateway and a training step was completed"
    )
    active = JobState.of(JOB.model_copy(update={"observe": False}))
    assert "not attached" in ladder.for_sub_health(active, 1).refused


def test_what_holds_is_not_asked_for() -> None:
    """A training side that is attached and trains leaves no condition open."""
    here, trains = Attachment(queue="q", session="s", since=NOW), Progress(incarnation="life", step=1)
    plan = ladder.for_sub_health(STATE.with_(attachment=here, progress=trains), 1)
    assert observe_only.would(plan, 1) == "would run hot switch (pod rank 1), then job rescheduling if that fails"


def test_a_real_fault_has_no_conditions() -> None:
    """The last mode needs nothing of the training side."""
    assert (
        observe_only.would(ladder.for_real_faults(STATE, (FaultKind.NODE, FaultKind.POD)), None) == "would run job rescheduling"
    )


@pytest.mark.parametrize(
    ("changes", "pod_rank", "refused", "ignored"),
    [
        ({}, 0, "pod rank 0 cannot be replaced", ""),
        ({"capabilities": (Capability.WATCHDOG,)}, 1, "the watchdog is on", ""),
        ({"sub_health": SubHealthStrategy.IGNORE}, 1, "", "the job's policy is ignore"),
    ],
)
def test_other_refusals_are_the_decision(changes: dict[str, Any], pod_rank: int, refused: str, ignored: str) -> None:
    """A case that the job itself rules out is refused or ignored as in any other installation."""
    plan = ladder.for_sub_health(JobState.of(JOB.model_copy(update=changes)), pod_rank)
    assert plan.modes == ()
    assert refused in plan.refused
    assert ignored in plan.ignored


@pytest.mark.parametrize("observe", [True, False])
def test_who_reads_the_cluster_says_whether_a_job_is_only_observed(*, observe: bool) -> None:
    """The job object carries it into the job; no label of the job's owner does."""
    spec = JobSpec(pods=2, ranks_per_pod=1, template=PodTemplate(command=("train",)))
    labels = {"rekindle.io/mode": "observe"}
    found = JobObject(metadata=ObjectMeta(name="gpt", uid="u", labels=labels), spec=spec, observe=observe)
    assert job_of(found, Limits()).observe is observe
