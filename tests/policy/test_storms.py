"""A storm begins above a mark and ends at half of it. Few nodes, nodes under maintenance and a lasting state are no storm."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.model.cluster import Node, NodeSpec, Taint
from rekindle.model.keys import HEALTH
from rekindle.model.mode import Mode
from rekindle.model.rule_file import plain
from rekindle.model.state import JobState
from rekindle.policy.detection.rules import WELL
from rekindle.policy.detection.storm import LONGEST, NOT_READY, Cause, Marks, Seen, Storm, signs, storm
from rekindle.policy.modes import approvals, cases
from rekindle.policy.modes.chances import chances
from rekindle.policy.modes.mode_table import LADDER, LAST, OPERATIONS
from tests.support.harness import a_job, node_fault
from tests.support.job_views import NOW, node
from tests.support.rules import shows
from workers.watcher.cluster_index import ClusterIndex

MARKS = Marks(nodes=20, recoveries=50)
SLOW: dict[str, Any] = {"conditions": {"SubHealthy": ("True", "slow", "")}}
HOUR = LONGEST.total_seconds()


def of(seen: Seen, before: Storm | None = None, now: float = 0.0, marks: Marks = MARKS) -> Storm:
    return storm(seen, marks, before or Storm(), now)


def nodes(unhealthy: int, total: int = 100) -> Seen:
    return Seen(nodes=total, unhealthy=unhealthy)


@pytest.mark.parametrize(
    ("seen", "begins"),
    [
        (nodes(20), False),
        (nodes(21), True),
        (nodes(1, 2), False),
        (nodes(2, 2), False),
        (nodes(3, 4), True),
        (nodes(0, 0), False),
        (Seen(nodes=100, recoveries=50), False),
        (Seen(nodes=100, recoveries=51), True),
    ],
)
def test_more_than_a_mark_is_a_storm(seen: Seen, begins: bool) -> None:
    """Exactly the mark is none. One or two nodes are none either, such as one of two."""
    assert bool(of(seen).reason(0)) is begins


def test_a_storm_has_its_numbers() -> None:
    """People read how many nodes are unhealthy, how many recoveries run, and above which mark that is a storm."""
    seen = Seen(nodes=100, unhealthy=30, recoveries=60)
    words = "30 of 100 nodes are unhealthy, the mark is 20%; 60 recoveries run at once, the mark is 50"
    assert of(seen).reason(0) == words


@pytest.mark.parametrize(
    ("first", "then", "lasts"),
    [
        (nodes(30), nodes(11), True),
        (nodes(30), nodes(10), False),
        (nodes(5, 10), nodes(2, 10), False),
        (Seen(recoveries=60), Seen(recoveries=26), True),
        (Seen(recoveries=60), Seen(recoveries=25), False),
    ],
)
def test_a_storm_is_over_at_half_of_its_mark(first: Seen, then: Seen, lasts: bool) -> None:
    """Numbers around the mark do not begin and end it again and again."""
    assert bool(of(then, of(first)).reason(0)) is lasts


def test_a_state_that_lasts_is_no_storm_any_more() -> None:
    """Nodes that are broken for weeks do not delay each recovery. After they were well, they may be the reason of another one."""
    began = of(nodes(30), now=5.0)
    assert of(nodes(30), began, now=5.0 + HOUR - 1).reason(5.0 + HOUR - 1)
    lasting = of(nodes(30), began, now=5.0 + HOUR)
    assert not lasting.reason(5.0 + HOUR)
    well = of(nodes(0), lasting, now=6.0 + HOUR)
    assert of(nodes(30), well, now=7.0 + HOUR).reason(7.0 + HOUR)


def test_the_marks_are_separate_reasons() -> None:
    """A lasting state of the nodes hides no storm of recoveries."""
    began = of(nodes(30))
    both = of(Seen(nodes=100, unhealthy=30, recoveries=60), began, now=HOUR)
    assert both.reason(HOUR) == "60 recoveries run at once, the mark is 50"


@given(
    seen=st.builds(Seen, st.integers(0, 500), st.integers(0, 500), st.integers(0, 500)),
    before=st.builds(Storm, *[st.builds(Cause, st.sampled_from(["", "before"]), st.just(0.0))] * 2),
)
def test_no_mark_no_storm(seen: Seen, before: Storm) -> None:
    """The mark 0 switches a reason off, whatever is seen and was before."""
    assert of(seen, before, marks=Marks()) == Storm()


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (node(), frozenset()),
        (node(ready="Unknown"), {NOT_READY}),
        (shows(**SLOW), {"plain/sub-healthy"}),
        (shows(cordoned=True), frozenset()),
        (shows(cordoned=True, **SLOW), {"plain/sub-healthy"}),
        (node(ready="False").model_copy(update={"spec": NodeSpec(unschedulable=True)}), frozenset()),
        (shows(taints=(Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),)), frozenset()),
        (shows(annotations={HEALTH: f"{WELL}: checked"}, **SLOW), frozenset()),
    ],
)
def test_a_cordon_is_no_sign_of_a_storm(one: Node, expected: set[str]) -> None:
    """A drain is planned, and so is the restart of a cordoned node. A fault counts, also on a node that was cordoned for it."""
    assert signs(one, plain()) == expected


def test_a_mode_of_the_ladder_moves_pods_or_is_known_not_to() -> None:
    """A new mode that starts pods on nodes which the scheduler chooses has to be marked, so that a storm holds it."""
    still = {row.mode for row in LADDER if not row.moves_pods}
    assert still == {Mode.ONLINE_RETRY, Mode.IN_PLACE, Mode.ELASTIC_TRAINING, Mode.DYING_GASP}
    assert not any(row.moves_pods for row in OPERATIONS)


def test_people_see_which_modes_a_storm_holds() -> None:
    """The others would begin at once."""
    found = chances(JobState.of(a_job()).with_(storm="30 of 100 nodes are unhealthy"))
    assert {one.mode for one in found if one.held} == {row.mode for row in LADDER if row.moves_pods}
    assert not any(one.held for one in chances(JobState.of(a_job())))


def test_a_recovery_that_was_lost_half_way_is_finished_in_a_storm() -> None:
    """The pods of a lost recovery may be half moved, and its faults are unknown. The same restart for a fault is held."""
    state = JobState.of(a_job()).with_(
        storm="30 of 100 nodes are unhealthy", lost_recovery="recovery/default.gpt/1-hot-switch/job"
    )
    lost = cases.lost_recovery(state)
    assert approvals.hold(state, lost, LAST.mode, 2, NOW) is None
    assert approvals.hold(state, lost.model_copy(update={"faults": (node_fault("node-1"),)}), LAST.mode, 2, NOW)


def several(count: int, name: str = "node", accelerators: int = 8, **facts: Any) -> list[Node]:
    made = [shows(f"{name}-{number}", **facts) for number in range(count)]
    return [one.model_copy(update={"status": one.status.model_copy(update={"accelerators": accelerators})}) for one in made]


def test_only_nodes_that_train_are_counted() -> None:
    """Nodes without accelerators are no place for pods of jobs. Where no node has any, all are."""
    plain_ones = several(6, "web", accelerators=0, **SLOW)
    assert ClusterIndex(nodes=[*several(9), *several(1, "sick", **SLOW), *plain_ones]).unhealthy() == (10, 1)
    assert ClusterIndex(nodes=[*several(20, accelerators=0), *plain_ones]).unhealthy() == (26, 6)


def test_what_a_rule_says_that_is_not_believed_is_not_counted() -> None:
    """Nodes that are left alone move no pods, so that they make no storm."""
    assert ClusterIndex(nodes=[*several(1, "well"), *several(9, **SLOW)]).unhealthy() == (10, 0)


def test_counts_follow_the_nodes() -> None:
    """Nodes become unhealthy and well, one by one. A node that was deleted is not counted."""
    index = ClusterIndex(nodes=several(10))
    for one in several(3, **SLOW):
        index.put(one)
    assert index.unhealthy() == (10, 3)
    index.put(several(1)[0])
    index.remove(several(2, **SLOW)[1])
    assert index.unhealthy() == (9, 1)
    assert index.unhealthy() == ClusterIndex(nodes=[*several(9), several(3, **SLOW)[2]]).unhealthy()
