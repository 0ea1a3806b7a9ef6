"""Isolation of nodes on which a stress test found a fault: no new pods are placed there. Marks and releases such nodes.

Volcano reads the contract's annotation `NodeHealthyStatus`. An annotation of Rekindle has the stress test and its finding. Only
nodes with the latter are released: others have to be released by those that marked them. Pure: changes are merge patches.
"""

from collections.abc import Iterable, Mapping

from rekindle.model.bounds import note
from rekindle.model.cluster import Node
from rekindle.model.keys import ISOLATED, NODE_HEALTHY

UNHEALTHY = "UnHealthy"

Change = dict[str, str | None]
"""Change of a node's annotations. None removes an annotation."""


def isolated(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Returns the names of nodes that have either mark. No new pods are placed there, whichever party set the mark."""
    return tuple(sorted(node.metadata.name for node in nodes if is_isolated(node.metadata.annotations)))


def is_isolated(annotations: Mapping[str, str]) -> bool:
    return annotations.get(NODE_HEALTHY) == UNHEALTHY or ISOLATED in annotations


def isolation(annotations: Mapping[str, str], reason: str) -> Change:
    """Returns the change that isolates a node. Empty: it is isolated by `NodeHealthyStatus` already.

    Args:
        reason: why the node is isolated, such as `stress test of job default/gpt: aic found a fault (rank 3)`.
    """
    if annotations.get(NODE_HEALTHY) == UNHEALTHY:
        return {}
    return {NODE_HEALTHY: UNHEALTHY, ISOLATED: annotations.get(ISOLATED) or note(reason)}


def release(annotations: Mapping[str, str]) -> Change:
    """Returns the change that releases a node. Empty: it has no mark of Rekindle."""
    if ISOLATED not in annotations:
        return {}
    ours: Change = {ISOLATED: None}
    return {**ours, NODE_HEALTHY: None} if annotations.get(NODE_HEALTHY) == UNHEALTHY else ours


def refusal(name: str, annotations: Mapping[str, str]) -> str:
    """Returns why Rekindle cannot release a node. Empty: it can."""
    if ISOLATED in annotations:
        return ""
    if annotations.get(NODE_HEALTHY) == UNHEALTHY:
        return f"node {name} was not isolated by Rekindle: the user who set its annotation {NODE_HEALTHY} has to remove it"
    return f"node {name} is not isolated"
