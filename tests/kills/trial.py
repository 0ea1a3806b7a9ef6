"""One recovery of one job, during which a process is killed; and its result."""

import asyncio
import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.model.attachment import Progress
from rekindle.model.cluster import JobObject, JobSpec, ObjectMeta, Pod, PodPhase, PodTemplate, WatchEvent
from rekindle.model.dialogue import Receipt
from rekindle.model.fault import Fault, FaultReport
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import TRAITS_BEFORE, Capability, Job, SubHealthStrategy
from rekindle.model.keys import CAPABILITIES, POD_TYPE, RANK_INDEX, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from rekindle.model.links import NodeLinks
from rekindle.model.manifest import job_of
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.model.stress import Op, StressRequest
from rekindle.model.training_side import TrainingSide
from tests.fakes.peer import Script, ScriptedPeer
from tests.kills.calls import Journal, Noted, Point, Trap
from tests.kills.managers import MANAGER, Manager, MindioManager, OurManager
from tests.kills.modes import OPERATIONS, Struck
from tests.support.cluster import FOREVER, until_gone
from tests.support.harness import register, sub_health
from tests.support.processes import Processes
from workers.gateway.job_workflows import Jobs

HANG = 60.0
"""Seconds after which a recovery counts as hanging."""

MINDIO_LIMITS: dict[str, float | str] = {
    "pause": 12,
    "statusLost": 2,
    "restart": 20,
    "settle": 0,
    "release": 0,
    "reportLost": 1,
    "retry": 6,
    "repair": 6,
}
"""Limits in seconds. The rules of MindIO are the same with these, and no test waits for minutes."""

_numbers = itertools.count(1)


@dataclass
class Kill:
    """Victims, and the call at which they are killed."""

    point: Point
    victims: tuple[str, ...]


@dataclass
class Result:
    """State after a run."""

    incident: Incident
    seconds: float
    """Duration from the fault to the verdict in the job's history."""
    job: list[HistoryEvent]
    recoveries: list[list[HistoryEvent]]
    """Histories of the recoveries of the undisturbed ladder, as far as they were started."""
    first: int
    """The last event of the job's history before the fault."""
    calls: list[Noted]
    met: str
    """Subject of the call at which a process was killed."""
    start: float
    """Seconds that the slowest victim took to be back; 0 where the verdict did not wait for it."""
    peer: "Manager"
    before: list[Pod]
    born: list[Pod]
    died: list[str]
    """UIDs of pods that were deleted, one for each deletion."""
    left: list[Pod]
    incidents: int
    standing: tuple[Fault, ...]
    """Faults that the job still has."""

    accepted: Counter[str] = field(default_factory=Counter)
    """Reports in the recoveries' histories, by kind."""


@dataclass
class Trial:
    """One job that trains."""

    job: Job
    entity: WorkflowHandle[Any, Any]
    peer: Manager
    trap: Trap | None
    pods: list[Pod]
    """Pods of the job, by rank."""

    @property
    def struck(self) -> Pod:
        """The pod of pod rank 1."""
        return self.pods[1]

    @property
    def met(self) -> str:
        """Subject of the call at which a process was killed."""
        return self.trap.words if self.trap else ""

    @property
    def start(self) -> float:
        """Seconds that the slowest victim took to be back; 0 where nothing waited for it."""
        return max(self.trap.back.values(), default=0.0) if self.trap else 0.0


class Trials:
    """Runs recoveries one after the other on the same processes."""

    def __init__(self, world: Processes, journal: Journal) -> None:
        self._world, self._journal = world, journal
        self._seen: list[WatchEvent] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Records every event of the cluster until the block ends."""

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
        """Returns all log lines of this process and its predecessors."""
        return self._world.stack.members[process].log.read_text()

    async def run(self, struck: Struck, kill: Kill | None, side: TrainingSide = TrainingSide.REKINDLE) -> Result:
        """Runs one job with one fault and at most one kill; ends when the verdict is in the job's history."""
        async with self.training(struck, kill, side) as at:
            return await self._recover(struck, at)

    @asynccontextmanager
    async def training(
        self, struck: Struck, kill: Kill | None, side: TrainingSide = TrainingSide.REKINDLE
    ) -> AsyncIterator[Trial]:
        """Yields a job that trains, until the block ends; the kill waits for `counting`."""
        job = await self._submit(struck, side)
        await register(self.client, job)
        peer = self._manager(struck, job)

        async def dies(victims: tuple[str, ...]) -> None:
            await self._world.kill(victim for victim in victims if victim != MANAGER)
            if MANAGER in victims:
                assert isinstance(peer, OurManager), "only our manager is killed"
                await peer.die()

        trap = Trap(kill.point, kill.victims, dies) if kill else None
        entity = self.client.get_workflow_handle(ids.job_workflow(job.id))
        try:
            async with peer:
                if struck.mode is Mode.LINK_SWITCH:
                    await peer.with_links()
                elif struck.mode is Mode.STRESS_TEST:
                    await peer.with_tests()
                progress = Progress(incarnation="life-1", step=1)
                await entity.execute_update(ids.Updates.PROGRESS, progress, result_type=Receipt)
                yield Trial(job, entity, peer, trap, await self._holders(job.id))
        finally:
            await self._end(job)

    @asynccontextmanager
    async def counting(self, at: Trial) -> AsyncIterator[None]:
        """Waits at the end of the block until the victim was killed."""
        self._journal.begin(at.job.id, at.job.name, at.trap)
        try:
            async with asyncio.timeout(HANG):
                yield
                await self._journal.until(lambda: at.trap is None or at.trap.fired.is_set())
        finally:
            self._journal.end()

    @property
    def client(self) -> Client:
        """Returns a client that no proxy watches."""
        return self._world.client

    @property
    def calls(self) -> list[Noted]:
        return self._journal.calls

    def _manager(self, struck: Struck, job: Job) -> Manager:
        gateway, script, behind = self._world.gateway, Script(), struck.report_behind(job.training_side)
        if job.training_side is TrainingSide.REKINDLE:
            return OurManager(gateway, job.id, script).attend(self._journal, behind)
        return MindioManager(gateway, job.id, script, lambda: self._backup_runs(job)).attend(self._journal, behind)

    async def _backup_runs(self, job: Job) -> None:
        async for event in self._world.cluster.watch():
            pod = event.object
            backup = isinstance(pod, Pod) and pod.metadata.owner_uid == job.id and POD_TYPE in pod.metadata.annotations
            if isinstance(pod, Pod) and backup and pod.status.phase is PodPhase.RUNNING:
                return

    async def _end(self, job: Job) -> None:
        """Deletes the job and ends its workflows so that nothing disturbs the next run, also when this run hung."""
        await self._world.cluster.delete_job(job.name, grace=0)
        for workflow in (ids.job_workflow(job.id), *(ids.recovery_workflow(job, 1, mode) for mode in Mode)):
            try:
                await self.client.get_workflow_handle(workflow).terminate("the test is over")
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    async def _submit(self, struck: Struck, side: TrainingSide) -> Job:
        mindio = side is TrainingSide.MINDIO
        capabilities = (Capability.SINGLE_OPERATOR, Capability.MEGATRON) if mindio else (Capability.REPLACE_RANK_0,)
        name = f"kill-{next(_numbers)}"
        wanted = JobObject(
            metadata=ObjectMeta(
                name=name,
                labels={SUB_HEALTHY_STRATEGY: SubHealthStrategy.HOT_SWITCH, **struck.labels},
                annotations={CAPABILITIES: ",".join(capabilities), **struck.of(side)},
            ),
            spec=JobSpec(
                pods=2,
                ranks_per_pod=2,
                template=PodTemplate(command=FOREVER, accelerators=8),
                training_side=side,
                limits=MINDIO_LIMITS if mindio else {},
            ),
        )
        submitted = await self._world.cluster.submit(wanted)
        job = job_of(submitted, Limits())
        await self._running(job, set())
        return job.model_copy(update={"kind": "AscendJob", "traits": TRAITS_BEFORE["AscendJob"]} if mindio else {})

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
        """Ends the training side with the job's pods, and starts it again with the new ones."""
        await self._running(job, {pod.metadata.uid for pod in await self._world.cluster.pods(job.id)})
        if isinstance(peer, OurManager):
            await peer.restart()
            return
        await peer.cut()
        async with ScriptedPeer(self._world.gateway, job.id):
            await asyncio.Event().wait()

    async def _strike(self, struck: Struck, job: Job, peer: Manager, old: Pod) -> None:
        if struck.mode in (*OPERATIONS, Mode.SCALING):
            await self._ask(struck.mode, job, old)
            return
        if struck.faulty:
            peer.strike(struck.faulty, struck.type)
            return
        report = FaultReport(faults=(sub_health(1, old.spec.node_name),))
        await Jobs(self.client).ask(job.id, ids.Updates.REPORT_FAULTS, report)

    async def _ask(self, mode: Mode, job: Job, pod: Pod) -> None:
        """Requests a mode as a client does: it repeats the request under one id until it is accepted."""
        links = (NodeLinks(node=pod.spec.node_name, devices=pod.status.devices, backup=True),)
        asked = {
            Mode.LINK_SWITCH: ModeRequest(mode=mode, links=links),
            Mode.STRESS_TEST: ModeRequest(mode=mode, stress=StressRequest(nodes={pod.spec.node_name: (Op.COMPUTE,)})),
            Mode.SCALING: ModeRequest(mode=mode, replicas=1),
        }[mode]
        entity, request = self.client.get_workflow_handle(ids.job_workflow(job.id)), str(uuid.uuid4())
        while True:
            try:
                await entity.start_update(
                    ids.Updates.RECOVER,
                    asked,
                    id=request,
                    wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                )
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
                await asyncio.sleep(0.2)
            else:
                return

    async def _lose(self, pod: Pod) -> None:
        await self._world.cluster.delete_pod(pod.metadata.name, pod.metadata.uid, grace=0)
        await until_gone(self._world.cluster, pod)

    async def _recover(self, struck: Struck, at: Trial) -> Result:
        job, peer, old = at.job, at.peer, at.struck
        described = await at.entity.describe()
        if struck.loses_pod:
            await self._lose(old)
        succeeding = asyncio.create_task(self._succeed(job, peer))
        began = time.time()
        try:
            async with self.counting(at), asyncio.TaskGroup() as group:
                group.create_task(self._strike(struck, job, peer, old))
                ended, state = await self._verdict(job.id, described.run_id)
        finally:
            succeeding.cancel()
            await asyncio.gather(succeeding, return_exceptions=True)
        history = await self.history(ids.job_workflow(job.id), described.run_id)
        recoveries = [await self.history(workflow, run) for workflow, run in _recoveries(history).items()][: len(struck.modes)]
        return Result(
            incident=state.history[-1],
            incidents=state.incidents,
            standing=tuple(one.fault for one in state.faults),
            seconds=ended - began,
            job=history,
            recoveries=recoveries,
            first=described.history_length,
            calls=self.calls,
            met=at.met,
            start=at.start,
            peer=peer,
            before=at.pods,
            born=self._born(job.id),
            died=self._died(job.id),
            left=await self._world.cluster.pods(job.id),
            accepted=_accepted(recoveries),
        )

    async def _verdict(self, job_id: str, run_id: str) -> tuple[float, JobState]:
        """Returns the verdict. The entity continues as new after each incident, and keeps its history."""
        handle = self.client.get_workflow_handle(ids.job_workflow(job_id), run_id=run_id)
        closed = WorkflowHistoryEventFilterType.CLOSE_EVENT
        while True:
            try:
                async for event in handle.fetch_history_events(wait_new_event=True, event_filter_type=closed):
                    renewed = event.workflow_execution_continued_as_new_event_attributes
                    (state,) = await self.client.data_converter.decode(renewed.input.payloads, [JobState])
                    return event.event_time.ToMicroseconds() / 1e6, state
            except RPCError:
                await asyncio.sleep(0.1)  # the server is down

    async def history(self, workflow_id: str, run_id: str) -> list[HistoryEvent]:
        history = await self.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        return list(history.events)

    async def _holders(self, job_id: str) -> list[Pod]:
        return sorted(await self._world.cluster.pods(job_id), key=lambda pod: int(pod.metadata.annotations[RANK_INDEX]))

    def _born(self, job_id: str) -> list[Pod]:
        seen = [event.object for event in self._seen if event.type == "ADDED"]
        return [thing for thing in seen if isinstance(thing, Pod) and thing.metadata.owner_uid == job_id]

    def _died(self, job_id: str) -> list[str]:
        seen = [event.object for event in self._seen if event.type == "DELETED"]
        return [thing.metadata.uid for thing in seen if isinstance(thing, Pod) and thing.metadata.owner_uid == job_id]


def _recoveries(history: list[HistoryEvent]) -> dict[str, str]:
    """Returns the recoveries that the job's workflow started, in their order: the first run of each, by workflow id."""
    found: dict[str, str] = {}
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            started = event.child_workflow_execution_started_event_attributes.workflow_execution
            found.setdefault(started.workflow_id, started.run_id)
    return found


def _accepted(recoveries: list[list[HistoryEvent]]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for event in (event for recovery in recoveries for event in recovery):
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        if request.input.name == ids.Updates.REPORT:
            counted[json.loads(request.input.args.payloads[0].data)["kind"]] += 1
    return counted
