"""Rules that both controllers of our own kind of job share: the local cluster's and, on Kubernetes, `workers.operator`."""

from collections.abc import Iterable

from rekindle.model import keys
from rekindle.model.cluster import JobObject, JobPhase, Pod, PodPhase, PodRole

FIRST = "0"
"""Generation of the first pods of a job."""

MANAGER_RESTARTS = 20
"""Largest number of restarts of a job's manager; beyond it the manager's own fault has to be examined."""


def role_of(pod: Pod) -> PodRole:
    if (said := pod.metadata.annotations.get(keys.POD_TYPE)) in (PodRole.BACKUP, PodRole.STANDBY):
        return PodRole(said)
    return PodRole(pod.metadata.labels.get(keys.REPLICA_TYPE, PodRole.WORKER))


def over(pod: Pod) -> bool:
    """Returns whether the pod has ended: its processes are gone and its accelerators free."""
    return pod.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def live(pod: Pod) -> bool:
    """Returns whether the pod has not ended and is not being deleted."""
    return not over(pod) and pod.metadata.deletion_timestamp is None


def phase_of(job: JobObject, pods: Iterable[Pod]) -> JobPhase:
    """Returns the job's phase: Succeeded, permanently, when a pod of every rank has succeeded; Failed when a worker has failed
    and none is left."""
    if job.status.phase is JobPhase.SUCCEEDED:
        return JobPhase.SUCCEEDED
    workers = [pod for pod in pods if role_of(pod) is PodRole.WORKER]
    done = {pod.metadata.annotations.get(keys.RANK_INDEX) for pod in workers if pod.status.phase is PodPhase.SUCCEEDED}
    if {str(rank) for rank in range(job.spec.pods)} <= done:
        return JobPhase.SUCCEEDED
    if any(pod.status.phase is PodPhase.RUNNING for pod in workers):
        return JobPhase.RUNNING
    failed = any(pod.status.phase is PodPhase.FAILED for pod in workers)
    return JobPhase.FAILED if failed and not any(live(pod) for pod in workers) else JobPhase.PENDING
