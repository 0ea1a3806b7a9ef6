"""Chances of the modes of a job, as `rekindle explain` shows them."""

from rekindle.model.job import Job, JobId
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.model.training_side import TrainingSide
from rekindle.policy.modes.chances import chances
from rekindle.policy.modes.mode_table import LADDER


def of(**job: object) -> JobState:
    return JobState.of(Job.model_validate({"id": JobId("j"), "name": "gpt", "pods": 3, "ranks_per_pod": 2, **job}))


def test_all_modes_are_listed_in_the_order_in_which_they_are_tried() -> None:
    """A mode about pods is listed once, if the same speaks against all pods."""
    assert [chance.mode for chance in chances(of(capabilities=("replace_rank_0",)))] == [row.mode for row in LADDER]


def test_a_pod_with_reasons_of_its_own_is_listed_apart() -> None:
    """Pod rank 0 of MindIO cannot be replaced."""
    found = [chance for chance in chances(of(training_side=TrainingSide.MINDIO)) if chance.mode is Mode.HOT_SWITCH]
    assert [chance.pod_ranks for chance in found] == [(0,), (1, 2)]
    assert any("pod rank 0 cannot be replaced" in reason for reason in found[0].against)


def test_what_is_not_faulty_yet_speaks_against_nothing() -> None:
    """Chances without a fault are those for a fault to come."""
    assert not [chance for chance in chances(of()) if any("known to be faulty" in reason for reason in chance.against)]
