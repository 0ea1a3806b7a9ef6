"""The control plane of a test in one process: control worker, gateway, scripted cluster, on a real Temporal server."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WithStartWorkflowOperation, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Capability, Job, JobId, SubHealthStrategy, TrainingSide
from rekindle.model.recovery import Incident, Progress, Receipt
from rekindle.model.state import JobState, JobStatus
from rekindle.settings import Settings
from tests.support.peer import Script, ScriptedPeer
from tests.support.scripted_cluster import ScriptedCluster
from workers.control import control_worker
from workers.gateway import Gateway

_numbers = itertools.count(1)
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def a_job(**changes: Any) -> Job:
    """A job of two pods with two ranks each, hot switch on, our own training side."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "id": JobId(f"job-{number}"),
        "name": f"gpt-{number}",
        "capabilities": (Capability.REPLACE_RANK_0,),
        "pods": ((0, 1), (2, 3)),
        "sub_health": SubHealthStrategy.HOT_SWITCH,
    }
    return Job(**{**values, **changes})


def a_mindio_job(**changes: Any) -> Job:
    capabilities = (Capability.SINGLE_OPERATOR, Capability.MEGATRON)
    return a_job(**{"training_side": TrainingSide.MINDIO, "kind": "AscendJob", "capabilities": capabilities, **changes})


def sub_health(pod_rank: int = 1, node: str = "node-1", episode: str = "e1") -> Fault:
    return Fault(
        episode=episode,
        kind=FaultKind.SUB_HEALTH,
        pod_ranks=(pod_rank,),
        ranks=(2 * pod_rank, 2 * pod_rank + 1),
        node=node,
        code="80E18005",
        message="NPU link is degraded",
        seen_at=NOW,
        source="test",
    )


def pod_fault(name: str, uid: str, *, backup: bool = False) -> Fault:
    return Fault(
        episode=f"pod/{uid}",
        kind=FaultKind.POD,
        pod=name,
        pod_uid=uid,
        backup=backup,
        message=f"pod {name} failed: exit code 1",
        seen_at=NOW,
        source="test",
    )


@dataclass
class Plant:
    """A running control plane with one registered job."""

    env: WorkflowEnvironment
    client: Client
    job: Job
    cluster: ScriptedCluster
    address: str

    @property
    def entity(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(ids.job_workflow(self.job.id))

    @property
    def recovery(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(ids.recovery_workflow(self.job.id))

    def peer(self, script: Script | None = None) -> ScriptedPeer:
        return ScriptedPeer(self.address, self.job.id, script)

    async def tell(self, update: str, argument: Any = None) -> Receipt:
        arguments = [] if argument is None else [argument]
        return await self.entity.execute_update(update, args=arguments, result_type=Receipt)

    async def first_step(self, incarnation: str = "life-1", steps_lost: int = 0) -> None:
        await self.tell(ids.Updates.PROGRESS, Progress(incarnation=incarnation, step=1, steps_lost=steps_lost))

    async def status(self) -> JobStatus:
        return await self.entity.query(ids.Queries.STATUS, result_type=JobStatus)

    async def incident(self, number: int = 1) -> Incident:
        """Waits until this incident is in the job's history."""
        async with asyncio.timeout(60):
            while True:
                for incident in (await self.status()).state.history:
                    if incident.number == number:
                        return incident
                await asyncio.sleep(0.05)

    async def settled(self, condition: Any) -> JobStatus:
        """Waits until the job's status satisfies a condition."""
        async with asyncio.timeout(30):
            while not condition(status := await self.status()):
                await asyncio.sleep(0.05)
            return status

    async def phase(self, name: str) -> None:
        """Waits until the running recovery is in a phase."""
        async with asyncio.timeout(30):
            while await self._phase() != name:
                await asyncio.sleep(0.05)

    async def _phase(self) -> str:
        from temporalio.service import RPCError

        try:
            described = await self.recovery.describe()
        except RPCError:
            return ""
        from rekindle.temporal import Attributes

        return described.typed_search_attributes.get(Attributes.PHASE) or ""

    async def skip(self, duration: timedelta) -> None:
        """Moves the running recovery's clock forward."""
        await self.env.fast_forward(self.recovery, duration)


async def register(client: Client, job: Job) -> None:
    """Registers a job, as the watcher does."""
    start = WithStartWorkflowOperation(
        ids.Workflows.TRAINING_JOB,
        JobState.of(job),
        id=ids.job_workflow(job.id),
        task_queue=ids.CONTROL_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    await client.execute_update_with_start_workflow(ids.Updates.REGISTER, job, start_workflow_operation=start)


@asynccontextmanager
async def plant(env: WorkflowEnvironment, job: Job, cluster: ScriptedCluster | None = None) -> AsyncIterator[Plant]:
    """Starts everything around a job and registers it."""
    cluster = cluster or ScriptedCluster(job)
    settings = Settings(gateway_port=0, gateway_instance=f"gateway-{job.id}")
    stop = asyncio.Event()
    with env.with_time_skipping_disabled():
        async with control_worker(env.client, cluster):
            gateway = Gateway(env.client, settings)
            port = await gateway.start()
            serving = asyncio.create_task(gateway.run_until(stop))
            try:
                await register(env.client, job)
                yield Plant(env, env.client, job, cluster, f"127.0.0.1:{port}")
                await env.client.get_workflow_handle(ids.job_workflow(job.id)).execute_update(
                    ids.Updates.END, "the test is over", result_type=Receipt
                )
            finally:
                stop.set()
                await serving
