"""Control plane of a test in one process: control worker, gateway, scripted cluster, on a real Temporal server."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WithStartWorkflowOperation, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from activities.pods import PodActivities
from rekindle import ids
from rekindle.model.activities.jobs import SurveyRequest
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.cluster import ClusterEvent
from rekindle.model.dialogue import Receipt
from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import Capability, Job, JobId, SubHealthStrategy
from rekindle.model.keys import FAULT_RETRY_TIMES, RECOVER_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode
from rekindle.model.state import JobState, JobStatus, Registration, Standing
from rekindle.model.training_side import TrainingSide
from rekindle.model.verdict import Verdict
from rekindle.settings import Settings
from rekindle.temporal import TASK_TIMEOUT, Attributes
from tests.fakes.peer import MindioPeer, Script, ScriptedPeer
from tests.fakes.scripted_cluster import ScriptedCluster, TheirCluster
from tests.support.sampling import ALL
from workers.control import MODES, control_worker
from workers.gateway.attachments import ROUND
from workers.gateway.server import Gateway
from workers.gateway.streams import KEEP_ALIVE
from workers.rollout import LookAtRollout, unknown
from workers.versions import Upgrades, deployment_config

_numbers = itertools.count(1)
NOW = datetime(2020, 2, 20, 20, 20, tzinfo=UTC)
"""Time at which the faults of these tests were seen: before any action of a recovery."""

RUNNER = SandboxedWorkflowRunner if ALL else UnsandboxedWorkflowRunner
"""Runner of workflows, as in production. In `make test-all` it is the sandbox, which, like the replay of recorded histories,
finds forbidden operations of workflows."""

RESUMES = "training resumes from its last checkpoint"


def a_job(**changes: Any) -> Job:
    """Returns a job of two pods with two ranks each, hot switch on, our own training side, and no recovery of processes
    allowed."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "id": JobId(f"job-{number}"),
        "name": f"gpt-{number}",
        "capabilities": (Capability.REPLACE_RANK_0,),
        "pods": 2,
        "ranks_per_pod": 2,
        "sub_health": SubHealthStrategy.HOT_SWITCH,
        "annotations": {RECOVER_STRATEGY: "exit"},
    }
    return Job(**{**values, **changes})


def a_mindio_job(**changes: Any) -> Job:
    """Returns a MindIO job whose pods may fail without the end of the job. A restart checks only briefly whether the pods
    stay."""
    limits: Limits = changes.get("limits", Limits())
    if "pods_stay" not in limits.model_fields_set:
        changes["limits"] = limits.model_copy(update={"pods_stay": timedelta(seconds=0.3)})
    capabilities = (Capability.SINGLE_OPERATOR, Capability.MEGATRON)
    mindio = {"training_side": TrainingSide.MINDIO, "kind": "AscendJob", "capabilities": capabilities}
    return a_job(**{**mindio, "labels": {FAULT_RETRY_TIMES: "3"}, **changes})


def sub_health(pod_rank: int = 1, node: str = "node-1", name: str = "e1") -> Fault:
    return Fault(
        id=name,
        kind=FaultKind.SUB_HEALTH,
        pod_ranks=(pod_rank,),
        ranks=(2 * pod_rank, 2 * pod_rank + 1),
        node=node,
        code="80E18005",
        message="NPU link is degraded",
        seen_at=NOW,
        source="test",
    )


def node_fault(node: str, name: str = "n1") -> Fault:
    return Fault(id=name, kind=FaultKind.NODE, node=node, message=f"{node} is lost", seen_at=NOW, source="test")


def pod_fault(name: str, uid: str, *, backup: bool = False) -> Fault:
    return Fault(
        id=f"pod/{uid}",
        kind=FaultKind.POD,
        pod=name,
        pod_uids=(uid,),
        backup=backup,
        message=f"pod {name} failed: exit code 1",
        seen_at=NOW,
        source="test",
    )


@dataclass
class Control:
    """Control worker, which a test may stop and restart."""

    client: Client
    cluster: ScriptedCluster
    modes: tuple[type, ...] = MODES
    build_id: str = ""
    """Version of the worker; empty: it is unversioned."""

    _worker: Worker | None = None

    async def start(self, rollout: LookAtRollout = unknown) -> None:
        """Starts a worker, which takes over if it has a version that should.

        Args:
            rollout: reads the revisions of its Deployment.
        """
        version = deployment_config(self.build_id) if self.build_id else None
        self._worker = control_worker(self.client, self.cluster, RUNNER(), version, self.modes)
        await self._worker.__aenter__()
        if self.build_id:
            await Upgrades(self.client, self.build_id, rollout=rollout).take_over()

    async def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker:
            await worker.__aexit__(None, None, None)


@dataclass
class GatewayProcess:
    """Gateway with a stable name."""

    client: Client
    name: str
    keep_alive: float = KEEP_ALIVE
    offer_again: float = ROUND
    gateways: int = 1
    settings: Settings | None = None
    """Settings of a gateway on another cluster; None: the usual ones."""
    address: str = ""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: asyncio.Task[None] | None = None
    _gateway: Gateway | None = None

    @property
    def storing(self) -> int:
        """Number of messages that it has received and Temporal has not stored."""
        return len(self._gateway._jobs._storing) if self._gateway else 0

    def resubscribe(self, job_id: str, session: str) -> None:
        """Replaces the session of the job's stream here, if there is one, as if the client had subscribed again."""
        if self._gateway and (stream := self._gateway._streams.of(job_id)):
            stream.session = session

    async def start(self) -> "GatewayProcess":
        port = int(self.address.rsplit(":", 1)[1]) if self.address else 0
        own = {"gateway_port": port, "gateway_instance": self.name, "gateways": self.gateways}
        settings = (self.settings or Settings()).model_copy(update=own)
        self._gateway = gateway = Gateway(self.client, settings, self.keep_alive, offer_again=self.offer_again)
        self.address = f"127.0.0.1:{await gateway.start()}"
        self._stop = asyncio.Event()
        self._serving = asyncio.create_task(gateway.run_until(self._stop))
        return self

    async def stop(self) -> None:
        """Stops the gateway as SIGTERM does."""
        self._stop.set()
        if self._serving:
            await self._serving


@dataclass
class Harness:
    """Running control plane with one registered job."""

    env: WorkflowEnvironment
    client: Client
    job: Job
    cluster: ScriptedCluster
    control: Control
    gateways: list[GatewayProcess]
    recovery_id: str = ""

    @property
    def gateway(self) -> GatewayProcess:
        return self.gateways[0]

    @property
    def entity(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(ids.job_workflow(self.job.id))

    @property
    def recovery(self) -> WorkflowHandle[Any, Any]:
        """Handle of the recovery that ran at the last query of the job's status, or of the last one in its history."""
        assert self.recovery_id, "no status of the job showed a recovery yet: see `running`"
        return self.client.get_workflow_handle(self.recovery_id)

    async def running(self) -> WorkflowHandle[Any, Any]:
        """Waits for a running recovery, and returns its handle."""
        await self.settled(lambda status: bool(status.recovery))
        return self.recovery

    async def forget(self) -> None:
        """Terminates the job's workflows, so that no later control worker continues them on its own cluster."""
        query = f"RekindleJob = '{self.job.name}' AND ExecutionStatus = 'Running'"
        running = [run.id async for run in self.client.list_workflows(query)]
        for workflow_id in dict.fromkeys((self.entity.id, self.recovery_id, *running)):
            with suppress(RPCError):  # there is none, or it has ended
                await self.client.get_workflow_handle(workflow_id).terminate("the test is over")

    def peer(self, script: Script | None = None, at: int = 0) -> ScriptedPeer:
        address = self.gateways[at].address
        if self.job.training_side is TrainingSide.MINDIO:
            peer = MindioPeer(address, self.job.id, script, self.cluster.backup_runs)
            peer.pods = self.cluster if isinstance(self.cluster, TheirCluster) else None
            return peer
        return ScriptedPeer(address, self.job.id, script)

    async def tell(self, update: str, argument: Any = None) -> Receipt:
        arguments = [] if argument is None else [argument]
        receipt: Receipt = await self.entity.execute_update(update, args=arguments, result_type=Receipt)
        return receipt

    async def look(self, *nodes: str) -> None:
        """Sends the state of the pods and of these nodes to the job's workflow, as the watcher does."""
        request = SurveyRequest(job_id=self.job.id, nodes=nodes)
        survey = await ActivityEnvironment().run(PodActivities(self.cluster).survey, request)
        await self.tell(ids.Updates.SIGHTING, survey.sighting)

    async def fault(self, fault: Fault) -> Receipt:
        return await self.tell(ids.Updates.REPORT_FAULTS, FaultReport(faults=(fault,)))

    async def first_step(self, incarnation: str = "life-1", steps_lost: int = 0) -> None:
        await self.tell(ids.Updates.PROGRESS, Progress(incarnation=incarnation, step=1, steps_lost=steps_lost))

    async def attached_as(self, client: str) -> None:
        """Replaces the subscription of the job's client at the first gateway by one from this address."""
        session = f"session-{next(_numbers)}"
        queue = ids.gateway_queue(self.gateway.name)
        self.gateway.resubscribe(self.job.id, session)
        await self.tell(ids.Updates.ATTACH, Attachment(queue=queue, session=session, since=NOW, client=client))

    async def looked_at(self, activity: str, times: int) -> None:
        """Waits until an activity of the running recovery was completed this number of times."""
        async with asyncio.timeout(60):
            while await self._times_done(activity) < times:
                await asyncio.sleep(0.03)

    async def _times_done(self, activity: str) -> int:
        try:
            events = (await self.recovery.fetch_history()).events
        except RPCError:  # it is being started
            return 0
        scheduled = [event.activity_task_scheduled_event_attributes for event in events]
        done = {event.activity_task_completed_event_attributes.scheduled_event_id for event in events}
        named = [event for event, asked in zip(events, scheduled, strict=True) if asked.activity_type.name == activity]
        return len([event for event in named if event.event_id in done])

    async def recorded(self, workflow: WorkflowHandle[Any, Any], event: str) -> None:
        """Waits until a workflow has processed an event of this type."""
        kind = EventType.Value(f"EVENT_TYPE_{event}")
        async with asyncio.timeout(60):
            while True:
                kinds = [one.event_type for one in (await workflow.fetch_history()).events]
                if kind in kinds and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[kinds.index(kind) :]:
                    return
                await asyncio.sleep(0.03)

    async def restarted(self, number: int = 1, life: str = "life-2") -> Incident:
        """Lets a job rescheduling reach its first step, and returns the incident that it ended."""
        await self.settled(lambda status: status.state.incidents == number and status.running is Mode.JOB_RESCHEDULING)
        await self.phase(RESUMES)
        await self.first_step(life, steps_lost=3)
        return await self.incident(number)

    async def status(self) -> JobStatus:
        status: JobStatus = await self.entity.query(ids.Queries.STATUS, result_type=JobStatus)
        last = status.state.history[-1:]
        if status.recovery:
            self.recovery_id = status.recovery
        elif last:
            self.recovery_id = ids.recovery_workflow(self.job, last[0].number, last[0].ladder[-1].mode)
        return status

    async def incident(self, number: int = 1) -> Incident:
        """Waits until this incident is in the job's history, and returns it."""
        status = await self.settled(lambda status: any(i.number == number for i in status.state.history))
        return next(incident for incident in status.state.history if incident.number == number)

    async def settled(self, condition: Callable[[JobStatus], bool]) -> JobStatus:
        """Waits until the job's status satisfies a condition, and returns it."""
        status = None
        try:
            async with asyncio.timeout(60):
                while True:
                    status = await self._status_of_a_good_task() or status
                    if status and condition(status):
                        return status
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise AssertionError(f"the job did not reach the status that the test waits for; it has {status!r}") from None

    async def _status_of_a_good_task(self) -> JobStatus | None:
        """Returns the job's status. None: a task of a large job took more than two seconds on a busy machine, and is repeated."""
        try:
            return await self.status()
        except RPCError as error:
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
            return None

    async def judged(self, pod_rank: int = 1) -> str:
        """Waits for the decision about a sub-healthy pod, and returns it."""
        status = await self.settled(lambda status: bool(_judged(status, pod_rank)))
        return _judged(status, pod_rank)

    async def event(self, reason: str) -> ClusterEvent:
        """Waits for an event with this reason on the cluster, and returns it."""
        async with asyncio.timeout(60):
            while True:
                for event in self.cluster.events:
                    if event.reason == reason:
                        return event
                await asyncio.sleep(0.03)

    async def noted(self, key: str, words: str) -> None:
        """Waits until a label or annotation of the job's object contains these words; empty: until it has none."""
        async with asyncio.timeout(60):
            while bool(words) != bool(found := self.cluster.labels.get(key)) or words not in (found or ""):
                await asyncio.sleep(0.03)

    async def phase(self, name: str) -> None:
        """Waits until the running recovery is in a phase."""
        async with asyncio.timeout(60):
            while await self._phase() != name:
                await asyncio.sleep(0.03)

    async def _phase(self) -> str:
        if not (recovery := (await self.status()).recovery):
            return ""
        try:
            described = await self.client.get_workflow_handle(recovery).describe()
        except RPCError:
            return ""
        running = described.status is WorkflowExecutionStatus.RUNNING  # the one before it may have been in the same phase
        return (described.typed_search_attributes.get(Attributes.PHASE) or "") if running else ""

    async def front(
        self,
        pod_rank: int | None = 1,
        *,
        mode: str = ids.Workflows.HOT_SWITCH,
        force: bool = False,
        job_id: str = "",
        size: int | None = None,
    ) -> WorkflowHandle[Any, Verdict]:
        """Starts a mode as any Temporal client may."""
        job = job_id or self.job.id
        handle: WorkflowHandle[Any, Verdict] = await self.client.start_workflow(
            mode,
            ModeRequest(job=job, pod_rank=pod_rank, force=force, replicas=size, requested_by="ada"),
            id=ids.request_workflow(job, f"{next(_numbers)}"),
            task_queue=ids.CONTROL_QUEUE,
            task_timeout=TASK_TIMEOUT,
            result_type=Verdict,
        )
        return handle

    async def skip(self, duration: timedelta, of: WorkflowHandle[Any, Any] | None = None) -> None:
        """Moves a workflow's clock forward, by default the running recovery's."""
        await self.env.fast_forward(of or await self.running(), duration)


@asynccontextmanager
async def training(
    env: WorkflowEnvironment, job: Job, script: Script | None = None, cluster: ScriptedCluster | None = None
) -> AsyncIterator[tuple[Harness, ScriptedPeer]]:
    """Runs a training job: its manager is attached, and the first step is done. Fails if its training side leaves."""
    async with harness(env, job, cluster) as world, world.peer(script) as peer:
        await world.first_step()
        yield world, peer
        assert not peer.exited, peer.exited
        assert not peer.broken_rules, peer.broken_rules


def _judged(status: JobStatus, pod_rank: int) -> str:
    about = (one for one in sub_healthy(status) if one.fault.pod_ranks == (pod_rank,))
    return next((one.judged for one in about), "")


def sub_healthy(status: JobStatus) -> list[Standing]:
    return [one for one in status.state.faults if one.fault.kind is FaultKind.SUB_HEALTH]


async def register(client: Client, job: Job) -> None:
    """Registers a job, as the watcher does."""
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        ids.Workflows.TRAINING_JOB,
        JobState.of(job),
        id=ids.job_workflow(job.id),
        task_queue=ids.CONTROL_QUEUE,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    await client.execute_update_with_start_workflow(ids.Updates.REGISTER, Registration(job=job), start_workflow_operation=start)


@asynccontextmanager
async def harness(
    env: WorkflowEnvironment,
    job: Job,
    cluster: ScriptedCluster | None = None,
    modes: tuple[type, ...] = MODES,
    gateways: int = 1,
    keep_alive: float = KEEP_ALIVE,
    offer_again: float = ROUND,
    build_id: str = "",
) -> AsyncIterator[Harness]:
    """Starts all processes around a job, and registers it."""
    cluster = cluster or ScriptedCluster(job)
    control = Control(env.client, cluster, modes, build_id)
    processes = [GatewayProcess(env.client, f"gateway-{job.id}-{number}", keep_alive, offer_again) for number in range(gateways)]
    world = Harness(env, env.client, job, cluster, control, processes)
    with env.with_time_skipping_disabled():
        await control.start()
        try:
            for process in processes:
                await process.start()
            await register(env.client, job)
            yield world
        finally:
            await world.forget()
            await asyncio.gather(*(process.stop() for process in processes))
            await control.stop()
