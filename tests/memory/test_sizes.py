"""The cost of a message grows with the number of faults, and not with its square: a large job has hundreds of them at a time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from rekindle.model.fault import WATCHER, Fault, FaultKind, Sighting, not_among
from rekindle.model.state import JobState
from rekindle.policy.modes import cases
from tests.support.harness import a_job
from tests.support.operations import operations
from workflows import job_reducers

NOW = datetime(2020, 2, 20, 20, 20, tzinfo=UTC)
PODS = 400


def _of(faults: int) -> Sighting:
    """Returns a sighting in which half of the faulty nodes are lost and half are sub-healthy."""
    kinds = (FaultKind.NODE, FaultKind.SUB_HEALTH)
    wrong = (
        Fault(id=f"uid-{rank}/Slow", kind=kinds[rank % 2], pod_ranks=(rank,), node=f"node-{rank}", source=WATCHER)
        for rank in range(faults)
    )
    return Sighting(holders=tuple(f"{rank:08x}" for rank in range(PODS)), faults=tuple(wrong))


def _seen(state: JobState, sighting: Sighting) -> JobState:
    return job_reducers.sighted(state, sighting, NOW, restarting=False)


def _see_again(state: JobState, sighting: Sighting) -> None:
    _seen(state, sighting)


def _decide(state: JobState, sighting: Sighting) -> None:
    later = NOW + timedelta(hours=1)
    assert cases.next_case(state, NOW) != cases.next_case(state, later)


def _wait(state: JobState, sighting: Sighting) -> None:
    assert cases.next_due(state, NOW) == NOW + state.job.limits.node_lost


def _judge(state: JobState, sighting: Sighting) -> None:
    case = cases.next_case(state, NOW + timedelta(hours=1))
    assert case
    assert all(one.judged for one in job_reducers.judged(state, case, "no").faults if one.fault.kind is FaultKind.NODE)


def _compare(state: JobState, sighting: Sighting) -> None:
    standing = [one.fault for one in state.faults]
    assert not_among(standing, sighting.faults) == []


@pytest.mark.parametrize("work", [_see_again, _decide, _wait, _judge, _compare])
def test_twice_as_many_faults_are_twice_the_work(work: Callable[[JobState, Sighting], None]) -> None:
    """A job of 400 pods, of which 100 or 200 have a fault."""
    job = a_job(pods=PODS, ranks_per_pod=1)
    costs = []
    for faults in (100, 200):
        sighting = _of(faults)
        state = _seen(JobState.of(job), sighting)
        costs.append(operations(lambda: work(state, sighting)))  # noqa: B023
    assert costs[1] < 2.5 * costs[0]
