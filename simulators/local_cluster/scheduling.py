"""Pure functions that choose the node of a pod. Messages are those of kube-scheduler, which users know."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice

from rekindle.model.cluster import Condition, JobObject, Node, Pod, condition_of
from rekindle.model.job import SubHealthStrategy
from rekindle.model.keys import SUB_HEALTHY_STRATEGY
from rekindle.policy.detection.isolation import is_isolated
from rekindle.policy.detection.pod_ranks import is_standby
from workers.training_job_phase import over

AVOIDING = {SubHealthStrategy.GRACE_EXIT, SubHealthStrategy.FORCE_EXIT, SubHealthStrategy.HOT_SWITCH}
"""Policies under which pods are never put on a sub-healthy node; an unknown value counts as `ignore`, as in Volcano."""


@dataclass(frozen=True)
class Placement:
    """Result of scheduling: a node, or the reason why there is none."""

    node: str = ""
    message: str = ""


def ready(node: Node) -> bool:
    condition = condition_of(node.status.conditions, "Ready")
    return condition is None or condition.status == "True"


def sub_healthy(node: Node) -> Condition | None:
    """Returns the condition that marks the node as sub-healthy; None: it is not."""
    condition = condition_of(node.status.conditions, "SubHealthy")
    return condition if condition and condition.status == "True" else None


def place(pod: Pod, job: JobObject, nodes: Iterable[Node], pods: Iterable[Pod]) -> Placement:
    """Chooses the node for a pod: healthy ones first, then the fewest pods of its job, the fewest pods, and the most free
    accelerators.

    Pods without accelerators (managers) begin with the last node: the loss of a node should not cost a rank and the manager.
    """
    candidates = list(nodes)
    placed = [other for other in pods if other.spec.node_name and not over(other)]
    used = Counter[str]()
    for other in placed:
        used[other.spec.node_name] += other.spec.accelerators
    reasons = [_refusal(pod, job, node, used[node.metadata.name]) for node in candidates]
    fits = [node for node, reason in zip(candidates, reasons, strict=True) if not reason]
    if not fits:
        return Placement(message=_unschedulable(reasons))
    working = [other for other in placed if other.spec.accelerators or not pod.spec.accelerators]
    if not pod.spec.accelerators:
        fits.reverse()
    best = min(fits, key=lambda node: _cost(node, pod, working, used[node.metadata.name]))
    return Placement(node=best.metadata.name)


def free_devices(pod: Pod, pods: Iterable[Pod]) -> tuple[str, ...]:
    """Returns the local ids of the accelerators that a pod gets on its node: the lowest that no other pod there has."""
    here = [other for other in pods if other.spec.node_name == pod.spec.node_name and not over(other)]
    taken = {device for other in here for device in other.status.devices}
    free = (str(number) for number in count() if str(number) not in taken)
    return tuple(islice(free, pod.spec.accelerators))


def in_the_way(pod: Pod, job: JobObject, nodes: Iterable[Node], pods: Iterable[Pod]) -> list[Pod]:
    """Returns the standbys, of any job, that have to end so that a pod without a node gets one: as few as possible.

    Empty if others on the same node already end, if it would not help, or if the pod itself is a standby.
    """
    if is_standby(pod):
        return []
    placed = [other for other in pods if other.spec.node_name and not over(other)]
    ways = [way for node in nodes if (way := _way(pod, job, node, placed)) is not None]
    return [standby for standby in min(ways, key=_still_there, default=[]) if not standby.metadata.deletion_timestamp]


def _way(pod: Pod, job: JobObject, node: Node, placed: Sequence[Pod]) -> list[Pod] | None:
    """Returns the standbys of this node that must end for the pod; None: the pod does not fit even then."""
    here = [other for other in placed if other.spec.node_name == node.metadata.name]
    standbys = [other for other in here if is_standby(other)]
    used, way = sum(other.spec.accelerators for other in here), list[Pod]()
    for standby in sorted(standbys, key=lambda one: one.metadata.deletion_timestamp is None):
        if not _refusal(pod, job, node, used):
            break
        way.append(standby)
        used -= standby.spec.accelerators
    return None if _refusal(pod, job, node, used) else way


def _still_there(way: Sequence[Pod]) -> int:
    return sum(1 for standby in way if not standby.metadata.deletion_timestamp)


def _refusal(pod: Pod, job: JobObject, node: Node, used: int) -> str:
    """Returns why the pod cannot run on this node; empty: it can."""
    avoids = job.metadata.labels.get(SUB_HEALTHY_STRATEGY) in AVOIDING
    against = {
        "node(s) were not ready": not ready(node),
        "node(s) were unschedulable": node.spec.unschedulable,
        "node(s) were sub-healthy": avoids and sub_healthy(node) is not None,
        "node(s) were isolated by a stress test": is_isolated(node.metadata.annotations),
        "node(s) didn't match Pod's node affinity": node.metadata.name in pod.spec.avoid_nodes,
        "Insufficient accelerators": pod.spec.accelerators > node.status.accelerators - used,
    }
    return next((reason for reason, holds in against.items() if holds), "")


def _cost(node: Node, pod: Pod, placed: Sequence[Pod], used: int) -> tuple[bool, int, int, int]:
    """Returns the sort key of a node for a pod, lowest first; of equal nodes the first one is chosen."""
    here = [other for other in placed if other.spec.node_name == node.metadata.name]
    same_job = sum(1 for other in here if other.metadata.owner_uid == pod.metadata.owner_uid)
    return sub_healthy(node) is not None, same_job, len(here), used - node.status.accelerators


def _unschedulable(reasons: Sequence[str]) -> str:
    counts = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{len(reasons)} nodes are available: {', '.join(counts)}."
