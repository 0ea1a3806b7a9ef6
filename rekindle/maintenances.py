"""Maintenances of links, for platforms: fail a job's devices over to their backup links, and switch them back days later.

    maintenances = Maintenances(await Rekindle.connect())
    maintenance = await maintenances.fail_over("gpt", [NodeLinks(node="node-1", devices=("0", "8"), backup=True)])
    await maintenances.settled(maintenance)
    await maintenances.switch_back(maintenance)

Imports no workflow. Errors are those of `rekindle.errors`.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.client import INVALID, Rekindle, cancellable
from rekindle.errors import BadInput, Busy, NotMoved, Refused, Unavailable
from rekindle.model.base import sent
from rekindle.model.dialogue import Receipt
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job
from rekindle.model.links import NodeLinks, describe
from rekindle.model.maintenance import FailoverRequest, Maintenance, SwitchBack
from rekindle.model.mode import Mode
from rekindle.policy.modes import requests
from rekindle.policy.operations import links as policy
from rekindle.temporal import TASK_TIMEOUT, Attributes, handle_unread, in_words

EXAMPLE = '{"links": [{"node": "node-1", "devices": ["0"]}]}'

LISTED = 1_000
"""Maximum number of maintenances in a list, the newest."""


class Maintenances:
    """Maintenances, named by the id of their workflow. If a job has only one, the job's id or name works as well."""

    def __init__(self, rekindle: Rekindle) -> None:
        self._rekindle = rekindle

    async def fail_over(self, job: str, links: Sequence[NodeLinks], *, requested_by: str = "") -> str:
        """Begins a maintenance; returns its id when the job is moving the links. `settled` waits until it has moved them.

        Raises:
            BadInput: unknown job, node or device. Busy: the job is being recovered, or these links are failed over already.
            Refused: it cannot be done as the job is now; the reason says when it can.
        """
        links = _checked(links)
        job_id = await self._rekindle.find(job)
        known = (await self._rekindle.status(job_id)).state.job
        workflow_id = ids.failover_workflow(known, links)
        begin: WithStartWorkflowOperation[Any, Maintenance] = WithStartWorkflowOperation(
            ids.Workflows.LINK_FAILOVER,
            sent(FailoverRequest(job=job_id, name=known.name, links=links, requested_by=requested_by)),
            id=workflow_id,
            task_queue=ids.CONTROL_QUEUE,
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=f"{known.name}: {describe(links)}"[:200],
        )
        temporal = self._rekindle.temporal
        try:
            async with handle_unread(begin):
                with cancellable():
                    await temporal.execute_update_with_start_workflow(
                        ids.FailoverUpdates.BEGUN, start_workflow_operation=begin, result_type=Receipt
                    )
        except WorkflowUpdateFailedError as error:
            raise _said(error.cause) from error
        except WorkflowAlreadyStartedError as error:
            raise _known(workflow_id) from error
        except RPCError as error:
            raise self._rekindle.unanswered(error) from error
        return workflow_id

    async def check(self, job: str, links: Sequence[NodeLinks]) -> None:
        """Raises what `fail_over` would raise now. Changes nothing."""
        links = _checked(links)
        status = await self._rekindle.status(job)
        known = status.state.job
        workflow_id = ids.failover_workflow(known, links)
        if await self._runs(workflow_id):
            raise _known(workflow_id)
        placed = (await self._placed(known, links)).on_backup
        if status.running:
            raise Busy(f"job {known.name} is busy with {status.running}")
        refused = requests.refused(status.state, ModeRequest(mode=Mode.LINK_SWITCH, links=links))
        if refused := refused or policy.taken(status.state.links, policy.ranks_of(placed), workflow_id):
            raise Refused(refused)

    async def _runs(self, maintenance: str) -> bool:
        try:
            found = await self._rekindle.temporal.get_workflow_handle(maintenance).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise self._rekindle.unanswered(error) from error
        return found.status is WorkflowExecutionStatus.RUNNING

    async def _placed(self, job: Job, links: Sequence[NodeLinks]) -> Maintenance:
        """Returns the devices with their ranks, as the control plane sees them."""
        try:
            found: Maintenance = await self._rekindle.temporal.execute_workflow(
                ids.Workflows.LINK_FAILOVER,
                sent(FailoverRequest(job=job.id, name=job.name, links=tuple(links), dry_run=True)),
                id=ids.dry_run_failover_workflow(job, uuid.uuid4().hex[:8]),
                task_queue=ids.CONTROL_QUEUE,
                task_timeout=TASK_TIMEOUT,
                result_type=Maintenance,
            )
        except WorkflowFailureError as error:
            raise _said(error.cause) from error
        except RPCError as error:
            raise self._rekindle.unanswered(error) from error
        return found

    async def switch_back(
        self, maintenance: str, links: Sequence[NodeLinks] = (), *, requested_by: str = "", wait: bool = True
    ) -> str:
        """Moves devices back to their first links; returns what was done.

        Args:
            maintenance: its id, or a job that has only one.
            links: these devices only; none: all that are on their backup link.
            wait: until it is done; otherwise until it is accepted.

        Raises:
            BadInput: no such maintenance, or a device that is not on its backup link by it. Busy: it is failing over, or
            switching back already. Refused: it is over. NotMoved: the devices could not be moved; the reason says why.
        """
        wanted = sent(requests.read_as(SwitchBack, {"links": tuple(links), "requested_by": requested_by}, EXAMPLE))
        handle = self._rekindle.temporal.get_workflow_handle(await self.find(maintenance))
        try:
            with cancellable():
                update = await handle.start_update(
                    ids.FailoverUpdates.SWITCH_BACK, wanted, wait_for_stage=WorkflowUpdateStage.ACCEPTED, result_type=Receipt
                )
            return str((await _answer(update.result)).info) if wait else "accepted"
        except WorkflowUpdateFailedError as error:
            raise _said(error.cause) from error
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise Refused(f"maintenance {maintenance} is over") from error
            raise self._rekindle.unanswered(error) from error

    async def settled(self, maintenance: str) -> Maintenance:
        """Waits until nothing is being moved.

        Raises:
            Refused: its links are not failed over. NotMoved: they could not be. The reason says why.
        """
        handle = self._rekindle.temporal.get_workflow_handle(maintenance, result_type=Maintenance)
        try:
            found: Maintenance = await _answer(
                lambda: handle.execute_update(ids.FailoverUpdates.SETTLED, result_type=Maintenance)
            )
        except WorkflowUpdateFailedError as error:
            raise _said(error.cause) from error
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise self._rekindle.unanswered(error) from error
            return await self._result(maintenance)
        return found

    async def _result(self, maintenance: str) -> Maintenance:
        try:
            found: Maintenance = await self._rekindle.temporal.get_workflow_handle(maintenance, result_type=Maintenance).result()
        except WorkflowFailureError as error:
            raise _said(error.cause) from error
        except RPCError as error:
            raise BadInput(f"maintenance: {maintenance!r} is not known: {error.message}") from error
        return found

    async def status(self, maintenance: str) -> Maintenance:
        """Returns the status of a maintenance; of one that is over, as long as the server keeps it."""
        handle = self._rekindle.temporal.get_workflow_handle(await self.find(maintenance))
        try:
            found: Maintenance = await handle.query(ids.Queries.STATUS, result_type=Maintenance)
        except (RPCError, WorkflowQueryFailedError) as error:
            raise Unavailable(f"no control worker answered: {in_words(error)}") from error
        return found

    async def find(self, maintenance: str) -> str:
        """Returns the id of a maintenance that is given by its id, or by a job that has only one.

        Raises:
            BadInput: there is none, or there are several.
        """
        if await self.run(maintenance):
            return maintenance
        if maintenance.startswith(ids.LINK_FAILOVER):
            raise BadInput(f"maintenance: {maintenance!r} is not known; what there is shows: rekindle maintenances --all")
        running = [run.id for run in await self.of(maintenance) if run.status is WorkflowExecutionStatus.RUNNING]
        if not running:
            raise BadInput(f"maintenance: job {maintenance} has none: no device of it is on its backup link by a maintenance")
        if len(running) > 1:
            raise BadInput(f"maintenance: job {maintenance} has several, name one: {', '.join(sorted(running))}")
        return running[0]

    async def of(self, job: str) -> list[WorkflowExecution]:
        """Returns the maintenances of one job, by its id or name, newest first.

        Those that a client began with its own workflow id are included if they have moved links.
        """
        job_id = await self._rekindle.find(job)
        state = (await self._rekindle.status(job_id)).state
        found = {run.id: run for run in await self.list(state.job.name) if run.id.endswith(f"/{job_id[:8]}")}
        for name in {one.maintenance for one in state.links} - found.keys():
            if run := await self.run(name):
                found[name] = run
        return sorted(found.values(), key=lambda run: run.start_time, reverse=True)

    async def run(self, workflow_id: str) -> WorkflowExecution | None:
        """Returns the maintenance of this id; None: there is no such maintenance."""
        try:
            found = await self._rekindle.temporal.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                return None
            raise self._rekindle.unanswered(error) from error
        return found if found.workflow_type == ids.Workflows.LINK_FAILOVER else None

    async def list(self, job: str = "") -> list[WorkflowExecution]:
        """Returns maintenances, newest first: those that run, and those that are over as long as the server keeps them.

        Args:
            job: name of a job; empty: of all.
        """
        query = f"WorkflowType = '{ids.Workflows.LINK_FAILOVER}' AND ExecutionStatus != 'ContinuedAsNew'"
        if job:
            query += f" AND {Attributes.JOB.name} = '{job}'"
        try:
            found = [run async for run in self._rekindle.temporal.list_workflows(query, limit=LISTED)]
        except RPCError as error:
            raise self._rekindle.unanswered(error) from error
        return [run for run in found if not ids.is_dry_run(run.id)]


def _checked(links: Sequence[NodeLinks]) -> tuple[NodeLinks, ...]:
    found = requests.read_as(SwitchBack, {"links": tuple(links)}, EXAMPLE).links
    if problem := requests.links_problem(found):
        raise BadInput(problem)
    return found


def _known(maintenance: str) -> Busy:
    return Busy(f"these links are failed over already, by {maintenance}")


async def _answer(wait: Callable[[], Awaitable[Any]]) -> Any:
    """Returns the answer of an update, however long it takes.

    The SDK gives up if the server does not answer in time, and raises the same error for a cancellation of our own.
    """
    while True:
        try:
            return await wait()
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise asyncio.CancelledError from None


def _said(cause: BaseException | None) -> BadInput | Refused | NotMoved:
    """Returns the answer of a maintenance or job as an error of `rekindle.errors`."""
    kind = cause.type if isinstance(cause, ApplicationError) else None
    words = cause.message if isinstance(cause, ApplicationError) else str(cause)
    if kind in INVALID:
        return BadInput(words)
    if kind == ids.ErrorTypes.LINKS_NOT_MOVED:
        return NotMoved(words)
    return Busy(words) if kind == ids.ErrorTypes.JOB_BUSY else Refused(words)
