"""Detects other controllers that decide when the pods of a job run, and what they write on pods.

Pure; used by readers and drivers.

A queueing controller resumes what a restart suspends, at once and with the nodes that it has assigned: until a restart goes
through its own objects, no job of one is restarted.
"""

from collections.abc import Mapping

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import Workload
from rekindle.model import other_controllers

KUEUE = "kueue.x-k8s.io/"
"""Prefix of the keys of all labels and annotations of Kueue."""

ASKED_OF_KUEUE = f"{KUEUE}podset-"
"""Prefix of the annotations by which an owner requests something of Kueue, such as the topology that all pods share."""

HOSTNAME = "kubernetes.io/hostname"

STAYS: Mapping[str, str] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of a pod that takes over a rank: autoscalers must not remove its node."""

GIVES_WAY: Mapping[str, str] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
"""Annotations of a standby: the autoscaler keeps no node for it."""


def queue_of(job: Workload) -> str:
    """Describes the component that decides when the job's pods run; empty: the job's controller, which follows our requests."""
    spec = job.object["spec"]
    manager = str(spec.get("managedBy") or spec.get("runPolicy", {}).get("managedBy") or "")
    specs = [template.body.get("spec", {}) for template in job.templates]
    gates = (str(gate["name"]) for spec in specs for gate in spec.get("schedulingGates", ()))
    return other_controllers.decides(
        "" if manager == job.kind.own_manager else manager, _queue_name(job) if job.kind.is_queued else "", gates
    )


def _queue_name(job: Workload) -> str:
    """Returns the queue name on the job's object; empty: it has none."""
    labels = job.metadata.get("labels", {})
    return str(labels.get(other_controllers.QUEUE_NAME) or job.annotation(other_controllers.QUEUE_NAME))


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
