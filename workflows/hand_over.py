"""What every hand-over from one pod to another does, whether training pauses for it or stands."""

from collections.abc import Collection

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.model.activity_values import Backup, Scheduled
from rekindle.model.job import Job
from rekindle.model.recovery import PodRef
from workflows import steps


def put_wrong(scheduled: Scheduled, backup: Backup, avoid: Collection[str]) -> str:
    """Why a backup pod cannot stay on its node; empty: it can. Where others choose the node, it may be one that is to be avoided:
    the pod would move on and on between two of them."""
    if scheduled.sub_healthy or scheduled.node in (*avoid, backup.old.node):
        return f"no spare: the backup pod was put on {scheduled.node}, which it is to avoid"
    return ""


async def is_gone(job: Job, pod: PodRef) -> bool:
    """False also where the cluster does not say."""
    try:
        return not await steps.await_gone(job.id, (pod,), workflow.now() + job.limits.old_pod_deleted)
    except ActivityError:
        return False


async def promoted(job: Job, backup: Backup) -> tuple[str, tuple[PodRef, ...]]:
    """The old pod is seen gone, and the marks of the backup go. Training runs: what fails here is a note, not a failure.

    Returns: the note, empty if there is none, and the pods that could not be deleted.
    """
    note = "" if await is_gone(job, backup.old) else await _deleted_again(job, backup)
    left_behind = (backup.old,) if note else ()
    try:
        await steps.promote(job.id, backup.old, backup.backup)
    except ActivityError as error:
        return f"clean-up is incomplete: {error.cause}", left_behind
    return note, left_behind


async def _deleted_again(job: Job, backup: Backup) -> str:
    """A pod that was promoted and the one before it must not carry one rank: the job could not be recovered any more."""
    try:
        await steps.swap(job.id, backup.old, backup.backup)
    except ActivityError as error:
        return f"the old pod {backup.old.name} is left behind: {error.cause}"
    return "" if await is_gone(job, backup.old) else f"pod {backup.old.name} is still terminating"
