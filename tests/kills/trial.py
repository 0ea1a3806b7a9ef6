"""One hot switch of one job, during which something is killed; and what must be true of it afterwards."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle, WorkflowHistoryEventFilterType
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, Pod, PodPhase, PodTemplate, WatchEvent
from rekindle.model.fault import FaultReport
from rekindle.model.job import Capability, Job, SubHealthStrategy, TrainingSide
from rekindle.model.keys import CAPABILITIES, POD_TYPE, RANK_INDEX, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.model.recovery import Incident, Mode, Progress, Receipt
from rekindle.model.state import JobState
from rekindle_wire.recover_pb2_grpc import RecoverStub
from tests.kills.calls import Journal, Noted, Point, Trap
from tests.support.cluster import FOREVER
from tests.support.harness import register, sub_health
from tests.support.peer import Call, MindioPeer, Script, ScriptedPeer
from tests.support.processes import Processes
from workers.gateway.job_workflows import Jobs

HANG = 60.0
"""Seconds after which a recovery counts as hanging."""

RETRY = 0.2
LAST_RETRY = 1.0
"""Seconds between two tries of our own manager (`rekindle_training.manager.gateway`)."""

_numbers = itertools.count(1)


@dataclass
class Kill:
    """Whom to kill, and when."""

    point: Point
    victims: tuple[str, ...]


@dataclass
class Result:
    """What a run left behind."""

    incident: Incident
    seconds: float
    """From the fault to the verdict in the job's history."""
    job: list[HistoryEvent]
    recovery: list[HistoryEvent]
    first: int
    """The last event of the job's history before the fault."""
    calls: list[Noted]
    met: str
    """What the call was about at which something was killed."""
    start: float
    """Seconds that the slowest victim took to be back; 0 where the verdict did not wait for it."""
    peer: "Manager"
    before: Pod
    born: list[Pod]
    died: list[str]
    """UIDs of pods that were deleted, one for each deletion."""
    left: list[Pod]
    accepted: Counter[str] = field(default_factory=Counter)
    """Reports in the recovery's history, by kind."""


class Manager(ScriptedPeer):
    """A training side whose reports wait until the control plane has looked at what comes before them."""

    tireless = False

    def attend(self, journal: Journal, before_the_pause: str) -> Self:
        """Names the activity that its report of the pause waits for."""
        self._journal = journal
        self._before = {"strategies": before_the_pause, "status": "order migration"}
        self.acknowledged: list[tuple[str, int]] = []
        return self

    async def _report(self, kind: str, call: Call) -> int:
        await self._journal.until(lambda: self._journal.is_settled(self._before[kind]))
        code = await super()._report(kind, call)
        if code >= 0:
            self.acknowledged.append((kind, code))
        return code


class OurManager(Manager):
    """Sends the same report again, until there is an answer."""

    tireless = True

    async def _send(self, call: Call) -> int:
        retry = RETRY
        async with asyncio.timeout(HANG):
            while True:
                async with grpc.aio.insecure_channel(self.address) as channel:
                    try:
                        return int((await call(RecoverStub(channel))).code)
                    except grpc.aio.AioRpcError:
                        pass
                await asyncio.sleep(retry)
                retry = min(1.5 * retry, LAST_RETRY)


class MindioManager(Manager, MindioPeer):
    """Gives a report up."""


class Trials:
    """Runs hot switches one after the other on the same processes."""

    def __init__(self, world: Processes, journal: Journal) -> None:
        self._world, self._journal = world, journal
        self._seen: list[WatchEvent] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Notes every pod that comes and goes."""

        async def follow() -> None:
            async for event in self._world.cluster.watch():
                self._seen.append(event)

        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def log(self, process: str) -> str:
        """All that this process and its predecessors logged."""
        return self._world.stack.members[process].log.read_text()

    async def run(self, kill: Kill | None, side: TrainingSide = TrainingSide.REKINDLE) -> Result:
        """One job, one sub-health, at most one kill; ends when the verdict is in the job's history."""
        job = await self._submit(side)
        await register(self._world.client, job)
        trap = Trap(kill.point, kill.victims, self._world.kill) if kill else None
        peer = self._manager(job)
        entity = self._world.client.get_workflow_handle(ids.job_workflow(job.id))
        try:
            async with peer:
                progress = Progress(incarnation="life-1", step=1)
                await entity.execute_update(ids.Updates.PROGRESS, progress, result_type=Receipt)
                return await self._recover(job, entity, peer, trap)
        finally:
            await self._end(job)

    def _manager(self, job: Job) -> Manager:
        if job.training_side is TrainingSide.REKINDLE:
            ours = OurManager(self._world.gateway, job.id, Script())
            return ours.attend(self._journal, "order new pod running")
        mindio = MindioManager(self._world.gateway, job.id, Script(), lambda: self._backup_runs(job))
        return mindio.attend(self._journal, "wait until the backup pod runs")

    async def _backup_runs(self, job: Job) -> None:
        async for event in self._world.cluster.watch():
            pod = event.object
            backup = isinstance(pod, Pod) and pod.metadata.owner_uid == job.id and POD_TYPE in pod.metadata.annotations
            if isinstance(pod, Pod) and backup and pod.status.phase is PodPhase.RUNNING:
                return

    async def _end(self, job: Job) -> None:
        """Leaves nothing that could disturb the next run, also when this one hung."""
        await self._world.cluster.delete_job(job.name, grace=0)
        for workflow in (ids.job_workflow(job.id), *(ids.recovery_workflow(job, 1, mode) for mode in Mode)):
            try:
                await self._world.client.get_workflow_handle(workflow).terminate("the test is over")
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    async def _submit(self, side: TrainingSide) -> Job:
        mindio = side is TrainingSide.MINDIO
        capabilities = (Capability.SINGLE_OPERATOR, Capability.MEGATRON) if mindio else (Capability.REPLACE_RANK_0,)
        name = f"kill-{next(_numbers)}"
        wanted = JobObject(
            metadata=ObjectMeta(
                name=name,
                labels={SUB_HEALTHY_STRATEGY: SubHealthStrategy.HOT_SWITCH},
                annotations={CAPABILITIES: ",".join(capabilities)},
            ),
            spec=JobSpec(
                pods=2,
                ranks_per_pod=2,
                template=PodTemplate(command=FOREVER, accelerators=8),
                training_side=side,
                limits={"pause": 12, "statusLost": 2, "restart": 20} if mindio else {},
            ),
        )
        submitted = await self._world.cluster.submit(wanted)
        job = job_of(submitted, Limits())
        await self._running(job, set())
        return job.model_copy(update={"kind": "AscendJob" if mindio else job.kind})

    async def _running(self, job: Job, older: set[str]) -> None:
        """Waits until as many pods as the job has run, without the older ones."""
        running: set[str] = set()
        async with asyncio.timeout(HANG):
            async for event in self._world.cluster.watch():
                pod = event.object
                if isinstance(pod, Pod) and pod.metadata.owner_uid == job.id and pod.status.phase is PodPhase.RUNNING:
                    running |= {pod.metadata.uid} - older if POD_TYPE not in pod.metadata.annotations else set()
                if len(running) == job.pods:
                    return

    async def _succeed(self, job: Job, peer: Manager) -> None:
        """The training side ends with the job's pods, and comes back with the new ones."""
        await self._running(job, {pod.metadata.uid for pod in await self._world.cluster.pods(job.id)})
        await peer.cut()
        async with ScriptedPeer(self._world.gateway, job.id):
            await asyncio.Event().wait()

    async def _recover(self, job: Job, entity: WorkflowHandle[Any, Any], peer: Manager, trap: Trap | None) -> Result:
        described = await entity.describe()
        old = await self._holder(job.id, 1)
        self._journal.begin(job.id, job.name, trap)
        began = time.time()
        report = FaultReport(faults=(sub_health(1, old.spec.node_name),))
        telling = asyncio.create_task(Jobs(self._world.client).ask(job.id, ids.Updates.REPORT_FAULTS, report))
        succeeding = asyncio.create_task(self._succeed(job, peer))
        try:
            async with asyncio.timeout(HANG):
                ended, incident = await self._verdict(job.id, described.run_id)
                await telling
                await self._journal.until(lambda: trap is None or trap.fired.is_set())
        finally:
            telling.cancel()
            succeeding.cancel()
            await asyncio.gather(succeeding, return_exceptions=True)
            self._journal.end()
        history = await self._history(ids.job_workflow(job.id), described.run_id)
        recovery = await self._history(ids.recovery_workflow(job, 1, Mode.HOT_SWITCH), _child(history))
        return Result(
            incident=incident,
            seconds=ended - began,
            job=history,
            recovery=recovery,
            first=described.history_length,
            calls=self._journal.calls,
            met=trap.words if trap else "",
            start=max(trap.back.values(), default=0.0) if trap else 0.0,
            peer=peer,
            before=old,
            born=self._born(job.id),
            died=self._died(job.id),
            left=await self._world.cluster.pods(job.id),
            accepted=_accepted(recovery),
        )

    async def _verdict(self, job_id: str, run_id: str) -> tuple[float, Incident]:
        """The entity continues as new after each incident, and carries its history along."""
        handle = self._world.client.get_workflow_handle(ids.job_workflow(job_id), run_id=run_id)
        closed = WorkflowHistoryEventFilterType.CLOSE_EVENT
        while True:
            try:
                async for event in handle.fetch_history_events(wait_new_event=True, event_filter_type=closed):
                    renewed = event.workflow_execution_continued_as_new_event_attributes
                    (state,) = await self._world.client.data_converter.decode(renewed.input.payloads, [JobState])
                    return event.event_time.ToMicroseconds() / 1e6, state.history[-1]
            except RPCError:
                await asyncio.sleep(0.1)  # the server is down

    async def _history(self, workflow_id: str, run_id: str) -> list[HistoryEvent]:
        history = await self._world.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        return list(history.events)

    async def _holder(self, job_id: str, pod_rank: int) -> Pod:
        found = await self._world.cluster.pods(job_id)
        return next(pod for pod in found if pod.metadata.annotations[RANK_INDEX] == str(pod_rank))

    def _born(self, job_id: str) -> list[Pod]:
        seen = [event.object for event in self._seen if event.type == "ADDED"]
        return [thing for thing in seen if isinstance(thing, Pod) and thing.metadata.owner_uid == job_id]

    def _died(self, job_id: str) -> list[str]:
        seen = [event.object for event in self._seen if event.type == "DELETED"]
        return [thing.metadata.uid for thing in seen if isinstance(thing, Pod) and thing.metadata.owner_uid == job_id]


def _child(history: list[HistoryEvent]) -> str:
    """Run id of the first recovery that the job's workflow started."""
    return next(
        event.child_workflow_execution_started_event_attributes.workflow_execution.run_id
        for event in history
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED
    )


def _accepted(recovery: list[HistoryEvent]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for event in recovery:
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        if request.input.name == ids.Updates.REPORT:
            counted[json.loads(request.input.args.payloads[0].data)["kind"]] += 1
    return counted
