"""Nodes on which no new pod is put, whichever source reported them."""

import pytest

from rekindle.model.cluster import Condition, Node, NodeSpec, NodeStatus, ObjectMeta, Taint
from rekindle.model.keys import HEALTH, ISOLATED
from rekindle.model.rule_file import parse, plain
from rekindle.model.rules import Rules
from rekindle.policy.placement.unfit_nodes import MOST_NODES, Unfit, unfit

NO_CORDONS = """
apiVersion: rekindle.io/v1
kind: Rules
spec:
  use: plain
  rules: [{name: cordons, cordoned: true, then: nothing}]
"""


def node(name: str = "n", *, ready: str = "True", sick: bool = False, **spec: object) -> Node:
    conditions = [Condition(type="Ready", status=ready)]  # type: ignore[arg-type]
    conditions += [Condition(type="SubHealthy", status="True")] if sick else []
    status = NodeStatus(accelerators=8, conditions=tuple(conditions))
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec.model_validate(spec), status=status)


def tainted(key: str, effect: str = "NoSchedule") -> Node:
    return node(taints=(Taint(key=key, effect=effect),))


@pytest.mark.parametrize("ill", [node(ready="False"), node(ready="Unknown")])
def test_a_node_that_is_not_ready_takes_no_new_pod(ill: Node) -> None:
    """Whatever a job tolerates."""
    assert unfit([ill], {"anything"}, plain()).shut == ("n",)
    assert unfit([ill], None, plain()).shut == ("n",)


@pytest.mark.parametrize("taints", [(), (Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),)])
@pytest.mark.parametrize("well", [True, False])
@pytest.mark.parametrize("rules", [plain(), parse(NO_CORDONS)], ids=["usual rules", "cordons mean nothing"])
def test_a_cordoned_node_takes_no_backup_and_is_open_to_a_restart_when_that_is_over(
    taints: tuple[Taint, ...], well: bool, rules: Rules
) -> None:
    """Whatever rules say of cordons: until then the scheduler puts nothing there."""
    cordoned = node(unschedulable=True, taints=taints)
    marks = ObjectMeta(name="n", annotations={HEALTH: "well"} if well else {})
    assert unfit([cordoned.model_copy(update={"metadata": marks})], (), rules) == Unfit((), ("n",))


def test_an_isolated_node_takes_no_new_pod() -> None:
    """A stress test found a fault there."""
    marked = node().model_copy(update={"metadata": ObjectMeta(name="n", annotations={ISOLATED: "a test"})})
    assert unfit([marked], None, plain()).shut == ("n",)


def test_a_sub_healthy_node_is_better_than_none() -> None:
    """Backups keep off it; a restart would rather run there than not at all."""
    assert unfit([node(sick=True), node("well")], (), plain()) == Unfit((), ("n",))
    assert unfit([node(sick=True, ready="False")], (), plain()) == Unfit(("n",), ())


@pytest.mark.parametrize(
    ("taint", "named", "shut"),
    [
        (tainted("maintenance"), (), True),
        (tainted("maintenance", "NoExecute"), (), True),
        (tainted("maintenance", "PreferNoSchedule"), (), False),
        (tainted("nvidia.com/gpu"), ("nvidia.com/gpu",), False),
        (tainted("nvidia.com/gpu"), None, False),
        (tainted("node.kubernetes.io/memory-pressure"), None, True),
        (tainted("node.kubernetes.io/not-ready", "NoExecute"), ("node.kubernetes.io/not-ready",), True),
        (tainted("node.kubernetes.io/unreachable", "PreferNoSchedule"), (), False),
    ],
)
def test_a_taint_that_pods_name_is_where_they_belong(taint: Node, named: tuple[str, ...] | None, shut: bool) -> None:
    """Kubernetes' own say how a node is, and every pod tolerates two of them for a while."""
    assert bool(unfit([taint], named, plain()).shut) is shut


def test_a_few_hundred_are_named_those_first_that_the_scheduler_does_not_know() -> None:
    """An affinity has no room for thousands."""
    others = [node(f"a-{number}", taints=({"key": "theirs", "effect": "NoSchedule"},)) for number in range(MOST_NODES)]
    isolated = node().model_copy(update={"metadata": ObjectMeta(name="z", annotations={ISOLATED: "a test"})})
    found = unfit([*others, isolated, node("sick", sick=True)], (), plain())
    assert found.shut[0] == "z"
    assert len(found.both) == MOST_NODES
