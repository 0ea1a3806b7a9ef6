"""Verdict of a requested mode as soon as that mode has ended.

Its front answers only when everything that followed the mode has ended too.

Platforms get this verdict on the wire, as from ClusterD. Imports no workflow.
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
from rekindle.model.mode import Mode
from rekindle.model.verdict import Verdict

LOOK = 0.2
"""Seconds between two looks at a job whose mode has not begun."""

Whole = TypeVar("Whole")


async def own_verdicts(rekindle: Rekindle, job_id: str, front: str, mode: Mode) -> AsyncIterator[Verdict]:
    """Yields a verdict each time that the job has run the mode for this front. It never ends; the caller stops it.

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
    """Returns the mode's own final verdict, or that of the front, whichever comes first."""
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
    """Returns the workflow id of the recovery that runs the mode, or has run it before the present one; empty: none for this
    front."""
    try:
        status = await rekindle.status(job_id)
    except RekindleError:
        return ""
    number = ids.incident_of(status.recovery) if status.front == front else 0
    return ids.recovery_workflow(status.state.job, number, mode) if number else ""


async def _verdict(rekindle: Rekindle, child: str) -> Verdict | None:
    """Returns the verdict; None: the mode was cancelled or terminated, which the front reports, or the verdict is unknown."""
    handle: WorkflowHandle[object, Verdict] = rekindle.temporal.get_workflow_handle(child, result_type=Verdict)
    try:
        return await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        given_up = isinstance(cause, ApplicationError) and cause.type == ids.ErrorTypes.GIVEN_UP
        return Verdict.model_validate(cause.details[0]) if given_up and isinstance(cause, ApplicationError) else None
    except RPCError:
        return None
