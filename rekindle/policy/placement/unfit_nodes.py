"""Computes the nodes on which no new pods are placed, whichever job found that something is wrong with them. Pure.

A job's workflow names the nodes of the job's own faults. This module adds all other nodes with a visible problem: a node that one
job has just left is free, and would be used for the next. Further reasons are rows of `SHUT`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from rekindle.model.cluster import Node
from rekindle.model.rules import Rules
from rekindle.policy.detection.isolation import is_isolated
from rekindle.policy.detection.rules import of_node
from rekindle.policy.detection.sighting import is_lost

MOST_NODES = 500
"""Maximum number of nodes that the affinity of a pod names."""

OF_KUBERNETES = "node.kubernetes.io/"
"""Prefix of taints that describe the state of a node. Every pod tolerates some of them for a while."""

CORDON = "node.kubernetes.io/unschedulable"
"""Taint that Kubernetes gives a cordoned node."""

EFFECTS = ("NoSchedule", "NoExecute")

Shut = Callable[[Node, Collection[str]], bool]
"""Returns whether a node takes no new pod of a job. Arguments: the node, and the taints that the job's pods tolerate by name."""


@dataclass(frozen=True)
class Unfit:
    shut: tuple[str, ...] = ()
    """Nodes on which no new pods are placed."""

    sub_healthy: tuple[str, ...] = ()
    """Nodes on which no backup pods are placed. Pods of a restart may be, if there is no other place for them. A pod can use a
    node that was cordoned at its creation once the node is uncordoned."""

    @property
    def both(self) -> tuple[str, ...]:
        return (*self.shut, *self.sub_healthy)


def _is_ill(node: Node, _: Collection[str]) -> bool:
    taints = (taint for taint in node.spec.taints if taint.key != CORDON)
    return is_lost(node) or any(taint.key.startswith(OF_KUBERNETES) and taint.effect in EFFECTS for taint in taints)


def _is_kept_free(node: Node, named: Collection[str]) -> bool:
    """Returns whether a taint keeps the node free that the job's pods do not tolerate by name. A taint that they name marks where
    they belong, such as `nvidia.com/gpu`. The scheduler respects the others, but not for pods that tolerate everything, and it
    moves no standby away."""
    return any(taint.effect in EFFECTS and taint.key not in (*named, CORDON) for taint in node.spec.taints)


SHUT: tuple[Shut, ...] = (
    lambda node, _: is_isolated(node.metadata.annotations),  # a stress test found a fault there
    _is_ill,
    _is_kept_free,
)
"""Checks in their order. The one that the scheduler does not know comes first, since only `MOST_NODES` are named."""


def unfit(nodes: Iterable[Node], named: Collection[str] | None, rules: Rules) -> Unfit:
    """Returns the nodes that new pods of a job avoid.

    Args:
        named: taints that the job's pods tolerate by name; None: unknown, so that only the scheduler respects other taints.
    """
    known = sorted(nodes, key=lambda node: node.metadata.name)
    shuts = SHUT if named is not None else SHUT[:-1]
    shut = dict.fromkeys(node.metadata.name for shut_by in shuts for node in known if shut_by(node, named or ()))
    ill = [node for node in known if node.spec.unschedulable or of_node(node, rules)]
    left = [node.metadata.name for node in ill if node.metadata.name not in shut]
    first = list(shut)[:MOST_NODES]
    return Unfit(tuple(first), tuple(left[: MOST_NODES - len(first)]))
