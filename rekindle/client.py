"""The API for platforms: start recoveries, look at jobs, lift a downgrade. Imports no workflow.

    rekindle = await Rekindle.connect()
    verdict = await rekindle.hot_switch("gpt", pod_rank=1)

Jobs are named by their id (UID) or, where it is unique, by their name. Errors are those of `rekindle.errors`.
"""

import asyncio
import re
import uuid
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Self

from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.errors import BadInput, Busy, Refused, Unavailable
from rekindle.interpreter import let_answers_arrive
from rekindle.model import stored
from rekindle.model.account import Account, Ended
from rekindle.model.approval import Abort, Answer
from rekindle.model.base import Value, sent
from rekindle.model.dialogue import Receipt
from rekindle.model.fault import Fault, FaultReport
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobStatus
from rekindle.model.stress import StressRequest
from rekindle.model.verdict import Verdict
from rekindle.policy.account import standing
from rekindle.policy.modes import ladder, requests
from rekindle.policy.modes.mode_table import row_of
from rekindle.temporal import TASK_TIMEOUT, Attributes, connect, in_words, version_problem

INVALID = (ids.ErrorTypes.REQUEST_INVALID, ids.ErrorTypes.JOB_UNKNOWN)


class JobRow(Value):
    """Job in a list."""

    id: str
    name: str
    phase: str
    """State of the job in a word or two; `ended` once its workflow has ended."""

    last_verdict: str = ""
    since: datetime
    """Time at which the job was registered, or recovered from its last incident."""

    until: datetime | None = None
    """Time at which the job ended; None: it has not ended."""

    run: str = ""
    """Run of the job's workflow. A job that was suspended or lost, and registered again, has several rows."""


class Accounted(Value):
    """Account of a job as of now, or as of its end."""

    name: str
    id: str
    account: Account


class RecoveryRow(Value):
    """Running recovery."""

    workflow_id: str
    mode: str
    fault: str
    """Fault or request that the recovery is about."""


class RunningRecovery(RecoveryRow):
    """Running recovery in a list of all."""

    job_id: str
    phase: str
    since: datetime


class Rekindle:
    """A connection to the control plane, by way of its Temporal service."""

    def __init__(self, client: Client) -> None:
        self.temporal = client

    @classmethod
    async def connect(cls, address: str = "") -> Self:
        """Connects to the service at `host:port`; by default to the one that the environment names (`TEMPORAL_ADDRESS`, ...).

        Raises:
            BadInput: what the environment says of Temporal cannot be used. Unavailable: the service does not answer.
        """
        let_answers_arrive()
        client = await connect(address)
        if problem := await version_problem(client):
            warnings.warn(problem, stacklevel=2)
        return cls(client)

    async def jobs(self, *, ended: bool = False, name: str = "") -> list[JobRow]:
        """Returns the registered jobs, newest first; with `ended` also those that have ended, as long as the server keeps them.

        A new job appears within about a second.
        """
        query = f"WorkflowType = '{ids.Workflows.TRAINING_JOB}'"
        query += " AND ExecutionStatus != 'ContinuedAsNew'" if ended else " AND ExecutionStatus = 'Running'"
        if re.fullmatch(r"[\w.-]+", name):
            query += f" AND {Attributes.JOB.name} = '{name}'"
        return [_job_row(run) async for run in self._list(query)]

    async def find(self, job: str, *, ended: bool = False) -> str:
        """Returns the id of a job that is given by id or by name. With `ended`, one that has ended is found too.

        Of several that have ended, the newest one of the name is returned.

        Raises:
            BadInput: no job, or several, by that name.
        """
        if not isinstance(job, str):
            raise BadInput(f"job: {job!r} must be a text, the id or the name of a job")
        if not job or not job.isprintable():
            raise BadInput(f"job: no job is named {job!r}")
        lives = await self.lives(job)
        if lives or (ended and lives is not None):
            return job
        rows = [row for row in await self.jobs(ended=True, name=job) if row.name == job]
        living = [row.id for row in rows if row.until is None]
        if len(living) > 1:
            raise BadInput(f"job: {job!r} names several jobs, use the id: {', '.join(living)}")
        if living or (rows and ended):
            return living[0] if living else rows[0].id
        if rows or lives is not None:
            raise BadInput(f"job: {job!r} has ended, its incidents are shown by: rekindle history {job}")
        names = ", ".join(sorted(row.name for row in await self.jobs(ended=ended))) or "none is registered"
        raise BadInput(f"job: {job!r} is not a registered job (known: {names})")

    async def lives(self, job_id: str) -> bool | None:
        """Returns whether the job with this id is running; None: there is no such job."""
        try:
            found = await self.temporal.get_workflow_handle(ids.job_workflow(job_id)).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise self.unanswered(error) from error
            return None
        return found.status is WorkflowExecutionStatus.RUNNING

    async def status(self, job: str, *, ended: bool = False) -> JobStatus:
        """Returns state and history of a job; with `ended` also of one that has ended. Needs a running control worker."""
        return await self._status(self.temporal.get_workflow_handle(ids.job_workflow(await self.find(job, ended=ended))))

    @staticmethod
    async def _status(handle: WorkflowHandle[Any, Any]) -> JobStatus:
        try:
            status: JobStatus = await handle.query(ids.Queries.STATUS, result_type=JobStatus)
        except (RPCError, WorkflowQueryFailedError) as error:
            raise Unavailable(f"no control worker answered: {in_words(error)}") from error
        return status

    async def submit(self, described: str | Mapping[str, object]) -> str:
        """Starts a job on the cluster of `rekindle dev`, and returns its id. On Kubernetes, jobs are objects: `kubectl apply`.

        Args:
            described: one job as YAML, or what that YAML contains.

        Raises:
            BadInput: one line for every wrong field. ClusterUnavailable: no such cluster runs.
        """
        from rekindle.cluster_client import ClusterClient
        from rekindle.model.manifest import parse, parsed
        from rekindle.settings import read_settings

        settings = read_settings()
        if settings.cluster == "kubernetes":
            raise BadInput(
                "REKINDLE_CLUSTER: kubernetes is not accepted here, where jobs are objects: kubectl apply (accepted: local)"
            )
        job = parse(described) if isinstance(described, str) else parsed(described)
        async with ClusterClient(settings.socket) as cluster:
            return (await cluster.submit(job)).metadata.uid

    async def watch(self, job: str, *, every: float = 1.0) -> AsyncGenerator[JobStatus, None]:
        """Yields the status of a job at once and after each change, until the job has ended. Waits for a control worker.

        Args:
            every: seconds between two looks.

        Raises:
            BadInput: no such job. Unavailable: Temporal does not answer.
        """
        job_id = await self.find(job, ended=True)
        last: JobStatus | None = None
        while True:
            lives = await self.lives(job_id)
            with suppress(Unavailable):
                status = await self._status(self.temporal.get_workflow_handle(ids.job_workflow(job_id)))
                if status != last:
                    yield status
                    last = status
                if not lives:
                    return
            if lives is None:  # the server does not keep it any longer
                return
            await asyncio.sleep(every)

    async def account(self, job: str, run: str | None = None) -> Accounted:
        """Returns what the time of a job was spent on, up to now or to its end.

        A job that lives, or that a version without results has ended, needs a running control worker.

        Args:
            run: run of the workflow of the job with this id. None: the last one.
        """
        job_id = job if run else await self.find(job, ended=True)
        handle = self.temporal.get_workflow_handle(ids.job_workflow(job_id), run_id=run)
        try:
            described = await handle.describe()
            has_ended = described.status is WorkflowExecutionStatus.COMPLETED
            ended = stored.read(Ended, await handle.result(), ("name", "reason", "account"))[0] if has_ended else None
        except RPCError as error:
            raise self.unanswered(error) from error
        if ended:
            return Accounted(name=ended.name, id=job_id, account=ended.account)
        state = (await self._status(handle)).state
        now = described.close_time or datetime.now(UTC)
        return Accounted(name=state.job.name, id=job_id, account=standing.account_of(state, now.timestamp()))

    async def running(self, job: Job) -> RecoveryRow | None:
        """Returns the running recovery of a job; None: there is none."""
        async for run in self._list(f"{Attributes.JOB.name} = '{job.name}' AND ExecutionStatus = 'Running'"):
            if run.parent_id == ids.job_workflow(job.id):
                found = run.typed_search_attributes
                mode, fault = found.get(Attributes.MODE) or run.workflow_type, found.get(Attributes.FAULT) or ""
                return RecoveryRow(workflow_id=run.id, mode=mode, fault=fault)
        return None

    async def recoveries(self) -> list[RunningRecovery]:
        """Returns the running recoveries of all jobs. A new one appears within about a second."""
        found = []
        async for run in self._list("WorkflowId STARTS_WITH 'recovery/' AND ExecutionStatus = 'Running'"):
            if run.parent_id:
                row = run.typed_search_attributes
                recovery = RunningRecovery(
                    workflow_id=run.id,
                    mode=row.get(Attributes.MODE) or run.workflow_type,
                    fault=row.get(Attributes.FAULT) or "",
                    job_id=run.parent_id.removeprefix(ids.job_workflow("")),
                    phase=row.get(Attributes.PHASE) or "",
                    since=run.start_time,
                )
                found.append(recovery)
        return found

    async def details(self, workflow_id: str) -> str:
        """Returns the page of a running workflow. That of a recovery is the list of its phases in Markdown, with check marks."""
        handle = self.temporal.get_workflow_handle(workflow_id)
        try:
            metadata: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        except (RPCError, WorkflowQueryFailedError) as error:
            raise Unavailable(f"no control worker answered: {in_words(error)}") from error
        return str(metadata.current_details)

    async def cancel(self, job: str) -> list[str]:
        """Withdraws all requests on a job, regardless of who sent them; returns their ids.

        A mode that must not stop half-way goes on to its end.
        """
        job_id = await self.find(job)
        try:
            status = await self.status(job_id)
        except Unavailable:
            if unheard := await self._cancel_unheard(job_id):
                return unheard
            raise
        if status.front and await self._cancel_front(status.front, status.request):
            return [status.front]
        if not status.request:
            return await self._cancel_unheard(job_id)
        entity = self.temporal.get_workflow_handle(ids.job_workflow(job_id))
        try:
            with cancellable():
                await entity.execute_update(ids.Updates.WITHDRAW, status.request, result_type=Receipt)
        except RPCError as error:
            raise self.unanswered(error) from error
        return [status.request]

    async def _cancel_unheard(self, job_id: str) -> list[str]:
        """Cancels fronts of this client whose request has not reached the job, because no control worker runs.

        A new front is listed after a moment.
        """
        fronts = f"WorkflowId STARTS_WITH '{ids.request_workflow(job_id, '')}' AND ExecutionStatus = 'Running'"
        return [run.id async for run in self._list(fronts) if await self._cancel_front(run.id, run.run_id)]

    async def _cancel_front(self, workflow_id: str, run_id: str) -> bool:
        """Cancels a front, which then withdraws its request. Returns whether it was running."""
        try:
            await self.temporal.get_workflow_handle(workflow_id, run_id=run_id).cancel()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                return False
            raise self.unanswered(error) from error
        return True

    def unanswered(self, error: RPCError) -> Unavailable:
        """Returns an error with Temporal's message and its address and namespace.

        The message alone does not say which one was wrong.
        """
        address = self.temporal.service_client.config.target_host
        where = f"{address}, namespace {self.temporal.namespace} (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE)"
        return Unavailable(f"Temporal at {where}: {in_words(error)}")

    async def _list(self, query: str) -> AsyncIterator[WorkflowExecution]:
        try:
            async for run in self.temporal.list_workflows(query):
                yield run
        except RPCError as error:
            raise self.unanswered(error) from error

    async def hot_switch(self, job: str, *, pod_rank: int, force: bool = False, requested_by: str = "") -> Verdict:
        """Moves a pod to a spare node and waits for the verdict.

        Args:
            job: id or name.
            pod_rank: the pod, by its pod rank (`hccl/rankIndex`), from 0.
            force: also a pod that was not reported as sub-healthy.
            requested_by: who asks; shown in the Temporal UI.

        Raises:
            BadInput: unknown job or pod rank. Refused: the job is busy with another recovery, or cannot do it as it is now.
        """
        handle = await self.start(Mode.HOT_SWITCH, job, pod_rank=pod_rank, force=force, requested_by=requested_by)
        return begun(await self.verdict(handle))

    async def reschedule(self, job: str, *, save: bool = True, requested_by: str = "") -> Verdict:
        """Stops all pods of a job, starts them on healthy nodes, and waits for the verdict. Raises what `hot_switch` does.

        Args:
            save: False if a job that is well is not to save its state first.
        """
        request = requests.read({"job": job, "save": save, "requested_by": requested_by})
        return begun(await self.verdict(await self.begin(Mode.JOB_RESCHEDULING, request)))

    async def scale(self, job: str, *, replicas: int, requested_by: str = "") -> Verdict:
        """Lets a job train with this number of pods, and waits for the verdict. Raises what `hot_switch` does.

        The job keeps this size. With all of its pods it is as it was started.
        """
        request = requests.read({"job": job, "replicas": replicas, "requested_by": requested_by})
        return begun(await self.verdict(await self.begin(Mode.SCALING, request)))

    async def recover(self, job: str, *, mode: Mode | str | None = None, requested_by: str = "") -> Verdict:
        """Recovers what is faulty by the cheapest mode that is possible now, or by the one that is named, and waits for the
        verdict. Raises what `hot_switch` does; nothing being faulty is Refused.

        Args:
            mode: `Mode.IN_PLACE`, its value, or `in-place` as on the command line.
        """
        wanted = await self.cheapest(job) if mode is None else requests.mode_named(mode)
        return begun(await self.verdict(await self.start(wanted, job, requested_by=requested_by)))

    async def move_links(self, job: str, links: tuple[NodeLinks, ...], *, requested_by: str = "") -> Verdict:
        """Moves devices to the named links and waits for the verdict. Raises what `hot_switch` does.

        They stay there; `rekindle.maintenances` also moves them back.
        """
        request = requests.read({"job": job, "links": links, "requested_by": requested_by})
        return begun(await self.verdict(await self.begin(Mode.LINK_SWITCH, request)))

    async def stress_test(self, job: str, stress: StressRequest, *, requested_by: str = "") -> Verdict:
        """Tests the devices of nodes while training pauses, and waits for the verdict, whose field `tested` has what was found.
        Nodes with faults are isolated: the verdict is that of the mode that moved their pods. Raises what `hot_switch` does.

        Args:
            stress: operations by node, or on all nodes: 0 compute, 1 messages between ranks, 2 memory.
        """
        request = requests.read({"job": job, "stress": stress, "requested_by": requested_by})
        return begun(await self.verdict(await self.begin(Mode.STRESS_TEST, request)))

    async def cheapest(self, job: str, *, first: Mode | None = None) -> Mode:
        """Returns the mode that `recover` would request now.

        Args:
            first: mode of the ladder before which none is wanted. None: each is.

        Raises:
            BadInput: unknown job. Refused: nothing is faulty, or the job cannot be recovered as it is.
        """
        plan = ladder.from_mode((await self.status(job)).state, first)
        if plan.refused:
            raise Refused(plan.refused)
        return plan.modes[0]

    async def start(
        self, mode: Mode | str, job: str, *, pod_rank: int | None = None, force: bool = False, requested_by: str = ""
    ) -> WorkflowHandle[object, Verdict]:
        """Starts a front for a mode. The mode itself runs as a child of the job's workflow."""
        request = {"job": job, "pod_rank": pod_rank, "force": force, "requested_by": requested_by}
        return await self.begin(mode, requests.read(request))

    async def begin(self, mode: Mode | str, request: ModeRequest) -> WorkflowHandle[object, Verdict]:
        """Starts a mode as `start` does, with all options that a mode has."""
        wanted, request = requests.mode_named(mode), requests.read(request)
        job_id, by = await self.find(request.job), request.requested_by
        try:
            return await self.temporal.start_workflow(
                row_of(wanted).workflow,
                sent(request.model_copy(update={"job": job_id})),
                id=ids.request_workflow(job_id, uuid.uuid4().hex[:8]),
                task_queue=ids.CONTROL_QUEUE,
                result_type=Verdict,
                task_timeout=TASK_TIMEOUT,
                static_summary=f"{wanted} of {request.job} requested{f' by {by}' if by else ''}",
            )
        except RPCError as error:
            raise self.unanswered(error) from error

    async def verdict(self, handle: WorkflowHandle[object, Verdict]) -> Verdict:
        """Waits for a front's verdict.

        Raises:
            Unavailable: Temporal does not answer any more. The recovery goes on with it.
        """
        try:
            return await handle.result()
        except RPCError as error:
            raise self.unanswered(error) from error
        except WorkflowFailureError as error:
            cause = error.cause
            while isinstance(cause, ActivityError) and cause.cause:
                cause = cause.cause
            if isinstance(cause, ApplicationError):
                busy = Busy if cause.type == ids.ErrorTypes.JOB_BUSY else Refused
                raise (BadInput if cause.type in INVALID else busy)(cause.message) from error
            raise Refused(str(cause)) from error

    async def lift_downgrade(self, job: str) -> Receipt:
        """Lifts the downgrade: the owner's sub-health policy holds again, and sub-healthy pods are judged again."""
        return await self._update(await self.find(job), ids.Updates.LIFT)

    async def answer(self, job: str, *, approved: bool, mode: str = "", by: str = "", reason: str = "") -> Receipt:
        """Approves or denies the mode of a job that waits for approval.

        Args:
            mode: mode that is meant, such as `process-rescheduling`. By default the one that waits.

        Raises:
            BadInput: unknown job or mode. Refused: no such mode waits for approval.
        """
        given = Answer(approved=approved, mode=mode, by=by, reason=reason)
        return await self._update(await self.find(job), ids.Updates.ANSWER, given)

    async def abort(self, job: str, *, by: str = "", reason: str = "") -> Receipt:
        """Ends the recovery of a job: its mode is cancelled, and none follows. A mode that must not stop half-way goes on.

        Raises:
            BadInput: unknown job. Refused: no recovery is running.
        """
        return await self._update(await self.find(job), ids.Updates.ABORT, Abort(by=by, reason=reason))

    async def retry(self, job: str, *, by: str = "") -> Receipt:
        """Begins the ladder again for a job that was given up, or for faults that are left alone.

        Raises:
            BadInput: unknown job. Refused: neither is the case. Busy: a recovery is running.
        """
        return await self._update(await self.find(job), ids.Updates.RETRY, by)

    async def report_fault(self, job: str, fault: Fault) -> Receipt:
        """Reports a fault that no watcher sees to the job."""
        report = requests.read_as(FaultReport, {"faults": (fault,)}, '{"id": "fan-3", "kind": "node", "node": "node-1"}')
        return await self._update(await self.find(job), ids.Updates.REPORT_FAULTS, report)

    async def _update(self, job_id: str, update: str, *arguments: Value | str) -> Receipt:
        handle = self.temporal.get_workflow_handle(ids.job_workflow(job_id))
        try:
            with cancellable():
                receipt: Receipt = await handle.execute_update(update, args=list(arguments), result_type=Receipt)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            kind = cause.type if isinstance(cause, ApplicationError) else None
            refused = Busy if kind == ids.ErrorTypes.JOB_BUSY else Refused
            words = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise (BadInput if kind in INVALID else refused)(words) from error
        except RPCError as error:
            raise self.unanswered(error) from error
        return receipt


@contextmanager
def cancellable() -> Iterator[None]:
    """Wraps an update: if the waiting task is cancelled, temporalio raises another error, which would not end the task.

    This raises the cancellation again.
    """
    try:
        yield
    except RPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise error.__cause__ from None
        raise Unavailable(f"Temporal did not answer in time: {error.__cause__}") from error


def begun(verdict: Verdict) -> Verdict:
    """Returns the verdict, unless the request was refused.

    The workflow of a refused front completes with a verdict; programs get an error instead.
    """
    if verdict.outcome is Outcome.REFUSED:
        raise (Busy if verdict.passing else Refused)(verdict.reason)
    return verdict


def _job_row(run: WorkflowExecution) -> JobRow:
    found = run.typed_search_attributes
    lives = run.status is WorkflowExecutionStatus.RUNNING
    return JobRow(
        id=run.id.removeprefix(ids.job_workflow("")),
        name=found.get(Attributes.JOB) or "",
        phase=(found.get(Attributes.PHASE) or "") if lives else "ended",
        last_verdict=found.get(Attributes.VERDICT) or "",
        since=run.start_time,
        until=run.close_time,
        run=run.run_id,
    )
