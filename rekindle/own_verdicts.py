"""Verdict of a mode that somebody has asked for, as soon as it has ended: its front answers when all that followed it has
ended, too.

Platforms are told so on the wire, as ClusterD tells them. Imports no workflow.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.errors import RekindleError
from rekindle.model.recovery import Mode, Verdict

LOOK = 0.2
"""Seconds between two looks at a job whose mode has not begun."""

Whole = TypeVar("Whole")


async def own_verdicts(rekindle: Rekindle, job_id: str, front: str, mode: Mode) -> AsyncIterator[Verdict]:
    """Each time that the job runs the mode for this front. It never ends: who waits for the whole gives it up.

    Args:
        front: id of the workflow that asks the job.
    """
    seen = {""}
    while True:
        child = await _child(rekindle, job_id, front, mode)
        if child not in seen:
            seen.add(child)
            if verdict := await _verdict(rekindle, child):
                yield verdict
        await asyncio.sleep(LOOK)


async def first_word(
    own: AsyncIterator[Verdict], whole: Coroutine[object, object, Whole], is_final: Callable[[Verdict], bool]
) -> Verdict | Whole:
    """Returns the first verdict of its own that is final, or the whole, whichever is there first."""
    hearing, waiting = asyncio.create_task(_final(own, is_final)), asyncio.create_task(whole)
    try:
        await asyncio.wait({hearing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return await (hearing if hearing.done() else waiting)
    finally:
        hearing.cancel()
        waiting.cancel()
        await asyncio.gather(hearing, waiting, return_exceptions=True)


async def _final(own: AsyncIterator[Verdict], is_final: Callable[[Verdict], bool]) -> Verdict:
    async for verdict in own:
        if is_final(verdict):
            return verdict
    raise AssertionError("it never ends")


async def _child(rekindle: Rekindle, job_id: str, front: str, mode: Mode) -> str:
    """Workflow id of the recovery that runs the mode, or has run it before what runs now; empty: none does for this front."""
    try:
        status = await rekindle.status(job_id)
    except RekindleError:
        return ""
    number = ids.incident_of(status.recovery) if status.front == front else 0
    return ids.recovery_workflow(status.state.job, number, mode) if number else ""


async def _verdict(rekindle: Rekindle, child: str) -> Verdict | None:
    """Returns the verdict; None: it was cancelled or terminated, which the front tells, or nobody knows it."""
    handle: WorkflowHandle[object, Verdict] = rekindle.temporal.get_workflow_handle(child, result_type=Verdict)
    try:
        return await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        given_up = isinstance(cause, ApplicationError) and cause.type == ids.ErrorTypes.GIVEN_UP
        return Verdict.model_validate(cause.details[0]) if given_up and isinstance(cause, ApplicationError) else None
    except RPCError:
        return None
