"""Which nodes a restart keeps away from, and on which nothing answers any more."""

from collections.abc import Iterable

from rekindle.model.bounds import fitting
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import SubHealthStrategy

MOST_NODES = 500
"""Nodes that are named in a payload and in a pod's affinity. The scheduler keeps away from lost nodes by itself, so sub-healthy
ones come first."""

MOST_BYTES = 48 * 1024


def to_avoid(faults: Iterable[Fault], policy: SubHealthStrategy) -> tuple[str, ...]:
    """Nodes that are sub-healthy, unless that is ignored, and then nodes that are lost. A failed pod or process says nothing of
    its node: most of them fail by themselves, and a full cluster has no other node for them. A pod that is to keep off a cordoned
    node could not be put there either when that is over: it is left to the scheduler, and to who makes the pod."""
    known = [fault for fault in faults if not fault.is_cordon]
    ill = [] if policy is SubHealthStrategy.IGNORE else _nodes(known, FaultKind.SUB_HEALTH)
    return _some([*ill, *_nodes(known, FaultKind.NODE)])


def lost(faults: Iterable[Fault]) -> tuple[str, ...]:
    """Nodes on which nobody ends a pod gracefully. One that is broken by a rule answers still."""
    return _some(_nodes((fault for fault in faults if fault.decided is None), FaultKind.NODE))


def _nodes(faults: Iterable[Fault], kind: FaultKind) -> list[str]:
    return sorted({fault.node for fault in faults if fault.kind is kind and fault.node})


def _some(nodes: Iterable[str]) -> tuple[str, ...]:
    return fitting(dict.fromkeys(nodes), MOST_BYTES, MOST_NODES)
