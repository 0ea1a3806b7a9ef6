"""Sends the gateway's updates and queries to the workflows of jobs, and repeats them until they are stored or refused."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import QueryRejectCondition
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from rekindle.errors import Unavailable
from rekindle.ids import ErrorTypes, Queries, Updates, Workflows, job_workflow
from rekindle.model.base import Value
from rekindle.model.dialogue import Receipt, Report
from rekindle.model.fault import FaultReport
from rekindle.model.state import Contact, JobStatus
from rekindle.policy.modes import job_phase
from rekindle.temporal import Attributes, in_words, living
from workers.gateway.concurrency import Lanes

RPC_TIMEOUT = timedelta(seconds=3)
SLOW = 1.5
"""Seconds from which on a call shows that Temporal is busy, and fewer are made at once. Twice as long, and it is given up."""

PATIENCE = 25.0
"""Seconds for which a call is repeated while Temporal does not answer, since it may still be carried out; the client waits."""

LISTING = 3.0
"""Time limit in seconds for the list of jobs when a gateway starts, for which its clients wait."""

TRAINING = (
    f"WorkflowType = '{Workflows.TRAINING_JOB}' AND ExecutionStatus = 'Running'"
    f" AND (RekindlePhase STARTS_WITH '{job_phase.TRAINING}'"
    f" OR RekindlePhase IN ('{job_phase.GIVEN_UP}', '{job_phase.ASKING}', '{job_phase.HELD}'))"
)

BETWEEN_MODES = 5.0
"""Seconds that a report may wait between the end of one mode and the start of the next."""

STARTS = 60.0
"""Seconds that a report waits for a recovery that a busy server has not started yet: its first order may come with the receipt of
the faults."""

REGISTERED_AGAIN = 60.0
"""Seconds that a report waits for a workflow that is lost. The watcher looks for such every 30 s."""

STORED_LAST = "AcceptedUpdateCompletedWorkflow"
"""Error type of an update that was accepted in the workflow's last task: the report is carried on in its verdict."""

NOT_LOOKED_AT = "UnprocessedUpdate"
"""Error type of an update that a worker, which was about to stop, has not looked at. The server rejects it. Source: tried."""

AGAIN = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,  # the workflow closed, or continued as new, before it looked at the update
)

UNREADABLE = (ValueError, TypeError, LookupError, RuntimeError)
"""Errors that Temporal's client raises for a payload that is none of ours."""

Answer = TypeVar("Answer")

logger = logging.getLogger("gateway")


class Rejected(Exception):
    """A workflow refused the update, or the workflow does not exist."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Row(NamedTuple):
    """A job in Temporal's list. If its row differs from an earlier one, the job has changed."""

    run: str
    phase: str
    verdict: str
    since: datetime


class Jobs:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._reports = Lanes()
        self._storing: set[asyncio.Task[Receipt]] = set()

    async def ask(self, job_id: str, update: str, argument: Value | str | None = None) -> Receipt:
        """Sends an update to the job's workflow.

        Raises:
            Rejected: with the workflow's reason, or `job.unknown`.
            Unavailable: Temporal did not answer in time.
        """
        return await self._kept(self._update(job_workflow(job_id), job_id, update, argument, uuid.uuid4().hex))

    async def training(self) -> list[str]:
        """Returns the ids of the jobs that train, as Temporal lists them; jobs that are not listed in time are missing."""
        found: list[str] = []
        try:
            async with asyncio.timeout(LISTING):
                found.extend([run.id.removeprefix(job_workflow("")) async for run in self._client.list_workflows(TRAINING)])
        except (RPCError, TimeoutError) as error:
            logger.warning("jobs not listed in time", extra={"error": str(error)})
        return found

    async def contact(self, job_id: str) -> Contact:
        """Queries the job's workflow for its contact data; nothing is stored.

        Raises:
            Rejected: `job.unknown`. Unavailable: Temporal did not answer in time.
        """
        contact = await self._query(job_id, Queries.CONTACT, Contact, QueryRejectCondition.NOT_OPEN)
        if contact.ended:
            raise unknown(job_id)
        return contact

    async def status(self, job_id: str, patience: float = PATIENCE) -> JobStatus:
        """Returns the whole state of a job, also of one that has ended, but not if its workflow was terminated.

        Args:
            patience: seconds within which a question without an answer is repeated.

        Raises what `contact` does.
        """
        return await self._query(job_id, Queries.STATUS, JobStatus, QueryRejectCondition.NOT_COMPLETED_CLEANLY, patience)

    async def rows(self) -> dict[str, Row]:
        """Returns the jobs that live, by id, as Temporal lists them; the list is slightly delayed.

        Raises:
            Unavailable: Temporal does not answer.
        """
        found: dict[str, Row] = {}
        try:
            async for run in self._client.list_workflows(living(Workflows.TRAINING_JOB), rpc_timeout=RPC_TIMEOUT):
                said, job_id = run.typed_search_attributes, run.id.removeprefix(job_workflow(""))
                if job_id not in found or run.status is WorkflowExecutionStatus.RUNNING:
                    phase, verdict = said.get(Attributes.PHASE) or "", said.get(Attributes.VERDICT) or ""
                    found[job_id] = Row(run.run_id, phase, verdict, run.start_time)
        except RPCError as error:
            raise Unavailable(f"Temporal does not list the jobs: {in_words(error)}") from error
        return found

    async def _query(
        self, job_id: str, query: str, kind: type[Answer], reject: QueryRejectCondition, patience: float = PATIENCE
    ) -> Answer:
        handle = self._client.get_workflow_handle(job_workflow(job_id))

        async def ask() -> Answer:
            answer: Answer = await handle.query(query, result_type=kind, reject_condition=reject, rpc_timeout=RPC_TIMEOUT)
            return answer

        try:
            return await self._answered(ask, job_id, kind, patience)
        except WorkflowQueryRejectedError as error:
            raise unknown(job_id) from error
        except WorkflowQueryFailedError as error:
            raise Unavailable(f"the workflow of job {job_id} cannot be asked: {error}") from error

    async def report(self, job_id: str, report: Report, recovery: str, report_id: str, *, is_here: bool = False) -> Receipt:
        """Sends a report to the recovery that waits for it. Only one report of a job is in flight, which preserves their order.

        Args:
            recovery: workflow id of the recovery that sent the last order on the job's stream; empty: none did at this gateway.
            report_id: id by which repeated sends are recognized as one report; empty: the sender gave none.
            is_here: True if this gateway holds the job's stream. A workflow that does not run was then lost, and will be
                registered again.
        """
        lost = REGISTERED_AGAIN if is_here else 0.0
        return await self._kept(self._next_report(job_id, report, recovery, report_id or uuid.uuid4().hex, lost))

    async def report_faults(
        self, job_id: str, report: FaultReport, attach: Callable[[], Awaitable[None]] | None, report_id: str
    ) -> Receipt:
        """Sends faults to the job's workflow. The sender reports them only here, and training may have stopped.

        Args:
            report_id: as of `report`.
            attach: sends the attachment of the job's stream, which is here. A workflow that does not run was then lost, and
                will be registered again. None: the stream is not here.

        Raises:
            Rejected: with the workflow's reason, or `job.unknown`.
            Unavailable: Temporal did not answer in time.
        """
        return await self._kept(self._report_faults(job_id, report, attach, report_id or uuid.uuid4().hex))

    async def settle(self, within: float) -> None:
        """Waits for messages that are being stored, and cancels those that are not stored in time."""
        storing = set(self._storing)
        if storing:
            _, late = await asyncio.wait(storing, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _kept(self, storing: Coroutine[object, object, Receipt]) -> Receipt:
        """Stores a message that has arrived even if the sender disconnects: it will not send the message again."""
        task = asyncio.create_task(storing)
        self._storing.add(task)
        task.add_done_callback(self._stored)
        return await asyncio.shield(task)

    def _stored(self, task: asyncio.Task[Receipt]) -> None:
        self._storing.discard(task)
        if not task.cancelled() and task.exception():
            logger.debug("write of a job failed", extra={"error": str(task.exception())})

    async def _next_report(self, job_id: str, report: Report, recovery: str, update_id: str, lost: float) -> Receipt:
        async with self._reports.of(job_id):
            return await self._report(job_id, report, recovery, update_id, lost)

    async def _report(self, job_id: str, report: Report, recovery: str, update_id: str, lost: float) -> Receipt:
        """Sends a report to the recovery directly, and to the job's workflow only if the recovery is unknown or has ended.

        Args:
            lost: seconds to wait for a lost workflow of the job, since its recovery may go on.
        """
        began = asyncio.get_running_loop().time()
        patience = {ErrorTypes.BETWEEN_MODES: BETWEEN_MODES, ErrorTypes.REPORT_ELSEWHERE: STARTS}
        patience |= dict.fromkeys((ErrorTypes.JOB_UNKNOWN, ErrorTypes.NOT_REGISTERED), lost)
        while True:
            try:
                if recovery:
                    return await self._update(recovery, job_id, Updates.REPORT, report, update_id)
            except Rejected as rejected:
                if rejected.kind != ErrorTypes.JOB_UNKNOWN:
                    raise
            ended, recovery = recovery, ""
            try:
                return await self._update(job_workflow(job_id), job_id, Updates.REPORT, report, update_id)
            except Rejected as rejected:
                if rejected.kind == ErrorTypes.REPORT_ELSEWHERE and str(rejected) != ended:
                    recovery = str(rejected)
                    continue
                if asyncio.get_running_loop().time() >= began + patience.get(rejected.kind, 0.0):
                    raise
            await asyncio.sleep(0.1)

    async def _report_faults(
        self, job_id: str, report: FaultReport, attach: Callable[[], Awaitable[None]] | None, update_id: str
    ) -> Receipt:
        deadline = asyncio.get_running_loop().time() + (REGISTERED_AGAIN if attach else 0.0)
        is_missing = False
        while True:
            try:
                if attach and is_missing:
                    with suppress(Rejected):  # another stream may have taken over: the fault is the job's all the same
                        await attach()
                return await self._update(job_workflow(job_id), job_id, Updates.REPORT_FAULTS, report, update_id)
            except Rejected as rejected:
                was_lost = rejected.kind in (ErrorTypes.JOB_UNKNOWN, ErrorTypes.ATTACHMENT_MISSING)
                if not was_lost or asyncio.get_running_loop().time() > deadline:
                    raise
                is_missing = rejected.kind == ErrorTypes.ATTACHMENT_MISSING
            await asyncio.sleep(0.2)

    async def _update(self, workflow_id: str, job_id: str, update: str, argument: Value | str | None, update_id: str) -> Receipt:
        handle = self._client.get_workflow_handle(workflow_id)
        arguments = [] if argument is None else [argument]

        async def ask() -> Receipt:
            receipt: Receipt = await handle.execute_update(
                update, args=arguments, id=update_id, result_type=Receipt, rpc_timeout=RPC_TIMEOUT
            )
            return receipt

        try:
            return await self._answered(ask, job_id, Receipt)
        except WorkflowUpdateFailedError as error:
            if not isinstance(error.cause, ApplicationError):
                raise Rejected("", str(error.cause)) from error
            if error.cause.type == STORED_LAST:
                return Receipt(info="received in the last moment of a mode")
            raise Rejected(error.cause.type or "", error.cause.message) from error

    async def _answered(
        self, ask: Callable[[], Awaitable[Answer]], job_id: str, kind: type[Answer], patience: float = PATIENCE
    ) -> Answer:
        """Repeats a call until Temporal answers it. What was started under the name of ours by others may answer anything."""
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                answer: object = await ask()
                if isinstance(answer, kind):
                    return answer
                raise TypeError(f"{type(answer).__name__} is no {kind.__name__}")
            except UNREADABLE as error:
                words = error.title if isinstance(error, ValidationError) else error
                raise Unavailable(f"what the workflow of job {job_id} says cannot be read: {words}") from error
            except WorkflowUpdateFailedError as error:
                if not (isinstance(error.cause, ApplicationError) and error.cause.type == NOT_LOOKED_AT):
                    raise
                self._raise_unless_again(error, deadline)
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
            raise unknown(job_id) from error
        if status is RPCStatusCode.INVALID_ARGUMENT:
            raise Rejected(ErrorTypes.REQUEST_INVALID, f"the message cannot be stored: {error}") from error

    @staticmethod
    def _raise_unless_again(error: Exception, deadline: float) -> None:
        again = not isinstance(error, RPCError) or error.status in AGAIN
        if not again or asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"Temporal did not take the message: {error}") from error
        logger.warning("call to Temporal failed, retrying", extra={"error": str(error)})


def unknown(job_id: str) -> Rejected:
    return Rejected(ErrorTypes.JOB_UNKNOWN, f"jobId={job_id} is not a registered job")
