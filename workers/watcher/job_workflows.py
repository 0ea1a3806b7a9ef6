"""Sends changes to a job's workflow as updates. Each has an id, so that a repeated update is applied once."""

import asyncio
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Protocol

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from rekindle.errors import Refused, Unavailable
from rekindle.ids import CONTROL_QUEUE, Updates, Workflows, incident_of, job_workflow
from rekindle.model.fault import Sighting
from rekindle.model.state import JobState, Registration
from rekindle.policy.detection.watcher_updates import News, Register, Sighted, is_calm
from rekindle.policy.modes.job_phase import has_trained
from rekindle.policy.modes.mode_table import LADDER
from rekindle.temporal import TASK_TIMEOUT, Attributes, handle_unread

RPC_TIMEOUT = timedelta(seconds=10)
"""Timeout of one attempt. The update may still be carried out, so that the next attempt has the same update id."""


AT_ONCE = 32
"""Largest number of concurrent updates of either sort, calm or urgent. A watcher that starts has one for each job: of a
thousand at once most would wait in Temporal for longer than `RPC_TIMEOUT`, and be repeated."""


class JobUnknown(Exception):
    """The job has no running workflow."""


class JobWorkflows(Protocol):
    async def send(self, job_id: str, news: News, update_id: str) -> None:
        """Sends news to the job's workflow, and returns when it has acknowledged them.

        Raises:
            Unavailable: it is not known whether the update was applied; try again.
            JobUnknown: the job has no workflow.
            Refused: the workflow rejects the update.
        """
        ...

    async def lost(self, job_ids: Collection[str]) -> list[str]:
        """Returns those of these jobs whose workflow ran and no longer does.

        Raises:
            Unavailable: that is not known now.
        """
        ...

    async def running(self) -> set[str]:
        """Returns the ids of jobs that have a running workflow, as the server lists them; the list is slightly delayed.

        Raises:
            Unavailable: that is not known now.
        """
        ...

    async def has_trained(self, job_id: str) -> bool | None:
        """Returns whether the job's training side has ever trained, as far as it reports; None: not known now.

        Raises:
            Unavailable: Temporal does not answer.
        """
        ...


class TemporalJobWorkflows:
    """Implementation of `JobWorkflows` with a Temporal client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._room = {calm: asyncio.Semaphore(AT_ONCE) for calm in (True, False)}
        """Limits of concurrent updates, for calm and urgent ones, so that a fault does not wait for a thousand registrations."""

    async def send(self, job_id: str, news: News, update_id: str) -> None:
        try:
            async with self._room[is_calm(news)]:
                await self._send(job_id, news, update_id)
        except WorkflowUpdateFailedError as error:
            raise Refused(str(error.cause)) from error
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise JobUnknown(job_id) from error
            raise Unavailable(f"Temporal: {error}") from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise asyncio.CancelledError from error
            raise Unavailable("Temporal, or the control worker, does not answer") from error
        except RuntimeError as error:  # raised by a client that never connected
            raise Unavailable(f"Temporal: {error}") from error

    async def lost(self, job_ids: Collection[str]) -> list[str]:
        """Queries each workflow that the list of running ones lacks, since the list is a second late and may lack a new one."""
        running = await self.running()
        try:
            return [job_id for job_id in job_ids if job_id not in running and not await self._runs(job_id)]
        except (RPCError, RuntimeError) as error:
            raise Unavailable(f"Temporal: {error}") from error

    async def running(self) -> set[str]:
        query = f"WorkflowType = '{Workflows.TRAINING_JOB}' AND ExecutionStatus = 'Running'"
        prefix = job_workflow("")
        try:
            ids = {run.id async for run in self._client.list_workflows(query)}
        except (RPCError, RuntimeError) as error:
            raise Unavailable(f"Temporal: {error}") from error
        return {workflow_id.removeprefix(prefix) for workflow_id in ids if workflow_id.startswith(prefix)}

    async def recovering(self) -> set[str]:
        """Returns the ids of the recoveries that run for a fault or a request, as the server lists them. Operations are not
        included.

        Raises:
            Unavailable: that is not known now.
        """
        types = ", ".join(f"'{row.workflow}'" for row in LADDER)
        query = f"WorkflowType IN ({types}) AND ExecutionStatus = 'Running'"
        try:
            ids = {run.id async for run in self._client.list_workflows(query)}
        except (RPCError, RuntimeError) as error:
            raise Unavailable(f"Temporal: {error}") from error
        return {workflow_id for workflow_id in ids if incident_of(workflow_id)}  # others only pass a request on

    async def has_trained(self, job_id: str) -> bool | None:
        try:
            found = await self._client.get_workflow_handle(job_workflow(job_id)).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise Unavailable(f"Temporal: {error}") from error
        except RuntimeError as error:
            raise Unavailable(f"Temporal: {error}") from error
        return has_trained(found.typed_search_attributes.get(Attributes.PHASE) or "")

    async def _runs(self, job_id: str) -> bool:
        try:
            found = await self._client.get_workflow_handle(job_workflow(job_id)).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return found.status is WorkflowExecutionStatus.RUNNING

    async def _send(self, job_id: str, news: News, update_id: str) -> None:
        if isinstance(news, Register):
            await register(self._client, news.registration, update_id)
        elif isinstance(news, Sighted):
            await self._update(job_id, Updates.SIGHTING, news.sighting, update_id)
        else:
            await self._update(job_id, Updates.END, news.reason, update_id)

    async def _update(self, job_id: str, update: str, argument: Sighting | str, update_id: str) -> None:
        handle = self._client.get_workflow_handle(job_workflow(job_id))
        await handle.execute_update(update, argument, id=update_id, rpc_timeout=RPC_TIMEOUT)


async def register(client: Client, registration: Registration, update_id: str) -> None:
    """Starts the job's workflow if it does not run, and registers the job with it, in one request."""
    job = registration.job
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        Workflows.TRAINING_JOB,
        JobState.of(job),
        id=job_workflow(job.id),
        task_queue=CONTROL_QUEUE,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        static_summary=f"training job {job.name}",
    )
    async with handle_unread(start):
        await client.execute_update_with_start_workflow(
            Updates.REGISTER, registration, start_workflow_operation=start, id=update_id, rpc_timeout=RPC_TIMEOUT
        )
