"""Pods that no recovery could tell apart are found, and named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model import keys
from rekindle.model.cluster import Pod, PodPhase
from rekindle.policy.detection.pod_ranks import MORE_PROBLEMS, TOLD_PROBLEMS, ends_with_a_restart, problems, ranked
from tests.support.job_views import pod as a_pod


def pod(name: str, rank: str | None, **wishes: Any) -> Pod:
    """A running pod; `rank` as it is written."""
    return a_pod(rank, f"uid-{name}", name=name, **wishes)


def found(*pods: Pod) -> tuple[str, ...]:
    """The problems of a job of four pods."""
    return problems(ranked(pods), 4)


IN_ORDER = tuple(pod(f"gpt-{rank}", str(rank)) for rank in range(4))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (pod("x", None), f"pod x carries no rank: expected annotation {keys.RANK_INDEX}"),
        (pod("x", None), "with a number from 0 to 3"),
        (pod("x", ""), "pod x carries no rank"),
        (pod("x", "one"), "pod rank 'one' of pod x is not a number from 0 to 3"),
        (pod("x", "-1"), "pod rank '-1' of pod x is not a number from 0 to 3"),
        (pod("x", "9" * 5000), f"pod rank '{'9' * 40}' of pod x is not a number from 0 to 3"),
        (pod("x", "7"), "pod rank 7 of pod x is outside 0 to 3"),
        (pod("x", "7", phase=PodPhase.PENDING), "pod rank 7 of pod x is outside 0 to 3"),
        (pod("gpt-1b", "1"), "pods gpt-1 and gpt-1b both carry pod rank 1"),
        (pod("gpt-1b", "01"), "pods gpt-1 and gpt-1b both carry pod rank 1"),
    ],
)
def test_a_pod_that_is_not_the_one_pod_of_its_rank_is_a_problem(wrong: Pod, words: str) -> None:
    """The line names pod, rank and what is expected; pods in order are no problem."""
    assert found(*IN_ORDER) == ()
    (line,) = found(*IN_ORDER, wrong)
    assert words in line


@pytest.mark.parametrize("names", [3, 5])
def test_many_pods_of_one_rank_are_one_problem(names: int) -> None:
    """The first three are named."""
    (line,) = found(*(pod(f"p{i}", "1") for i in range(names)))
    assert line == f"pods p0, p1, p2{' and 2 more' if names == 5 else ''} all carry pod rank 1"


@pytest.mark.parametrize(
    "innocent",
    [
        pod("gpt-1-hot-0001", "1", backup=True),
        pod("gpt-1-old", "1", deleted=True),
        pod("gpt-1-old", "1", phase=PodPhase.FAILED),
        pod("gpt-1-old", "1", phase=PodPhase.SUCCEEDED),
        pod("gpt-manager-0", None, role="manager"),
        pod("gpt-manager-0", None, role="Manager"),
        pod("gpt-scheduler-0", None, role="Scheduler"),
        pod("gpt-new", None, phase=PodPhase.PENDING, node=""),
    ],
    ids=lambda innocent: f"{innocent.metadata.name} {innocent.status.phase}",
)
def test_what_passes_by_itself_is_no_problem(innocent: Pod) -> None:
    """A backup beside the old pod, a pod that ends, one whose rank is still to be written, and pods without ranks by nature."""
    assert found(*IN_ORDER, innocent) == ()


PODS = st.builds(
    pod,
    st.sampled_from([f"p{number}" for number in range(40)]),
    st.sampled_from([None, "", "0", "1", "7", "x"]),
    phase=st.sampled_from(PodPhase),
    backup=st.booleans(),
    deleted=st.booleans(),
)


@given(st.lists(PODS, max_size=40, unique_by=lambda one: one.metadata.name), st.randoms())
def test_problems_do_not_depend_on_the_order_in_which_pods_are_listed(pods: list[Pod], random: Any) -> None:
    """Problems are reported when they change, so that a list in another order must not be a change. Their number is bounded."""
    told = found(*pods)
    shuffled = list(pods)
    random.shuffle(shuffled)
    assert found(*shuffled) == told
    assert len(told) <= TOLD_PROBLEMS + 1
    assert (len(told) > TOLD_PROBLEMS) == (MORE_PROBLEMS in told)


def test_of_many_pods_that_carry_a_rank_twice_the_last_line_says_so_too() -> None:
    """A restart of all pods ends that, however many there are."""
    told = problems(ranked([pod(f"{name}-{rank}", str(rank)) for rank in range(30) for name in "ab"]), 30)
    assert (len(told), all(map(ends_with_a_restart, told))) == (21, True)
    mixed = found(*(pod(f"wrong-{rank}", "x") for rank in range(30)))
    assert not ends_with_a_restart(mixed[-1])
