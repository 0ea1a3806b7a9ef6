"""The API for platforms: start recoveries, look at jobs, lift a downgrade. Imports no workflow.

    rekindle = await Rekindle.connect()
    verdict = await rekindle.hot_switch("gpt", pod_rank=1)

Jobs are named by their id (UID) or, where it is unique, by their name. Errors are those of `rekindle.errors`.
"""

import uuid
from datetime import datetime
from typing import Self

from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.errors import BadInput, Refused, Unavailable
from rekindle.model.base import Value
from rekindle.model.fault import Fault
from rekindle.model.recovery import Mode, ModeInput, Receipt, Verdict
from rekindle.model.state import JobStatus
from rekindle.temporal import TASK_TIMEOUT, Attributes, connect

INVALID = (ids.ErrorTypes.REQUEST_INVALID, ids.ErrorTypes.JOB_UNKNOWN)


class JobRow(Value):
    """One registered job, as a list shows it."""

    id: str
    name: str
    phase: str
    """`training`, `recovering`, `sub-health ignored`."""

    last_verdict: str = ""
    since: datetime


class Rekindle:
    """A connection to the control plane, by way of its Temporal service."""

    def __init__(self, client: Client) -> None:
        self.temporal = client

    @classmethod
    async def connect(cls, address: str = "") -> Self:
        """Connects to the service at `host:port`; by default to the one that the environment names (`TEMPORAL_ADDRESS`, ...)."""
        return cls(await connect(address))

    async def jobs(self) -> list[JobRow]:
        """Registered jobs that have not ended, newest first. A new job appears within about a second."""
        query = f"WorkflowType = '{ids.Workflows.TRAINING_JOB}' AND ExecutionStatus = 'Running'"
        rows = []
        async for run in self.temporal.list_workflows(query):
            found = run.typed_search_attributes
            rows.append(
                JobRow(
                    id=run.id.removeprefix(ids.job_workflow("")),
                    name=found.get(Attributes.JOB) or "",
                    phase=found.get(Attributes.PHASE) or "",
                    last_verdict=found.get(Attributes.VERDICT) or "",
                    since=run.start_time,
                )
            )
        return rows

    async def find(self, job: str) -> str:
        """The id of a job that is given by id or by name.

        Raises:
            BadInput: no job, or several, by that name.
        """
        try:
            await self.temporal.get_workflow_handle(ids.job_workflow(job)).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise Unavailable(str(error)) from error
        else:
            return job
        found = [row for row in await self.jobs() if row.name == job]
        if len(found) == 1:
            return found[0].id
        names = ", ".join(sorted(row.name for row in await self.jobs())) or "none is registered"
        problem = "names several jobs, use the id" if found else f"is not a registered job (known: {names})"
        raise BadInput(f"job: {job!r} {problem}")

    async def status(self, job: str) -> JobStatus:
        """State and history of a job. Needs a running control worker."""
        handle = self.temporal.get_workflow_handle(ids.job_workflow(await self.find(job)))
        try:
            status: JobStatus = await handle.query(ids.Queries.STATUS, result_type=JobStatus)
        except (RPCError, WorkflowQueryFailedError) as error:
            raise Unavailable(f"no control worker answered: {error}") from error
        return status

    async def hot_switch(self, job: str, *, pod_rank: int, force: bool = False, requested_by: str = "") -> Verdict:
        """Moves a pod to a spare node and waits for the verdict.

        Args:
            job: id or name.
            pod_rank: the pod, by its pod rank (`hccl/rankIndex`), from 0.
            force: also a pod that nobody reported as sub-healthy.
            requested_by: who asks; shown in the Temporal UI.

        Raises:
            BadInput: unknown job or pod rank. Refused: the job is busy with another recovery.
        """
        handle = await self.start(Mode.HOT_SWITCH, job, pod_rank=pod_rank, force=force, requested_by=requested_by)
        return await self.verdict(handle)

    async def reschedule(self, job: str, *, requested_by: str = "") -> Verdict:
        """Stops all pods of a job, starts them on healthy nodes, and waits for the verdict."""
        return await self.verdict(await self.start(Mode.JOB_RESCHEDULING, job, requested_by=requested_by))

    async def start(
        self, mode: Mode, job: str, *, pod_rank: int | None = None, force: bool = False, requested_by: str = ""
    ) -> WorkflowHandle[object, Verdict]:
        """Starts a mode as a workflow of its own (a front); the real one runs as the job's child."""
        job_id = await self.find(job)
        workflow = {Mode.HOT_SWITCH: ids.Workflows.HOT_SWITCH, Mode.JOB_RESCHEDULING: ids.Workflows.JOB_RESCHEDULING}[mode]
        return await self.temporal.start_workflow(
            workflow,
            ModeInput(job_id=job_id, pod_rank=pod_rank, force=force, requested_by=requested_by),
            id=ids.request_workflow(job_id, uuid.uuid4().hex[:8]),
            task_queue=ids.CONTROL_QUEUE,
            result_type=Verdict,
            task_timeout=TASK_TIMEOUT,
            static_summary=f"{mode} of {job} requested{f' by {requested_by}' if requested_by else ''}",
        )

    async def verdict(self, handle: WorkflowHandle[object, Verdict]) -> Verdict:
        """Waits for a front's verdict."""
        try:
            return await handle.result()
        except WorkflowFailureError as error:
            cause = error.cause
            while isinstance(cause, ActivityError) and cause.cause:
                cause = cause.cause
            if isinstance(cause, ApplicationError):
                raise (BadInput if cause.type in INVALID else Refused)(cause.message) from error
            raise Refused(str(cause)) from error

    async def lift_downgrade(self, job: str) -> Receipt:
        """The job owner's sub-health policy holds again, and sub-healthy pods are judged again."""
        return await self._update(await self.find(job), ids.Updates.LIFT)

    async def report_fault(self, job: str, fault: Fault) -> Receipt:
        """Tells the job of a fault that no watcher sees."""
        return await self._update(await self.find(job), ids.Updates.FAULT, fault)

    async def _update(self, job_id: str, update: str, *arguments: Value) -> Receipt:
        handle = self.temporal.get_workflow_handle(ids.job_workflow(job_id))
        try:
            receipt: Receipt = await handle.execute_update(update, args=list(arguments), result_type=Receipt)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            kind = cause.type if isinstance(cause, ApplicationError) else None
            raise (BadInput if kind in INVALID else Refused)(str(cause)) from error
        except RPCError as error:
            raise Unavailable(str(error)) from error
        return receipt
