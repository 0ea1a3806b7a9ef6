"""Nodes that are kept free of pods because a stress test found a fault there: how they are marked, and how they are released.

The contract's annotation `NodeHealthyStatus` says so to Volcano, and ours beside it says who wrote it and why. Only what has
ours is released: whoever else marks a node takes that back himself. Pure; who writes it passes the change on as a merge patch.
"""

from collections.abc import Iterable, Mapping

from rekindle.model.bounds import note
from rekindle.model.cluster import Node
from rekindle.model.keys import ISOLATED, NODE_HEALTHY

UNHEALTHY = "UnHealthy"

Change = dict[str, str | None]
"""Of annotations: None removes one."""


def isolated(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Names of nodes that have either mark: no new pod goes there, whoever set it."""
    return tuple(sorted(node.metadata.name for node in nodes if is_isolated(node.metadata.annotations)))


def is_isolated(annotations: Mapping[str, str]) -> bool:
    return annotations.get(NODE_HEALTHY) == UNHEALTHY or ISOLATED in annotations


def isolation(annotations: Mapping[str, str], reason: str) -> Change:
    """What has to be written on a node that is to be isolated; empty: it is.

    Args:
        reason: who isolates it and why, such as `stress test of job default/gpt: aic found a fault (rank 3)`.
    """
    if annotations.get(NODE_HEALTHY) == UNHEALTHY:
        return {}
    return {NODE_HEALTHY: UNHEALTHY, ISOLATED: annotations.get(ISOLATED) or note(reason)}


def release(annotations: Mapping[str, str]) -> Change:
    """What has to be written on a node that is to be released; empty: there is nothing of ours to take back."""
    if ISOLATED not in annotations:
        return {}
    ours: Change = {ISOLATED: None}
    return {**ours, NODE_HEALTHY: None} if annotations.get(NODE_HEALTHY) == UNHEALTHY else ours


def refusal(name: str, annotations: Mapping[str, str]) -> str:
    """Why a node cannot be released by us; empty: it can."""
    if ISOLATED in annotations:
        return ""
    if annotations.get(NODE_HEALTHY) == UNHEALTHY:
        return f"node {name} was not isolated by Rekindle: whoever set its annotation {NODE_HEALTHY} has to remove it"
    return f"node {name} is not isolated"
