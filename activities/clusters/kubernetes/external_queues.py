"""Detects other controllers that decide when the pods of a job run, and what they write on pods.

Pure; used by readers and drivers.

A queueing controller resumes what a restart suspends, at once and with the nodes that it has assigned: until a restart goes
through its own objects, no job of one is restarted.
"""

from collections.abc import Mapping

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Workload

KUEUE = "kueue.x-k8s.io/"
"""Prefix of the keys of all labels and annotations of Kueue."""

QUEUE_NAME = f"{KUEUE}queue-name"

ASKED_OF_KUEUE = f"{KUEUE}podset-"
"""Prefix of the annotations by which an owner requests something of Kueue, such as the topology that all pods share."""

HOSTNAME = "kubernetes.io/hostname"

STAYS: Mapping[str, str] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of a pod that takes over a rank: autoscalers must not remove its node."""

GIVES_WAY: Mapping[str, str] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
"""Annotations of a standby: the autoscaler keeps no node for it."""

LONGEST = 120
"""Maximum length of quoted text."""


def queue_of(job: Workload) -> str:
    """Describes the component that decides when the job's pods run; empty: the job's controller, which follows our requests."""
    spec = job.object["spec"]
    manager = str(spec.get("managedBy") or spec.get("runPolicy", {}).get("managedBy") or "")
    if manager and manager != job.kind.own_manager:
        return f"controller {manager[:LONGEST]!r} (managedBy)"
    if job.kind.is_queued and (queue := _queue_name(job)):
        return f"Kueue, queue {queue[:LONGEST]!r}"
    specs = [template.body.get("spec", {}) for template in job.templates]
    gates = [gate["name"] for spec in specs for gate in spec.get("schedulingGates", ())]
    return f"the controller that removes the scheduling gate {str(gates[0])[:LONGEST]!r}" if gates else ""


def _queue_name(job: Workload) -> str:
    """Returns the queue name on the job's object; empty: it has none."""
    labels = job.metadata.get("labels", {})
    return str(labels.get(QUEUE_NAME) or job.annotation(QUEUE_NAME))


def is_queues_own(key: str) -> bool:
    """Returns whether Kueue itself writes this label or annotation on a pod.

    What an owner requests in a template is different.
    """
    return key.startswith(KUEUE) and not key.startswith(ASKED_OF_KUEUE)


def unassigned(spec: Object, metadata: Object) -> Object:
    """Returns the spec of a pod without the node that Kueue's topology-aware scheduling has assigned."""
    keys = {*metadata.get("labels", {}), *metadata.get("annotations", {})}
    if HOSTNAME not in spec.get("nodeSelector", {}) or not any(key.startswith(KUEUE) for key in keys):
        return spec
    return {**spec, "nodeSelector": {key: value for key, value in spec["nodeSelector"].items() if key != HOSTNAME}}
