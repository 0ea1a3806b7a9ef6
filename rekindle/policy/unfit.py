"""Which nodes no new pod is to go to, whichever job found out that something is wrong with them. Pure.

The nodes of a job's own faults are named by its workflow; here is what anybody sees of all the others: the node that one job has
just left is exactly the one that is free for the next. What else makes a node unfit is a row of `SHUT`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from rekindle.model.cluster import Node
from rekindle.model.rules import Rules
from rekindle.policy.isolation import is_isolated
from rekindle.policy.rules import of_node
from rekindle.policy.sighting import is_lost

MOST_NODES = 500
"""Nodes that the affinity of a pod names."""

OF_KUBERNETES = "node.kubernetes.io/"
"""Taints that say how a node is. Every pod tolerates some of them, for a while."""

CORDON = "node.kubernetes.io/unschedulable"
"""The taint that Kubernetes gives a cordoned node."""

EFFECTS = ("NoSchedule", "NoExecute")

Shut = Callable[[Node, Collection[str]], bool]
"""Whether a node takes no new pod of a job. Besides the node: the taints that the job's pods tolerate by name."""


@dataclass(frozen=True)
class Unfit:
    shut: tuple[str, ...] = ()
    """Nodes to which no new pod goes."""

    sub_healthy: tuple[str, ...] = ()
    """Nodes to which no backup pod goes; a pod of a restart does, if there is no other place for it. One that is cordoned when
    the pod is made is open to it as soon as that is over."""

    @property
    def both(self) -> tuple[str, ...]:
        return (*self.shut, *self.sub_healthy)


def _is_ill(node: Node, _: Collection[str]) -> bool:
    taints = (taint for taint in node.spec.taints if taint.key != CORDON)
    return is_lost(node) or any(taint.key.startswith(OF_KUBERNETES) and taint.effect in EFFECTS for taint in taints)


def _is_kept_free(node: Node, named: Collection[str]) -> bool:
    """A taint that pods name is where they belong, such as `nvidia.com/gpu`; the scheduler heeds the others, but not for pods
    that tolerate everything, and it moves no standby away."""
    return any(taint.effect in EFFECTS and taint.key not in (*named, CORDON) for taint in node.spec.taints)


SHUT: tuple[Shut, ...] = (
    lambda node, _: is_isolated(node.metadata.annotations),  # a stress test found a fault there
    _is_ill,
    _is_kept_free,
)
"""What the scheduler knows nothing of comes first, for the sake of `MOST_NODES`."""


def unfit(nodes: Iterable[Node], named: Collection[str] | None, rules: Rules) -> Unfit:
    """Args:
    named: taints that the job's pods tolerate by name; None: nobody knows, and the scheduler alone judges other people's taints.
    """
    known = sorted(nodes, key=lambda node: node.metadata.name)
    shuts = SHUT if named is not None else SHUT[:-1]
    shut = dict.fromkeys(node.metadata.name for shut_by in shuts for node in known if shut_by(node, named or ()))
    ill = [node for node in known if node.spec.unschedulable or of_node(node, rules)]
    left = [node.metadata.name for node in ill if node.metadata.name not in shut]
    first = list(shut)[:MOST_NODES]
    return Unfit(tuple(first), tuple(left[: MOST_NODES - len(first)]))
