"""PyTorchJob of Kubeflow's training operator, which counts pods by labels alone, and never deletes a surplus pod."""

from activities.clusters.api_server import Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.kind import REPLICA_INDEX, Indexing, Kind, Workload, of_replicas
from activities.clusters.kubernetes.objects import foreign
from activities.clusters.kubernetes.pod_ownership import ByLabels
from activities.clusters.kubernetes.restarting import Suspending
from rekindle.model.keys import JOB_NAME, REPLICA_TYPE

RETRYABLE = 128
"""Lowest exit code of a signal. With the policy `ExitCode`, the operator retries pods with such codes."""


def _fails_with(job: Workload, pod: Object) -> str:
    """Judges a failed pod as the operator does, by the `restartPolicy` of its replicas."""
    kind = pod["metadata"].get("labels", {}).get(REPLICA_TYPE, "")
    replicas = job.object["spec"]["pytorchReplicaSpecs"]
    policy = next((one.get("restartPolicy") for name, one in replicas.items() if name.lower() == kind), None)
    codes = [
        status["state"]["terminated"].get("exitCode", 0)
        for status in pod["status"].get("containerStatuses", ())
        if status.get("state", {}).get("terminated")
    ]
    is_permanent = policy == "ExitCode" and any(0 < code < RETRYABLE for code in codes)
    if policy == "Never" or is_permanent:
        return f"pod {pod['metadata']['name']} failed, and its restartPolicy is {policy}"
    return ""


PYTORCH_JOB = Kind(
    name="PyTorchJob",
    api="/apis/kubeflow.org/v1",
    plural="pytorchjobs",
    pod_label=JOB_NAME,
    shape=schemas.Job[schemas.PyTorchJob],
    templates=of_replicas("pytorchReplicaSpecs", "Master"),
    read=foreign,
    restart=Suspending(("runPolicy", "suspend")),
    count=ByLabels(("training.kubeflow.org/operator-name",), lets_two_be=True),
    fails_with=_fails_with,
    indexing=Indexing((REPLICA_INDEX,)),
    own_manager="kubeflow.org/training-operator",
)
