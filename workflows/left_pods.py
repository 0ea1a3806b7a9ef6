"""Deletes the pods of ranks that have left a job that trains. Used by the modes that make a job smaller."""

from temporalio.exceptions import ActivityError

from workflows import steps


async def deleted(job_id: str, pods: tuple[int, ...]) -> str:
    """Deletes the pods of these pod ranks and returns what is left to do; empty: nothing.

    Training goes on without them, so a failure is only noted. Their next pods are those with which the job grows again.
    """
    try:
        await steps.delete_left(job_id, pods)
    except ActivityError as error:
        return f"their pods could not be deleted: {error.cause}"
    return ""
