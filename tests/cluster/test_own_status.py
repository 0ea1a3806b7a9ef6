"""The status of a TrainingJob object: what `kubectl wait` waits for."""

from typing import Any

from rekindle.model import keys
from rekindle.model.cluster import JobPhase
from workers.training_job_status import LONGEST_MESSAGE, in_trouble, told

FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def job(status: Any = None, generation: int = 1) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, **({"status": status} if status else {})}


def conditions(status: Any) -> dict[str, str]:
    return {one["type"]: one["status"] for one in status["conditions"]}


def test_a_job_that_runs_says_so() -> None:
    """A running job's status says that its object is accepted, its pods are created and its workers run."""
    status = told(job(), JobPhase.RUNNING, "", FIRST)
    assert (status["phase"], status["observedGeneration"]) == ("Running", 1)
    assert conditions(status) == {"Accepted": "True", "PodsMade": "True", "Training": "True"}


def test_a_condition_has_the_time_of_its_last_change() -> None:
    """The time of a condition does not depend on the number of repetitions or on the generation."""
    before = told(job(), JobPhase.PENDING, "", FIRST)
    after = told(job(before, generation=2), JobPhase.RUNNING, "", LATER)
    times = {one["type"]: one["lastTransitionTime"] for one in after["conditions"]}
    assert times == {"Accepted": FIRST, "PodsMade": FIRST, "Training": LATER}
    assert {one["observedGeneration"] for one in after["conditions"]} == {2}
    assert told(job(after, generation=2), JobPhase.RUNNING, "", LATER) == after


def test_an_object_that_means_nothing_says_why() -> None:
    """No object of such a job was created."""
    status = told(job(), JobPhase.FAILED, "spec.pods: wrong", FIRST)
    assert conditions(status) == {"Accepted": "False", "Training": "False"}
    assert status["conditions"][0]["message"] == status["message"] == "spec.pods: wrong"


def test_a_job_that_was_given_up_says_why_until_it_trains_again() -> None:
    """A job that never was given up has no such condition. While a recovery runs again, the job is not given up."""
    healthy = told(job(), JobPhase.RUNNING, "", FIRST)
    assert "GivenUp" not in conditions(healthy)
    given_up = told(annotated(healthy, {keys.GIVEN_UP: "no node " * 1000}), JobPhase.FAILED, "", LATER)
    told_why = next(one for one in given_up["conditions"] if one["type"] == "GivenUp")
    assert (told_why["status"], told_why["reason"]) == ("True", "RecoveryGivenUp")
    assert told_why["message"].startswith("no node")
    assert len(told_why["message"]) == LONGEST_MESSAGE
    tried = told(annotated(given_up, {keys.RECOVERING: "job rescheduling"}), JobPhase.PENDING, "", LATER)
    resumed = told(annotated(tried, {}), JobPhase.RUNNING, "", LATER)
    reasons = [one["reason"] for status in (tried, resumed) for one in status["conditions"] if one["type"] == "GivenUp"]
    assert reasons == ["TriedAgain", "Resumed"]
    assert conditions(resumed)["GivenUp"] == "False"


def annotated(status: Any, annotations: dict[str, str]) -> dict[str, Any]:
    return {**job(status), "metadata": {"generation": 1, "annotations": annotations}}


def test_pods_that_are_refused_leave_the_phase_as_it_was() -> None:
    """A job that has not begun has no phase; its other conditions stay."""
    status = in_trouble(job(), "exceeded quota " * 1000, FIRST)
    assert "phase" not in status
    assert conditions(status) == {"PodsMade": "False"}
    assert len(status["conditions"][0]["message"]) == LONGEST_MESSAGE
    running = in_trouble(job(told(job(), JobPhase.RUNNING, "", FIRST)), "a webhook does not answer", LATER)
    assert (running["phase"], running["message"]) == ("Running", "")
    assert conditions(running) == {"Accepted": "True", "PodsMade": "False", "Training": "True"}
