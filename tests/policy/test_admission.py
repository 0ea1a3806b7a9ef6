"""Moments at which the cluster is asked whether it would admit a backup pod of a job."""

from typing import Any

import pytest

from rekindle.model.job import Job, JobId, SubHealthStrategy
from rekindle.model.state import JobState
from rekindle.policy.placement.admission import is_due

HELD = ("uid-0", "uid-1")


def state(*, holders: tuple[str, ...] = HELD, problems: tuple[str, ...] = (), asked: bool = False, **job: Any) -> JobState:
    values = {"id": JobId("j"), "name": "gpt", "pods": 2, "admitted": True, "sub_health": SubHealthStrategy.HOT_SWITCH}
    return JobState.of(Job(**{**values, **job})).with_(holders=holders, problems=problems, asked=asked)


def test_a_job_whose_pods_may_be_switched_is_asked_about_when_it_has_them() -> None:
    """A backup can be made as soon as each rank has a holder."""
    assert is_due(state())


@pytest.mark.parametrize(
    "other",
    [
        state(asked=True),
        state(holders=()),
        state(holders=("uid-0", "")),
        state(problems=("two pods of rank 1",)),
        state(sub_health=SubHealthStrategy.IGNORE),
        state(admitted=False),
        state(observe=True),
        state(unmovable="placed exclusively"),
    ],
)
def test_no_other_job_is_asked_about(other: JobState) -> None:
    """The cluster was asked already, the job is not complete, no hot switch is to be expected, or the answer is known."""
    assert not is_due(other)
