"""Recognizes pods that the kubelet of their node has refused."""

from collections.abc import Iterable

from rekindle.model.cluster import PodStatus
from rekindle.model.fault import Fault, FaultKind

REFUSALS = ("UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "NodeName", "NodeUnschedulable", "TopologyAffinityError")
"""Reasons of pods that the kubelet of their node has refused, in addition to `OutOfcpu` and the like."""


def is_refusal(status: PodStatus) -> bool:
    """Returns whether the node of a pod has refused it, so that no container of the pod ever ran."""
    return status.exit_code is None and _is_refusal(status.reason)


def refusing(faults: Iterable[Fault]) -> tuple[str, ...]:
    """Returns the nodes that have refused pods, according to these faults."""
    return tuple(
        sorted({fault.node for fault in faults if fault.kind is FaultKind.POD and fault.node and _is_refusal(fault.code)})
    )


def _is_refusal(reason: str) -> bool:
    return reason.startswith("OutOf") or reason in REFUSALS
