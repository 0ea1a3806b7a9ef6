"""The gateway's questions to the workflows of a job, repeated until they are stored or refused."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from rekindle.errors import Unavailable
from rekindle.ids import ErrorTypes, Updates, job_workflow, recovery_workflow
from rekindle.model.base import Value
from rekindle.model.recovery import Receipt, Report

RPC_TIMEOUT = timedelta(seconds=3)
PATIENCE = 25.0
"""Seconds that a client is kept waiting while Temporal does not answer: the call may still be carried out, so it is repeated."""

BETWEEN_MODES = 5.0
"""Seconds that a report may wait between two modes."""

STORED_LAST = "AcceptedUpdateCompletedWorkflow"
"""The update was accepted in the workflow's very last task: its verdict carries the report on."""

AGAIN = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,  # the workflow closed, or continued as new, before it looked at the update
)

logger = logging.getLogger("gateway")


class Rejected(Exception):
    """A workflow refused the update, or there is no such workflow."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Jobs:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._in_flight: dict[str, tuple[asyncio.Lock, int]] = {}
        self._storing: set[asyncio.Task[Receipt]] = set()

    async def ask(self, job_id: str, update: str, argument: Value | str | None = None) -> Receipt:
        """An update of the job's own workflow.

        Raises:
            Rejected: with the workflow's reason, or `job.unknown`.
            Unavailable: Temporal did not answer in time.
        """
        return await self._kept(self._update(job_workflow(job_id), job_id, update, argument, uuid.uuid4().hex))

    async def report(self, job_id: str, report: Report) -> Receipt:
        """A report to whatever recovery runs; at most one of a job is in flight, so that their order is kept."""
        return await self._kept(self._next_report(job_id, report))

    async def settle(self, within: float) -> None:
        """Waits for messages that are being stored; ends those that are not stored in time."""
        storing = set(self._storing)
        if storing:
            _, late = await asyncio.wait(storing, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _kept(self, storing: Coroutine[object, object, Receipt]) -> Receipt:
        """A message that arrived is stored, even if its sender hangs up meanwhile: it will not send it again."""
        task = asyncio.create_task(storing)
        self._storing.add(task)
        task.add_done_callback(self._stored)
        return await asyncio.shield(task)

    def _stored(self, task: asyncio.Task[Receipt]) -> None:
        self._storing.discard(task)
        if not task.cancelled() and task.exception():
            logger.debug("not stored", extra={"error": str(task.exception())})

    async def _next_report(self, job_id: str, report: Report) -> Receipt:
        async with self._one_at_a_time(job_id):
            return await self._report(job_id, report, uuid.uuid4().hex)

    async def _report(self, job_id: str, report: Report, update_id: str) -> Receipt:
        deadline = asyncio.get_running_loop().time() + BETWEEN_MODES
        while True:
            try:
                return await self._update(recovery_workflow(job_id), job_id, Updates.REPORT, report, update_id)
            except Rejected as rejected:
                if rejected.kind != ErrorTypes.JOB_UNKNOWN:
                    raise
            try:
                return await self._update(job_workflow(job_id), job_id, Updates.REPORT, report, update_id)
            except Rejected as rejected:
                if rejected.kind != ErrorTypes.BETWEEN_MODES or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _update(self, workflow_id: str, job_id: str, update: str, argument: Value | str | None, update_id: str) -> Receipt:
        handle = self._client.get_workflow_handle(workflow_id)
        arguments = [] if argument is None else [argument]
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                receipt: Receipt = await handle.execute_update(
                    update, args=arguments, id=update_id, result_type=Receipt, rpc_timeout=RPC_TIMEOUT
                )
                return receipt
            except WorkflowUpdateFailedError as error:
                if not isinstance(error.cause, ApplicationError):
                    raise Rejected("", str(error.cause)) from error
                if error.cause.type == STORED_LAST:
                    return Receipt(info="received in the last moment of a mode")
                raise Rejected(error.cause.type or "", error.cause.message) from error
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
                self._raise_if_cancelled()  # the SDK turns a cancellation of ours into an error of the call
                self._raise_if_refused(error, job_id)
                self._raise_unless_again(error, deadline)
            await asyncio.sleep(0.2)

    @staticmethod
    def _raise_if_cancelled() -> None:
        task = asyncio.current_task()
        if task and task.cancelling():
            raise asyncio.CancelledError

    @staticmethod
    def _raise_if_refused(error: Exception, job_id: str) -> None:
        status = error.status if isinstance(error, RPCError) else None
        if status is RPCStatusCode.NOT_FOUND:
            raise Rejected(ErrorTypes.JOB_UNKNOWN, f"jobId={job_id} is not a registered job") from error
        if status is RPCStatusCode.INVALID_ARGUMENT:
            raise Rejected(ErrorTypes.REQUEST_INVALID, f"the message cannot be stored: {error}") from error

    @staticmethod
    def _raise_unless_again(error: Exception, deadline: float) -> None:
        again = not isinstance(error, RPCError) or error.status in AGAIN
        if not again or asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"Temporal did not take the message: {error}") from error
        logger.warning("Temporal does not answer, trying again", extra={"error": str(error)})

    @asynccontextmanager
    async def _one_at_a_time(self, job_id: str) -> AsyncIterator[None]:
        lock, users = self._in_flight.get(job_id, (asyncio.Lock(), 0))
        self._in_flight[job_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._in_flight.pop(job_id)
            if users > 1:
                self._in_flight[job_id] = (lock, users - 1)
