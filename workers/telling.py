"""How the watcher tells a job's workflow, and what it remembers of it. Made by `workers/watcher.py`."""

import asyncio
import logging
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from rekindle.errors import Refused, Unavailable
from rekindle.ids import CONTROL_QUEUE, Updates, Workflows, job_workflow
from rekindle.model.cluster import JobObject
from rekindle.model.fault import Fault
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.state import JobState, Problems, Registration
from rekindle.policy.intake import Tell, TellKind, Told
from rekindle.temporal import TASK_TIMEOUT

RPC_TIMEOUT = timedelta(seconds=10)
"""For one attempt; it may still be carried out, so the next one has the same update id."""

SAVE_AFTER = 0.5
"""Seconds in which several changes become one write."""

UPDATES = {
    TellKind.FAULT: Updates.FAULT,
    TellKind.CLEARED: Updates.CLEARED,
    TellKind.PROBLEMS: Updates.PROBLEMS,
    TellKind.END: Updates.END,
}

logger = logging.getLogger("watcher")


class JobUnknown(Exception):
    """No workflow runs for this job."""


class TemporalTeller:
    def __init__(self, client: Client, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._life = uuid.uuid4().hex
        """Registrations of two watchers are two updates: the later one may know newer labels. So it is with problems."""

    async def tell(self, job_id: str, tell: Tell, job: JobObject | None) -> None:
        try:
            await self._send(job_id, tell, job)
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
        except RuntimeError as error:  # how a client that never connected says so
            raise Unavailable(f"Temporal: {error}") from error

    async def _send(self, job_id: str, tell: Tell, job: JobObject | None) -> None:
        if tell.kind is TellKind.REGISTER:
            assert job is not None
            registration = Registration.of(job_of(job, self._limits), tell.problems)
            await register(self._client, registration, f"{tell.update_id}/{self._life}")
        elif tell.kind is TellKind.PROBLEMS:
            await self._update(job_id, tell, Problems(found=tell.problems), f"{tell.update_id}/{self._life}")
        else:
            await self._update(job_id, tell, tell.fault or tell.episode or tell.reason, tell.update_id)

    async def _update(self, job_id: str, tell: Tell, argument: Fault | Problems | str, update_id: str) -> None:
        handle = self._client.get_workflow_handle(job_workflow(job_id))
        await handle.execute_update(UPDATES[tell.kind], argument, id=update_id, rpc_timeout=RPC_TIMEOUT)


async def register(client: Client, registration: Registration, update_id: str) -> None:
    """Starts the job's workflow where there is none, and registers the job with it, in one request."""
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        Workflows.TRAINING_JOB,
        JobState.of(registration.job),
        id=job_workflow(registration.id),
        task_queue=CONTROL_QUEUE,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        static_summary=f"training job {registration.name}",
    )
    handle = asyncio.ensure_future(start.workflow_handle())
    try:
        await client.execute_update_with_start_workflow(
            Updates.REGISTER, registration, start_workflow_operation=start, id=update_id, rpc_timeout=RPC_TIMEOUT
        )
    finally:  # the SDK tells a failure here too; unread, it would be logged as a bug of ours
        handle.cancel()
        await asyncio.gather(handle, return_exceptions=True)


class Memory:
    """What the next watcher must know, in a file. A lost half second costs a repetition at most."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: asyncio.TimerHandle | None = None

    def load(self) -> dict[str, Told]:
        try:
            return _TOLD.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            logger.warning("the memory is unreadable and begins anew", extra={"path": str(self._path), "error": str(error)})
            return {}

    def save_soon(self, told: dict[str, Told]) -> None:
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_later(SAVE_AFTER, self.save, told)

    def save(self, told: dict[str, Told]) -> None:
        if self._pending:
            self._pending.cancel()
            self._pending = None
        kept = {job_id: one.kept() for job_id, one in told.items() if one.known}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".new")
        scratch.write_bytes(_TOLD.dump_json(kept, exclude_defaults=True))
        scratch.replace(self._path)


_TOLD = TypeAdapter(dict[str, Told])
