"""Steps that every hand-over from one pod to another has, whether training pauses for it or has stopped."""

from collections.abc import Collection

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from rekindle.errors import SpareTaken
from rekindle.model.activities.pods import Scheduled
from rekindle.model.job import Job
from rekindle.model.situation import PodRef
from workflows import steps


def put_wrong(scheduled: Scheduled, avoid: Collection[str]) -> str:
    """Returns why a backup pod cannot stay on its node; empty: it can.

    If another component chooses the node, it may choose one that is to be avoided, and the pod would move back and forth between
    two such nodes.
    """
    if scheduled.sub_healthy or scheduled.node in avoid:
        return f"no spare: the backup pod was put on {scheduled.node}, which it is to avoid"
    return ""


def gated(scheduled: Scheduled, within: str) -> str:
    """Returns that a scheduling gate is the reason why a backup pod has no node; empty: no gate is."""
    if not scheduled.gate or scheduled.node:
        return ""
    return f"the backup pod waits behind the scheduling gate {scheduled.gate}, which was not removed within {within}"


def why_not_made(error: ActivityError) -> str:
    """Returns why a pod was not created. That another job gets the spare node is said in its own words."""
    return error.cause.message if is_spare_taken(error) and isinstance(error.cause, ApplicationError) else str(error.cause)


def is_spare_taken(error: ActivityError) -> bool:
    """Returns whether no pod was created because another job gets the spare node."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == SpareTaken.type


def without_node(scheduled: Scheduled, before: str) -> str:
    """Returns why a backup pod has no node, and which recoveries have asked for spare nodes before."""
    return f"{scheduled.message}; {before}" if before else scheduled.message


async def is_gone(job: Job, pod: PodRef) -> bool:
    """Returns whether the old pod is gone; False also if the cluster does not answer."""
    try:
        return not await steps.await_gone(job.id, (pod,), workflow.now() + job.limits.old_pod_deleted)
    except ActivityError:
        return False


async def promoted(job: Job, old: PodRef | None, backup: PodRef) -> tuple[str, tuple[PodRef, ...]]:
    """Waits for the end of the old pod, if there is one, and removes the marks of the backup.

    Training runs, so a failure here is only noted.

    Returns:
        the note, empty if there is none, and the pods that could not be deleted.
    """
    note = "" if old is None or await is_gone(job, old) else await _deleted_again(job, old, backup)
    left_behind = (old,) if old and note else ()
    try:
        await steps.promote(job.id, old, backup)
    except ActivityError as error:
        return f"clean-up is incomplete: {error.cause}", left_behind
    return note, left_behind


async def _deleted_again(job: Job, old: PodRef, backup: PodRef) -> str:
    """Deletes the old pod again. If it and the promoted pod had the same rank, the job could not be recovered any more."""
    try:
        await steps.swap(job.id, old, backup)
    except ActivityError as error:
        return f"the old pod {old.name} is left behind: {error.cause}"
    return "" if await is_gone(job, old) else f"pod {old.name} is still terminating"
