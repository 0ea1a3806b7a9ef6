"""Converts objects of the API server to the types of `rekindle.model.cluster`. Pure."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import accelerators, schemas
from activities.clusters.kubernetes.devices import devices_of, uuids_of
from activities.clusters.kubernetes.external_queues import queue_of
from activities.clusters.kubernetes.kind import MANAGER, Workload, rank_of
from rekindle.errors import BadInput
from rekindle.model import keys, own_annotations
from rekindle.model.bounds import cut
from rekindle.model.cluster import (
    Condition,
    ContainerState,
    JobObject,
    JobObjectStatus,
    JobPhase,
    JobSpec,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodPhase,
    PodRole,
    PodSpec,
    PodStatus,
    PodTemplate,
    Taint,
)
from rekindle.model.job import Trait, asks_for_graceful_tolerance
from rekindle.model.own_annotations import RANK_COUNTS, count_of
from rekindle.model.sizes import LONGEST_LABEL, LONGEST_NOTE, LONGEST_TEXT, size_problem
from rekindle.model.training_side import TrainingSide
from rekindle.policy.placement.spares import Occupant

SUCCEEDED = ("Complete", "Completed", "Succeeded")
"""Condition types and phases of a job that has succeeded."""
FAILED = ("Failed", "FailureTarget")
"""Condition types and phases of a job that has failed.

A Job has `FailureTarget` while its pods are deleted, before it has `Failed`.
"""

NEVER_READ = ("managedFields", "images", "volumesAttached", "volumesInUse", "lastHeartbeatTime")
"""Fields of nodes and of their conditions that are never read."""


OF_EVERY_POD = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that every pod tolerates for a while, as Kubernetes adds these tolerations by itself."""


# ---- nodes and pods


def node_of(raw: Object) -> Node:
    """Converts a node, without the reports of other components about it.

    Raises:
        BadInput: a field that is read is wrong.
    """
    lean = {part: _lean(value) for part, value in raw.items()}
    node = {"status": {}, "spec": {}, **schemas.checked(schemas.Node, lean)}
    amounts = node["status"].get("capacity") or node["status"].get("allocatable", {})  # includes broken ones
    conditions = _conditions(node["status"].get("conditions", ()))
    return Node(
        metadata=metadata_of(node),
        spec=NodeSpec(
            unschedulable=node["spec"].get("unschedulable", False), taints=tuple(map(_taint, node["spec"].get("taints", ())))
        ),
        status=NodeStatus(accelerators=accelerators.count(amounts), conditions=conditions),
    )


def shown_by(raw: Object) -> int:
    """Returns a hash of what the node shows without its heartbeats. Each of thousands of nodes sends one every few minutes."""
    parts = {part: _lean(value) for part, value in raw.items()}
    parts["metadata"].pop("resourceVersion", None)
    status = parts.get("status")
    if isinstance(status, dict) and isinstance(status.get("conditions"), list):
        status["conditions"] = [_lean(one) for one in status["conditions"]]
    return hash(repr(parts))


def _taint(raw: Object) -> Taint:
    added = _time(raw.get("timeAdded"))
    return Taint(key=raw["key"], value=raw.get("value", ""), effect=raw.get("effect", ""), time_added=added)


def _lean(part: Any) -> Any:
    """Returns the part without large fields that are never read.

    They would take most of the time of reading thousands of nodes.
    """
    return {key: value for key, value in part.items() if key not in NEVER_READ} if isinstance(part, dict) else part


def pod_of(raw: Object, job: Workload, rank_keys: Sequence[str]) -> Pod:
    """Converts a pod. Its rank, role and job are placed where the port expects them, wherever the pod carries them.

    Raises:
        BadInput: a field that is read is wrong.
    """
    pod = schemas.checked(schemas.Pod, raw)
    metadata = metadata_of(pod, job.uid)
    labels, annotations = dict(metadata.labels), dict(metadata.annotations)
    rank = rank_of(job, pod, rank_keys)
    if rank and labels.get(keys.REPLICA_TYPE) != MANAGER:
        annotations[keys.RANK_INDEX] = rank
    spec = pod["spec"]
    return Pod(
        metadata=metadata.model_copy(update={"labels": labels, "annotations": annotations}),
        spec=PodSpec(
            command=_command(spec),
            accelerators=sum(accelerators.count(_limits(container)) for container in spec["containers"]),
            node_name=spec.get("nodeName") or "",
            avoid_nodes=_avoided(spec),
            priority=spec.get("priority") or 0,
            demands=_demands(spec),
            gates=tuple(gate["name"] for gate in spec.get("schedulingGates", ())),
            tolerates=tuple(sorted({one["key"] for one in spec.get("tolerations", ()) if one.get("key")})),
            termination_grace_period_seconds=spec.get("terminationGracePeriodSeconds") or 0,
        ),
        status=_status(pod.get("status", {}), _training(spec["containers"])).model_copy(
            update={
                "devices": devices_of(annotations),
                "uuids": uuids_of(annotations, pod.get("status", {}).get("containerStatuses", ())),
            }
        ),
    )


def _demands(spec: Object) -> str:
    """Returns a digest of what the pod demands of its node, without the nodes that it avoids by name."""
    kinds = {name for container in spec["containers"] for name in _limits(container) if accelerators.is_accelerator(name)}
    if not kinds:
        return ""
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    labels = [term["matchExpressions"] for term in required.get("nodeSelectorTerms", ()) if term.get("matchExpressions")]
    tolerated = sorted({one["key"] for one in spec.get("tolerations", ()) if one.get("key")} - {*OF_EVERY_POD})
    what = [sorted(kinds), spec.get("nodeSelector", {}), labels, tolerated]
    return sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def occupant_of(raw: Object, job_id: str) -> Occupant:
    """Converts a pod of anybody to what it occupies.

    Args:
        job_id: job that the pod belongs to; empty: none, or it does not matter.

    Raises:
        BadInput: a field that is read is wrong.
    """
    pod = schemas.checked(schemas.Occupant, {part: _lean(raw.get(part)) for part in ("metadata", "spec")})
    annotations = pod["metadata"].get("annotations", {})
    return Occupant(
        node=pod["spec"].get("nodeName", ""),
        accelerators=sum(accelerators.count(_limits(container)) for container in pod["spec"]["containers"]),
        gives_way=annotations.get(keys.POD_TYPE) == PodRole.STANDBY and keys.RANK_INDEX not in annotations,
        backup_of=job_id if annotations.get(keys.POD_TYPE) == PodRole.BACKUP else "",
    )


def _avoided(spec: Object) -> tuple[str, ...]:
    """Returns the nodes that the pod must avoid, from the affinity that `pod_objects.placed` writes: each term lists them."""
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    fields = [one for one in terms[0].get("matchFields", ()) if one["operator"] == "NotIn"]
    return tuple(sorted(node for one in fields for node in one.get("values", ())))


class PodsOf:
    """Reads the pods of one job repeatedly. Each version of a pod is converted once."""

    def __init__(self, rank_keys: Sequence[str]) -> None:
        self._rank_keys = rank_keys
        self._read: dict[str, tuple[str, Pod]] = {}

    def read(self, job: Workload, pods: Iterable[Object]) -> list[Pod]:
        """Returns the pods in the given order."""
        known, self._read = self._read, {}
        for pod in pods:
            uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
            before = known.get(uid)
            same = before is not None and before[0] == version
            self._read[uid] = before if before and same else (version, pod_of(pod, job, self._rank_keys))
        return [pod for _, pod in self._read.values()]


def _training(containers: Sequence[Object]) -> frozenset[str]:
    """Returns the names of the containers that train: those with accelerators, or else the first one."""
    with_some = [one.get("name", "") for one in containers if accelerators.count(_limits(one))]
    return frozenset(with_some or [containers[0].get("name", "")])


def _status(status: Object, training: frozenset[str]) -> PodStatus:
    states = [container.get("state") or {} for container in status.get("containerStatuses", ())]
    ended: Object = next((state["terminated"] for state in states if state.get("terminated")), {})
    runs: Object = next((state["running"] for state in states if state.get("running")), {})
    phase = status.get("phase", "Pending")
    return PodStatus(
        phase=PodPhase.RUNNING if phase == "Unknown" else PodPhase(phase),  # the state of its node decides
        conditions=_conditions(status.get("conditions", ())),
        reason=status.get("reason") or ended.get("reason") or "",
        message=status.get("message") or ended.get("message") or "",
        waiting=_waiting(status),
        exit_code=ended.get("exitCode"),
        start_time=_time(runs.get("startedAt")),  # of the container, as a restarted container is another process
        containers=tuple(state for one in status.get("containerStatuses", ()) if (state := _container(one, training))),
    )


def _container(status: Object, training: frozenset[str]) -> ContainerState | None:
    """Returns the state of a container; None: it is simply running."""
    now = status.get("state") or {}
    waits, ended = now.get("waiting") or {}, now.get("terminated") or (status.get("lastState") or {}).get("terminated")
    restarts = status.get("restartCount", 0)
    if not (waits or ended or restarts):
        return None
    return ContainerState(
        name=status.get("name", ""),
        trains=status.get("name", "") in training,
        waiting=waits.get("reason", ""),
        exit_code=ended.get("exitCode") if ended else None,
        restarts=restarts,
        message=cut(waits.get("message") or (ended or {}).get("message") or "", LONGEST_NOTE),
    )


def _waiting(status: Object) -> str:
    """Returns why the first waiting container waits; init containers come first.

    The message is cut, as it may quote an answer of a megabyte.
    """
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    waits = (container.get("state", {}).get("waiting") for container in containers)
    first: Object = next((one for one in waits if one and one.get("reason") not in (None, "", "PodInitializing")), {})
    return ": ".join(words for words in (first.get("reason", ""), first.get("message", "")) if words)[:LONGEST_TEXT]


def metadata_of(thing: Object, owner_uid: str = "") -> ObjectMeta:
    metadata = thing["metadata"]
    return ObjectMeta(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata["uid"],
        labels=metadata.get("labels", {}),
        annotations=metadata.get("annotations", {}),
        owner_uid=owner_uid,
        resource_version=int(metadata.get("resourceVersion") or 0),
        creation_timestamp=_time(metadata.get("creationTimestamp")),
        deletion_timestamp=_time(metadata.get("deletionTimestamp")),
    )


def _conditions(conditions: Iterable[Object]) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=one["type"],
            status=one["status"] if one.get("status") in ("True", "False") else "Unknown",
            reason=one.get("reason") or "",
            message=one.get("message") or "",
            last_transition_time=_time(one.get("lastTransitionTime")),
        )
        for one in conditions
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _command(spec: Object) -> tuple[str, ...]:
    """Returns the command of the first container. If the image has the command, the image is returned instead."""
    container = spec["containers"][0]
    return (*container.get("command", ()), *container.get("args", ())) or (container.get("image", "?"),)


def _limits(container: Object) -> dict[str, Any]:
    limits: dict[str, Any] = container.get("resources", {}).get("limits", {})
    return limits


# ---- jobs


def is_managed(job: Workload) -> bool:
    """Returns whether the job asks for recoveries, by the labels and annotations of the contract or by ours."""
    labels, annotations = job.metadata.get("labels", {}), job.metadata.get("annotations", {})
    asks = labels.get(keys.MANAGED) == "true" or keys.SUB_HEALTHY_STRATEGY in labels or keys.RECOVER_STRATEGY in annotations
    return asks or job.kind.is_ours


def job_object_of(job: Workload, *, observe: bool) -> JobObject:
    """Returns the job as the watcher registers it.

    Raises:
        BadInput: a field, an annotation or a number is invalid.
    """
    job = job.checked()
    read = job.kind.read(job)
    if problem := size_problem(read.spec.pods, read.spec.ranks_per_pod):
        raise BadInput(f"spec: {problem}")
    status = JobObjectStatus(phase=_phase(job.object.get("status", {})))
    known = {"kind": job.kind.name, "traits": job.kind.traits, "status": status, "observe": observe, "failure": failure_of(job)}
    known |= {
        "queue": queue_of(job),
        "unmovable": job.kind.unmovable(job),
        "admitted": Trait.CONTROLLER_RECREATES not in job.kind.traits,
        "refilled": job.kind.count.makes_pods,
        "graceful_tolerance": any(_tolerates_gracefully(template.body) for template in job.workers),
    }
    return read.model_copy(update={**known, "suspended": job.is_held, "managed": is_managed(job)})


def _tolerates_gracefully(template: Object) -> bool:
    """Returns whether the pods of a template ask for graceful fault tolerance, which Rekindle does not combine with its modes."""
    metadata, containers = template.get("metadata", {}), template.get("spec", {}).get("containers", ())
    environments = ({entry.get("name", ""): str(entry.get("value", "")) for entry in one.get("env", ())} for one in containers)
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    return asks_for_graceful_tolerance(labels, annotations, *environments)


def foreign(job: Workload) -> JobObject:
    """Reads a job of a third-party kind, whose pods are found by the job's name."""
    if len(job.name) > LONGEST_LABEL:
        raise BadInput(
            f"metadata.name: {len(job.name)} characters are too many: its pods are found by a label with this name, "
            f"which has at most {LONGEST_LABEL}"
        )
    return as_its_pods_say(job)


def as_its_pods_say(job: Workload) -> JobObject:
    """Returns the job, with the number of ranks from its pods and everything else from its annotations."""
    if not job.workers:
        raise BadInput(f"spec: no pods carry ranks: every template is one of a {MANAGER}")
    template = job.workers[0].body
    spec = template.get("spec", {})
    return JobObject(
        metadata=metadata_of(job.object),
        spec=JobSpec(
            pods=sum(template.pods for template in job.workers),
            ranks_per_pod=_ranks_per_pod(job, spec),
            template=PodTemplate(command=_command(spec) if spec else ("runtime",)),
            training_side=job.annotation(keys.TRAINING_SIDE) or job.kind.usual_side,
            standbys=own_annotations.standbys(job.annotation(keys.STANDBYS)),
            limits={**_scheduled_within(job), **own_annotations.limits(job.annotation(keys.LIMITS))},
        ),
    )


def training_side_of(job: Workload) -> TrainingSide:
    """Returns the training side that the job's object names, even if other parts of the object are invalid.

    Raises:
        BadInput: the training side is unknown.
    """
    said = job.kind.said_side(job)
    try:
        return TrainingSide(str(said)) if said else job.kind.usual_side
    except ValueError as error:
        accepted = ", ".join(TrainingSide)
        raise BadInput(f"the training side of job {job.name}: {str(said)[:40]!r} is not accepted, use {accepted}") from error


def _ranks_per_pod(job: Workload, spec: Object) -> int:
    """Returns the number of ranks of a pod from its annotation, environment or accelerators: the first that is set; otherwise
    one."""
    if said := own_annotations.ranks_per_pod(job.annotation(keys.RANKS_PER_POD)):
        return said
    containers = spec.get("containers", ())
    environment = {entry["name"]: str(entry.get("value", "")) for one in containers for entry in one.get("env", ())}
    return (
        next((count for name in RANK_COUNTS if (count := count_of(environment.get(name, "")))), 0)
        or sum(accelerators.count(_limits(container)) for container in containers)
        or 1
    )


def _scheduled_within(job: Workload) -> dict[str, float | str]:
    """Reads the contract's own annotation for one of the limits. A value that the contract does not accept is ignored."""
    said = job.annotation(keys.WAIT_RESCHEDULE)
    return {"replacementScheduled": float(said)} if 30 <= count_of(said) <= 270 else {}


def _phase(status: Object) -> JobPhase:
    if (phase := status.get("phase")) in set(JobPhase):
        return JobPhase(phase)
    holds = {one["type"] for one in status.get("conditions", ()) if one.get("status") == "True"}
    if holds.intersection(SUCCEEDED):
        return JobPhase.SUCCEEDED
    return JobPhase.FAILED if holds.intersection(FAILED) else JobPhase.RUNNING


def failure_of(job: Workload) -> str:
    """Returns why the job's controller has given up the job and creates no more pods; empty: it has not."""
    failed = (
        one for one in job.object.get("status", {}).get("conditions", ()) if one["type"] in FAILED and one.get("status") == "True"
    )
    why = next((str(one.get("message") or one.get("reason") or "no reason is given") for one in failed), "")
    return cut(why, LONGEST_TEXT) or given_up_indexes(job)


def given_up_indexes(job: Workload) -> str:
    """Describes the indexes of a Job that failed as often as their own limit allows; empty: there is none.

    The Job continues, and no restart brings these indexes back.
    """
    indexes = job.object.get("status", {}).get("failedIndexes", "")
    return f"index {cut(indexes, LONGEST_NOTE)} has failed for good (backoffLimitPerIndex)" if indexes else ""
