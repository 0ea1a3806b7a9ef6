"""Deletes the pods of ranks that have left a job that trains. Used by the modes that make a job smaller."""

from temporalio.exceptions import ActivityError

from rekindle.model.fault import Fault, not_among
from rekindle.policy.modes import faulty_ranks
from workflows import steps
from workflows.dialogue import cancel_and_forget
from workflows.mode import ModeWorkflow


async def deleted(mode: ModeWorkflow, pods: tuple[int, ...]) -> str:
    """Deletes the pods of these pod ranks and returns what is left to do; empty: nothing.

    Training goes on without them, so a failure is only noted. Their next pods are those with which the job grows again. A fault
    of other pods does not wait for a cluster that does not answer: the pods are deleted later then.
    """
    known, deleting = mode.faults, steps.delete_left(mode.context.job.id, pods)
    await mode.until(lambda: deleting.done() or _are_hit(mode, known, pods), None, "delete the pods that have left")
    if not deleting.done():
        cancel_and_forget(deleting)
        return "their pods are deleted later: a fault comes first"
    try:
        await deleting
    except ActivityError as error:
        return f"their pods could not be deleted: {error.cause}"
    return ""


def _are_hit(mode: ModeWorkflow, known: tuple[Fault, ...], left: tuple[int, ...]) -> bool:
    """Returns whether a fault of pods that train has come. The pods that have left are no matter, whatever is seen of them."""
    job = mode.context.job
    new = (rank for fault in not_among(mode.faults, known) for rank in faulty_ranks.ranks_of(job, fault))
    return bool(set(faulty_ranks.pods_of(job, new)) - set(left))
