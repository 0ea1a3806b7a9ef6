"""Waits for the decisions of a job's controllers about failed pods. The driver does so before it changes pods of a job.

The outcome of an owner's policy (`podFailurePolicy`, `backoffLimit`, a `restartPolicy`) must not depend on a race between a
recovery and the controller. So the controller is waited for, if it marks pods that it has counted.
"""

from collections.abc import Sequence

from activities.clusters.api_server import Object
from activities.clusters.kubernetes.kind import PodAccess, Workload
from activities.clusters.kubernetes.objects import failure_of, given_up_indexes
from activities.clusters.kubernetes.pod_objects import controller_of
from activities.clusters.kubernetes.pod_operations import CONTROLLER_LIMIT
from rekindle.errors import Conflict, Invalid


async def decided(ops: PodAccess, job: Workload, pods: Sequence[Object]) -> tuple[Workload, Sequence[Object]]:
    """Returns the job and its pods when each failed pod was counted. A job that failed is not left suspended.

    The controller of a suspended job ends its pods and counts none of them as a failure, however they exit.

    Raises:
        Invalid: the job has failed for good, or a pod of it is never made again. Conflict: its controllers have not decided yet.
    """
    if any(_is_uncounted(job, pod) for pod in pods):
        pods = await ops.reader.until(job, lambda now: not any(_is_uncounted(job, pod) for pod in now), CONTROLLER_LIMIT)
        if uncounted := next((pod["metadata"]["name"] for pod in pods if _is_uncounted(job, pod)), ""):
            raise Conflict(f"the controller of {job.kind.name} {job.name} has not counted pod {uncounted} as failed yet")
        job = await ops.reader.job(job.uid)
    counted = (pod for pod in pods if _failed(pod) and controller_of(pod))
    pod_failure = next((why for pod in counted if (why := job.kind.fails_with(job, pod))), "")
    if pod_failure:
        job = await ops.reader.job(job.uid)  # a suspension after the first read may have ended the pod
    failure = failure_of(job) or ("" if job.is_suspended else pod_failure)
    if failure:
        await job.kind.restart.let_go(ops, job)
        raise Invalid(f"{job.kind.name} {job.name} has failed for good: {failure}")
    for part in await ops.reader.parts(job):
        if indexes := given_up_indexes(part):
            await job.kind.restart.let_go(ops, job)
            raise Invalid(f"{part.kind.name} {part.name} of {job.kind.name} {job.name} makes no more pods: {indexes}")
        if failure := failure_of(part):
            raise Conflict(
                f"{part.kind.name} {part.name} has failed, and what becomes of {job.kind.name} {job.name} "
                f"is not decided yet: {failure}"
            )
    return job, pods


def _failed(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Failed")


def _is_uncounted(job: Workload, pod: Object) -> bool:
    """Returns whether the controller counts this pod and has yet to react to its failure."""
    finalizers = pod["metadata"].get("finalizers", ())
    return _failed(pod) and controller_of(pod) is not None and any(one in finalizers for one in job.kind.count.finalizers)
