"""Who else decides when the pods of a job run, and what such a controller writes on pods. Pure; for the readers and the drivers.

A queueing controller resumes what a restart suspends, at once and with the nodes that it has assigned: until a restart goes
through its own objects, no job of one is restarted.
"""

from collections.abc import Mapping

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Workload

KUEUE = "kueue.x-k8s.io/"
"""What the keys of all its labels and annotations begin with."""

QUEUE_NAME = f"{KUEUE}queue-name"

ASKED_OF_KUEUE = f"{KUEUE}podset-"
"""Prefixes of the keys of an owner's wishes, such as the topology that all pods share."""

HOSTNAME = "kubernetes.io/hostname"

STAYS: Mapping[str, str] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of a pod that takes a rank over: whoever makes clusters smaller leaves its node alone."""

GIVES_WAY: Mapping[str, str] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
"""Of a standby: no node is kept for its sake."""

LONGEST = 120
"""Characters of what is quoted."""


def queue_of(job: Workload) -> str:
    """Who decides when the job's pods run, in words; empty: its own controller, which does what we ask."""
    spec = job.object["spec"]
    manager = str(spec.get("managedBy") or spec.get("runPolicy", {}).get("managedBy") or "")
    if manager and manager != job.kind.own_manager:
        return f"controller {manager[:LONGEST]!r} (managedBy)"
    if job.kind.is_queued and (queue := _queue_name(job)):
        return f"Kueue, queue {queue[:LONGEST]!r}"
    specs = [template.body.get("spec", {}) for template in job.templates]
    gates = [gate["name"] for spec in specs for gate in spec.get("schedulingGates", ())]
    return f"whoever removes the scheduling gate {str(gates[0])[:LONGEST]!r}" if gates else ""


def _queue_name(job: Workload) -> str:
    """On the object."""
    labels = job.metadata.get("labels", {})
    return str(labels.get(QUEUE_NAME) or job.annotation(QUEUE_NAME))


def is_queues_own(key: str) -> bool:
    """Tells whether Kueue writes this label or annotation on a pod. What an owner asks of it in a template is another thing."""
    return key.startswith(KUEUE) and not key.startswith(ASKED_OF_KUEUE)


def unassigned(spec: Object, metadata: Object) -> Object:
    """The spec of a pod without the very node that Kueue's topology-aware scheduling has written into it."""
    keys = {*metadata.get("labels", {}), *metadata.get("annotations", {})}
    if HOSTNAME not in spec.get("nodeSelector", {}) or not any(key.startswith(KUEUE) for key in keys):
        return spec
    return {**spec, "nodeSelector": {key: value for key, value in spec["nodeSelector"].items() if key != HOSTNAME}}
