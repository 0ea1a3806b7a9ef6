"""Activities for what a workflow cannot do itself: send an update to a `TrainingJob`, and terminate a recovery that does not
react to its cancellation."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.common import QueryRejectCondition
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.heartbeat import heartbeating
from rekindle.errors import Unavailable
from rekindle.ids import ErrorTypes, Queries, Updates, Workflows, job_workflow, runs_mode
from rekindle.model.activities.requests import AskRequest, RecoveryEnd, TerminateRequest, WithdrawRequest
from rekindle.model.base import sent
from rekindle.model.dialogue import Receipt
from rekindle.model.links import OnBackup
from rekindle.model.mode import Outcome
from rekindle.model.state import JobStatus
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.mode_table import LAST, MODES, About
from rekindle.temporal import Attributes, living


class JobActivities:
    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn
    async def find_job(self, job: str) -> str:
        """Returns the id of a job that is given by its id or, if it is unique, by its name.

        Raises:
            `job.unknown`, which is not retryable.
        """
        async with heartbeating():
            if await self._lives(job):
                return job
            if not job.isprintable() or "'" in job or "\\" in job:  # the server's query language has no such name
                raise unknown_job(job, "accepted is the id or the name of a job")
            query = f"{living(Workflows.TRAINING_JOB)} AND {Attributes.JOB.name} = '{job}'"
            named = {run.id.removeprefix(job_workflow("")) async for run in self._client.list_workflows(query)}
            found: list[str] = []
            for job_id in sorted(named):
                if len(found) <= NAMED and await self._lives(job_id):
                    found.append(job_id)
        if len(found) == 1:
            return found[0]
        if not found:
            raise unknown_job(job, "accepted is the id or the name of a registered job")
        raise unknown_job(job, f"several jobs have this name, use an id: {', '.join(found[:NAMED])}")

    async def _lives(self, job_id: str) -> bool:
        try:
            found = await self._client.get_workflow_handle(job_workflow(job_id)).describe()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                return False
            raise
        return found.status is WorkflowExecutionStatus.RUNNING

    @activity.defn
    async def ask(self, asked: AskRequest) -> None:
        """Asks the job's workflow to run a mode; returns when the request is accepted. `hold_request` waits for the verdict.

        Raises:
            as `hold_request`.
        """
        handle = self._client.get_workflow_handle(job_workflow(asked.job_id))
        async with heartbeating():
            try:
                update = await handle.start_update(
                    Updates.RECOVER,
                    sent(asked.request),
                    id=asked.request_id,
                    wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                    result_type=Verdict,
                )
                with suppress(WorkflowUpdateRPCTimeoutOrCancelledError):  # it was accepted, and its verdict takes longer
                    await update.result(rpc_timeout=KNOWN)
            except WorkflowUpdateFailedError as error:
                raise refusal(error) from error
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise unknown_job(asked.job_id, "accepted is the id or the name of a registered job") from error
                raise

    @activity.defn
    async def links_now(self, job_id: str) -> tuple[OnBackup, ...]:
        """Returns which ranks the job's workflow knows to be on their backup links.

        Raises: `job.unknown`, which is not retryable; `service.unavailable` while a recovery that outlived the job's workflow has
        an unknown result, as it may have moved links.
        """
        handle = self._client.get_workflow_handle(job_workflow(job_id))
        async with heartbeating():
            try:
                status: JobStatus = await handle.query(
                    Queries.STATUS, result_type=JobStatus, reject_condition=QueryRejectCondition.NOT_OPEN
                )
            except WorkflowQueryRejectedError as error:
                raise unknown_job(job_id, "its workflow has ended") from error
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise unknown_job(job_id, "accepted is the id or the name of a registered job") from error
                raise
        if status.state.lost_recovery:
            raise ApplicationError(
                f"the end of {status.state.lost_recovery} is not known yet",
                type=Unavailable.type,
                category=ApplicationErrorCategory.BENIGN,
            )
        return status.state.links

    @activity.defn
    async def hold_request(self, asked: AskRequest) -> Verdict:
        """Asks the job's workflow to run a mode, and waits for its verdict, which may take hours. A retry after the death of a
        worker finds the same request again.

        Raises: `job.unknown`, `job.busy`, `request.invalid`, `request.refused`, none of which is retryable.
        """
        handle = self._client.get_workflow_handle(job_workflow(asked.job_id))
        async with heartbeating():
            while True:
                try:
                    verdict: Verdict = await handle.execute_update(
                        Updates.RECOVER, sent(asked.request), id=asked.request_id, result_type=Verdict
                    )
                    return verdict
                except WorkflowUpdateRPCTimeoutOrCancelledError:
                    task = asyncio.current_task()
                    if task and task.cancelling():
                        raise asyncio.CancelledError from None
                except WorkflowUpdateFailedError as error:
                    raise refusal(error) from error
                except RPCError as error:
                    if error.status is RPCStatusCode.NOT_FOUND:
                        raise unknown_job(asked.job_id, "accepted is the id or the name of a registered job") from error
                    raise

    @activity.defn
    async def withdraw_request(self, asked: WithdrawRequest) -> None:
        """Withdraws a request at the job's workflow. Does nothing if the workflow has ended."""
        async with heartbeating():
            try:
                handle = self._client.get_workflow_handle(job_workflow(asked.job_id))
                await handle.execute_update(Updates.WITHDRAW, asked.request_id, result_type=Receipt)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    @activity.defn
    async def await_recovery_end(self, workflow_id: str) -> RecoveryEnd:
        """Waits for the end of a recovery whose job's workflow was lost.

        The recovery was cancelled then, which it handles only after a step that must not stop half-way.
        """
        handle = self._client.get_workflow_handle(workflow_id, result_type=Verdict)
        async with heartbeating():
            try:
                end = await _end_of(handle)
                return end.model_copy(update={"began": (await handle.describe()).start_time})
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                return RecoveryEnd(settled=False, words="nothing is known of its end", known=False)

    @activity.defn
    async def terminate_recovery(self, request: TerminateRequest) -> None:
        """Terminates a recovery that did not process its cancellation in time."""
        async with heartbeating():
            try:
                await self._client.get_workflow_handle(request.workflow_id).terminate(request.reason)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise


async def _end_of(recovery: WorkflowHandle[Any, Verdict]) -> RecoveryEnd:
    try:
        verdict = await recovery.result()
    except WorkflowFailureError as error:
        stops_pods = runs_mode(recovery.id, LAST.mode)  # a cancellation half-way would leave the job without pods
        settled = isinstance(error.cause, CancelledError) and not stops_pods
        return RecoveryEnd(settled=settled or await _has_waited_only(recovery), words=str(error.cause))
    settled = verdict.outcome in (Outcome.RECOVERED, Outcome.IGNORED, Outcome.REFUSED)
    return RecoveryEnd(settled=settled, words=f"{verdict.outcome}: {verdict.reason}", verdict=verdict)


async def _has_waited_only(ended: WorkflowHandle[Any, Verdict]) -> bool:
    """Returns whether a change of the job's size was ended before it ordered anything. Training is as it was."""
    if not any(runs_mode(ended.id, row.mode) for row in MODES if row.about is About.SIZE):
        return False
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_type.name async for event in ended.fetch_history_events()
    ]
    return ORDER not in scheduled


ORDER = "deliver_order"
"""Activity by which a recovery sends an order to the training side."""

KNOWN = timedelta(milliseconds=1)
"""Time limit of a request for an answer that is already known, because it came with the acceptance of the update: the reason of a
refusal."""

NAMED = 5
"""Maximum number of ids that an error names."""


def unknown_job(job: str, accepted: str) -> ApplicationError:
    return ApplicationError(f"job: {job[:80]!r} is not registered: {accepted}", type=ErrorTypes.JOB_UNKNOWN, non_retryable=True)


def refusal(error: WorkflowUpdateFailedError) -> ApplicationError:
    """Returns the reason of a rejected update as an error that is not retried.

    It is an answer and no failure, so nothing is logged.
    """
    cause = error.cause
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else ErrorTypes.REQUEST_REFUSED
    words = cause.message if isinstance(cause, ApplicationError) else str(cause)
    return ApplicationError(words, type=kind, non_retryable=True, category=ApplicationErrorCategory.BENIGN)
