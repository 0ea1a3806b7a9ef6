"""Builders for jobs as a cluster shows them, in one line each: `view(pod(0), pod(1), nodes=(node(sick="slow"),))`."""

from datetime import UTC, datetime
from typing import Any, Literal

from rekindle.model import keys
from rekindle.model.cluster import (
    Condition,
    JobObject,
    JobObjectStatus,
    JobPhase,
    JobSpec,
    JobView,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodPhase,
    PodSpec,
    PodStatus,
    PodTemplate,
)
from rekindle.model.rules import Rules
from rekindle.policy.detection.trimming import LABELS, kept_of_node, kept_of_pod

NOISE = "example.com/noise"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(phase: JobPhase = JobPhase.RUNNING, *, pods: int = 2, each: int = 2, **wishes: Any) -> JobObject:
    """Returns a job, by default of two pods with two ranks each. Wishes: deleted, labels, annotations, limits, kind, observe."""
    deleted = NOW if wishes.pop("deleted", False) else None
    labels, annotations = wishes.pop("labels", {}), wishes.pop("annotations", {})
    spec = JobSpec(pods=pods, ranks_per_pod=each, template=PodTemplate(command=("train",)), limits=wishes.pop("limits", {}))
    metadata = ObjectMeta(name="demo", uid="job", labels=labels, annotations=annotations, deletion_timestamp=deleted)
    return JobObject(metadata=metadata, spec=spec, status=JobObjectStatus(phase=phase), **wishes)


def pod(rank: int | str | None = 0, uid: str = "", **wishes: Any) -> Pod:
    """Returns a pod, by default running on node-0, with its rank as it is written. Wishes: name, node, phase, backup, standby,
    deleted, generation, role, exit_code, reason, message, started, devices and uuids."""
    text = "" if rank is None else str(rank)
    kind = "backup" if wishes.get("backup") else "standby" if wishes.get("standby") else ""
    marks = {keys.POD_TYPE: kind} if kind else {}
    labels = {keys.GENERATION: wishes.get("generation", "0"), keys.REPLICA_TYPE: wishes.get("role", "worker")}
    phase = wishes.get("phase", PodPhase.RUNNING)
    exit_code = wishes.get("exit_code", 1 if phase is PodPhase.FAILED else None)
    return Pod(
        metadata=ObjectMeta(
            name=wishes.get("name", f"demo-worker-{text}"),
            uid=uid or f"pod-{text}",
            labels=labels,
            annotations=marks if rank is None else {**marks, keys.RANK_INDEX: text},
            owner_uid="job",
            deletion_timestamp=NOW if wishes.get("deleted") else None,
        ),
        spec=PodSpec(command=("train",), node_name=wishes.get("node", "node-0")),
        status=PodStatus(
            phase=phase,
            exit_code=exit_code,
            reason=wishes.get("reason", ""),
            message=wishes.get("message", ""),
            start_time=wishes.get("started"),
            devices=wishes.get("devices", ()),
            uuids=wishes.get("uuids", ()),
        ),
    )


def manager(uid: str = "manager", *, started: datetime | None = NOW, phase: PodPhase = PodPhase.RUNNING, **wishes: Any) -> Pod:
    return pod(None, uid, name="demo-manager-0", role="manager", started=started, phase=phase, **wishes)


def node(
    name: str = "node-0",
    *,
    sick: str = "",
    ready: Literal["True", "False", "Unknown"] = "True",
    since: datetime = NOW,
    words: str = "",
) -> Node:
    """Returns a node, ready and healthy unless `sick` is the reason of a sub-health."""
    reason = "" if ready == "True" else "NodeLost"
    conditions = [Condition(type="Ready", status=ready, reason=reason, message=words, last_transition_time=since)]
    if sick:
        conditions.append(
            Condition(type="SubHealthy", status="True", reason=sick, message=words or "slow", last_transition_time=since)
        )
    metadata = ObjectMeta(name=name, uid=f"uid-of-{name}")
    return Node(metadata=metadata, status=NodeStatus(accelerators=8, conditions=tuple(conditions)))


def view(*pods: Pod, nodes: tuple[Node, ...] = (), of: JobObject | None = None) -> JobView:
    return JobView(job=of or job(), pods=pods, nodes=nodes or (node(),))


def kept(seen: JobView, rules: Rules) -> JobView:
    """Returns the job as the watcher stores it, from objects with additional data that it does not store."""
    pods = tuple(kept_of_pod(_adorned(one), rules) for one in seen.pods)
    nodes = tuple(kept_of_node(one, rules) for one in seen.nodes)
    assert all(one.metadata.labels.keys() <= {*LABELS} and NOISE not in one.metadata.annotations for one in pods)
    return seen.model_copy(update={"pods": pods, "nodes": nodes})


def _adorned(pod: Pod) -> Pod:
    """Returns the pod with labels and annotations of other systems."""
    more = {key: {**getattr(pod.metadata, key), NOISE: "x"} for key in ("labels", "annotations")}
    return pod.model_copy(update={"metadata": pod.metadata.model_copy(update=more)})
