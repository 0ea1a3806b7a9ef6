"""A control worker handles upgrades while Temporal refuses some calls: the rest is done, and no worker waits for ever."""
# ruff: noqa: A002  # the SDK names the arguments

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from temporalio.client import (
    Client,
    CountWorkflowsInput,
    Interceptor,
    OutboundInterceptor,
    SignalWorkflowInput,
    WorkflowExecution,
    WorkflowExecutionCount,
)
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from rekindle import deployment
from rekindle.deployment import Deployment
from rekindle.ids import Signals, job_workflow
from tests.support.harness import Control, a_job, harness, register
from workers import versions
from workers.versions import Upgrades

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class Refusing(Interceptor):
    """A connection to Temporal over which some calls fail."""

    counts: int = 0
    """Number of next counts of workflows that fail."""
    signals_to: set[str] = field(default_factory=set)
    """Workflows that cannot be signalled."""
    refused: asyncio.Event = field(default_factory=asyncio.Event)

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Calls(next, self)

    def refuse(self) -> RPCError:
        self.refused.set()
        return RPCError("no answer", RPCStatusCode.UNAVAILABLE, b"")

    def over(self, client: Client) -> Client:
        config = client.config()
        config["interceptors"] = [self]
        return Client(**config)


class _Calls(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, script: Refusing) -> None:
        super().__init__(next)
        self._script = script

    async def count_workflows(self, input: CountWorkflowsInput) -> WorkflowExecutionCount:
        if self._script.counts:
            self._script.counts -= 1
            raise self._script.refuse()
        return await super().count_workflows(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        if input.signal == Signals.UPGRADED and input.id in self._script.signals_to:
            raise self._script.refuse()
        await super().signal_workflow(input)


@dataclass
class Two:
    """Two jobs on the version `old`, and the worker of another version beside theirs."""

    client: Client
    control: Control
    old: str
    new: Control

    async def on_old(self) -> list[str]:
        """Returns the ids of workflows on the version `old`, in the order in which they are handled."""
        return [workflow.id for workflow in await deployment.list_open(self.client, self.old)]

    async def are_on_old(self, *wanted: str) -> None:
        async with asyncio.timeout(60):
            while set(await self.on_old()) != set(wanted):
                await asyncio.sleep(0.03)


@asynccontextmanager
async def two_jobs(temporal: WorkflowEnvironment) -> AsyncIterator[Two]:
    first, second = a_job(), a_job()
    async with harness(temporal, first, build_id=f"{first.id}-old") as world:
        await register(world.client, second)
        new = Control(world.client, world.cluster, build_id=f"{first.id}-new")
        this = Two(world.client, world.control, f"{first.id}-old", new)
        await this.are_on_old(job_workflow(first.id), job_workflow(second.id))
        try:
            yield this
        finally:
            await world.client.get_workflow_handle(job_workflow(second.id)).terminate("the test is over")
            await world.forget()
            await new.stop()


@asynccontextmanager
async def looking(upgrades: Upgrades) -> AsyncIterator[None]:
    keeping = asyncio.create_task(upgrades.keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_a_job_that_cannot_be_woken_keeps_no_other_from_moving(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that cannot be signalled does not keep another from moving, and is retried at the next look."""
    monkeypatch.setattr(versions, "EVERY", 0.1)
    async with two_jobs(temporal) as this:
        await this.new.start()
        stuck = (await this.on_old())[0]
        refusing = Refusing(signals_to={stuck})
        async with looking(Upgrades(refusing.over(this.client), this.new.build_id)):
            await this.are_on_old(stuck)
            refusing.signals_to.clear()
            await this.are_on_old()


async def test_a_worker_that_asks_too_often_waits_and_becomes_current(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service of several processes limits how often a deployment is asked for. The worker ended with a traceback."""
    really_read, refused = deployment.read_deployment, 0

    async def read(client: Client) -> Deployment:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise RPCError("too many requests issued to Worker Deployment 'rekindle'", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        return await really_read(client)

    monkeypatch.setattr(deployment, "read_deployment", read)
    async with two_jobs(temporal) as this:
        refused = 0
        await this.new.start()
        assert (refused, (await really_read(this.client)).current) == (2, this.new.build_id)


async def test_a_workflow_that_cannot_be_moved_keeps_no_other_from_moving(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither workflow's version has a worker any more; the refused one is moved at the next look."""
    monkeypatch.setattr(versions, "EVERY", 0.1)
    really_move = deployment.move
    refused: set[str] = set()

    async def move(client: Client, workflow: WorkflowExecution, build_id: str) -> None:
        if workflow.id in refused:
            raise RPCError("no answer", RPCStatusCode.UNAVAILABLE, b"")
        await really_move(client, workflow, build_id)

    monkeypatch.setattr(deployment, "move", move)
    async with two_jobs(temporal) as this:
        await this.control.stop()
        await this.new.start()
        refused.add((await this.on_old())[0])
        async with looking(Upgrades(this.client, this.new.build_id, alone=True)):
            await this.are_on_old(*refused)
            refused.clear()
            await this.are_on_old()


async def test_a_worker_that_drains_lives_through_an_outage(temporal: WorkflowEnvironment) -> None:
    """A worker that drains survives an outage: workflows on its version still need it when the server answers again."""
    async with two_jobs(temporal) as this:
        await this.new.start()
        refusing = Refusing(counts=3)
        draining = asyncio.create_task(Upgrades(refusing.over(this.client), this.old).drain())
        async with asyncio.timeout(60):
            await refusing.refused.wait()
        async with looking(Upgrades(this.client, this.new.build_id)):
            await this.are_on_old()
        async with asyncio.timeout(60):
            await draining
        assert refusing.counts == 0


async def test_a_worker_that_drains_does_not_wait_for_ever_for_an_answer(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that drains leaves when the server does not count the workflows on its version for long, although some still
    run."""
    monkeypatch.setattr(versions, "UNANSWERED", timedelta(0))
    async with two_jobs(temporal) as this:
        await this.new.start()
        async with asyncio.timeout(60):
            await Upgrades(Refusing(counts=1_000_000).over(this.client), this.old).drain()
        assert await this.on_old()
