"""Computes the nodes that a restart avoids, and those whose pods cannot end gracefully."""

from collections.abc import Iterable

from rekindle.model.bounds import fitting
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import SubHealthStrategy

MOST_NODES = 500
"""Maximum number of nodes in a payload and in a pod's affinity. Sub-healthy ones come first, since the scheduler avoids lost
nodes by itself."""

MOST_BYTES = 48 * 1024


def to_avoid(faults: Iterable[Fault], policy: SubHealthStrategy, refusing: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns nodes that are sub-healthy, unless that is ignored, nodes that have refused pods of the job recently, and lost
    nodes.

    Nodes of pods or processes that have run and failed are not included: most of them fail by themselves, and a full cluster has
    no other node for them. Neither are cordoned nodes: a pod with an affinity against one could not use it after it is
    uncordoned. The scheduler avoids them, and so does the creator of the pod.

    Args:
        refusing: nodes that have refused pods; see `Refusing`.
    """
    known = [fault for fault in faults if not fault.is_cordon]
    ill = [] if policy is SubHealthStrategy.IGNORE else _nodes(known, FaultKind.SUB_HEALTH)
    return _some([*ill, *refusing, *_nodes(known, FaultKind.NODE)])


def lost(faults: Iterable[Fault]) -> tuple[str, ...]:
    """Returns the nodes on which no kubelet ends a pod gracefully. A node that is only faulty by a rule still answers."""
    return _some(_nodes((fault for fault in faults if fault.decided is None), FaultKind.NODE))


def _nodes(faults: Iterable[Fault], kind: FaultKind) -> list[str]:
    return sorted({fault.node for fault in faults if fault.kind is kind and fault.node})


def _some(nodes: Iterable[str]) -> tuple[str, ...]:
    return fitting(dict.fromkeys(nodes), MOST_BYTES, MOST_NODES)
