"""Platforms that do not read, do not leave and come without end, and workflows of no job that the news of all jobs meet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from rekindle import ids
from rekindle.model.fault import Sighting
from rekindle.policy.platforms import DeviceFaults, Level, NodeFaults, View
from rekindle.settings import Settings
from rekindle.temporal import Attributes
from rekindle_wire import fault_pb2_grpc, job_pb2_grpc
from tests.fakes.platform_peer import Heard, Platform, platform
from tests.gateway.test_platforms import asking, registered
from tests.support.harness import a_mindio_job
from workers.gateway import fault_service, job_service, job_workflows, watch
from workers.gateway.fault_service import FaultService
from workers.gateway.job_service import JobService
from workers.gateway.platforms import Platforms
from workers.gateway.watch import Subscriber

RUNS, STARTS = Sighting(holders=("aaaaaaaa", "bbbbbbbb"), generation="0"), Sighting(holders=("aaaaaaaa",), generation="0")


LARGE = 200_000
"""Characters of a message, of which a connection takes few."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK", 0.05)


@workflow.defn(name=ids.Workflows.TRAINING_JOB)
class Strange:
    """A foreign workflow that was started under the name of ours."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(name=ids.Queries.STATUS)
    def status(self) -> None:
        return None


async def test_a_workflow_that_answers_with_nothing_does_not_end_the_news_of_all_jobs(temporal: WorkflowEnvironment) -> None:
    """The answer is no state, and no text either."""
    async with asking(temporal) as (world, peer):
        name = f"strange-{world.job.id}"
        async with Worker(world.client, task_queue=name, workflows=[Strange], workflow_runner=UnsandboxedWorkflowRunner()):
            handle = await world.client.start_workflow(Strange.run, id=ids.job_workflow(name), task_queue=name)
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be read"):
                await peer.faults_now(name)
            heard = peer.jobs(await registered(peer))
            await heard.next(lambda one: one.jobId == world.job.id)
            await world.tell(ids.Updates.SIGHTING, RUNS)
            await heard.next(lambda one: (one.jobId, one.jobStatus) == (world.job.id, "running"))
            await handle.terminate("the test is over")


async def test_a_job_that_does_not_answer_holds_up_the_news_of_no_other(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker has its workflow: each question to it waits until it is given up."""
    monkeypatch.setattr(job_workflows, "RPC_TIMEOUT", timedelta(seconds=0.5))
    async with asking(temporal) as (world, peer):
        name = f"mute-{world.job.id}"
        handle = await world.client.start_workflow(Strange.run, id=ids.job_workflow(name), task_queue=name)
        heard = peer.jobs(await registered(peer))
        await heard.next(lambda one: one.jobId == world.job.id)
        async with asyncio.timeout(job_workflows.PATIENCE):  # one question, as others ask it
            for told, status in ((RUNS, "running"), (STARTS, "pending"), (RUNS, "running")):
                await world.tell(ids.Updates.SIGHTING, told)
                wanted = (world.job.id, status)
                await heard.next(lambda one, wanted=wanted: (one.jobId, one.jobStatus) == wanted)  # type: ignore[misc]
        await handle.terminate("the test is over")


async def test_a_job_that_answers_again_is_told_again(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control worker was away for a while."""
    monkeypatch.setattr(job_workflows, "RPC_TIMEOUT", timedelta(seconds=0.5))
    async with asking(temporal) as (world, peer):
        heard = peer.jobs(await registered(peer))
        await heard.next(lambda one: one.jobId == world.job.id)
        silent = asyncio.Event()

        def noted(words: str, **_: Any) -> None:
            if words == "job not queried":
                silent.set()

        monkeypatch.setattr(watch.logger, "info", noted)
        await world.control.stop()
        await asyncio.wait_for(silent.wait(), 60)
        await world.control.start()
        await world.status()  # the new worker answers: an update that the old one did not look at would be rejected
        await world.tell(ids.Updates.SIGHTING, RUNS)
        await heard.next(lambda one: (one.jobId, one.jobStatus) == (world.job.id, "running"))


async def test_a_job_of_the_same_name_that_does_not_answer_keeps_nobody_from_switching_tracing(
    temporal: WorkflowEnvironment,
) -> None:
    """Another tenant has it, in another namespace."""
    async with asking(temporal, a_mindio_job()) as (world, peer):
        name = f"mute-{world.job.id}"
        named = TypedSearchAttributes([SearchAttributePair(Attributes.JOB, world.job.name)])
        handle = await world.client.start_workflow(
            Strange.run, id=ids.job_workflow(name), task_queue=name, search_attributes=named
        )
        async with asyncio.timeout(60):
            while len([run async for run in world.client.list_workflows(f"RekindleJob = '{world.job.name}'")]) < 2:
                await asyncio.sleep(0.05)
        async with asyncio.timeout(job_workflows.PATIENCE):
            assert (await peer.switch_tracing(f"default/{world.job.name}", Step="on")).code == 200
            assert (await peer.tracing(f"default/{world.job.name}")).profilingSwitch.Step == "on"
            assert (await peer.tracing("default/no such name")).code == 404
        await handle.terminate("the test is over")


class Told:
    """Sends news of jobs when a test asks for it."""

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []

    @asynccontextmanager
    async def subscribed(self, job_id: str) -> AsyncIterator[Subscriber]:
        subscriber = Subscriber(job_id)
        self.subscribers.append(subscriber)
        try:
            yield subscriber
        finally:
            self.subscribers.remove(subscriber)

    async def flood(self) -> None:
        """Sends news until a client accepts no more."""
        for number in range(1_000):
            device = DeviceFaults(level=Level.UNHEALTHY, reasons=(f"{number}{'x' * LARGE}",))
            node = NodeFaults(node="node-0", level=Level.UNHEALTHY, devices=(device,))
            for one in self.subscribers:
                one.tell(View(id="job", name="gpt", namespace="x" * LARGE, framework=f"{number}", nodes=(node,)))
            try:
                async with asyncio.timeout(0.3):
                    while any(one.has_news for one in self.subscribers):
                        await asyncio.sleep(0)
            except TimeoutError:
                return
        raise AssertionError("all clients read")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Told, Platform]]:
    told, platforms, server = Told(), Platforms(Settings()), grpc.aio.server()
    fault_pb2_grpc.add_FaultServicer_to_server(FaultService(told, platforms), server)  # type: ignore[arg-type]
    job_pb2_grpc.add_JobServicer_to_server(JobService(told, platforms), server)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with platform(f"127.0.0.1:{port}") as peer:
            yield told, peer
    finally:
        await server.stop(None)


async def _subscribed(peer: Platform, kind: str) -> Heard:
    if kind == "faults":
        await peer.register_for_faults("")
        return peer.faults("")
    client = await registered(peer)
    return peer.jobs(client) if kind == "jobs" else peer.lists_of_jobs(client)


@pytest.mark.parametrize("kind", ["faults", "jobs", "lists of jobs"])
async def test_a_stream_that_is_ended_is_not_held_by_a_client_that_does_not_read(kind: str) -> None:
    """The place is free at once, and the client receives the reason when it reads."""
    async with served() as (told, peer):
        heard = await _subscribed(peer, kind)
        await heard.call.initial_metadata()
        heard._check = lambda _: None
        await told.flood()
        (subscriber,) = told.subscribers
        subscriber.end("the gateway shuts down")
        async with asyncio.timeout(60):
            while told.subscribers:
                await asyncio.sleep(0.01)
        assert await heard.end() == "ABORTED: the gateway shuts down"


async def test_clients_that_never_read_leave_their_role_to_who_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that subscribes again and again, and reads nothing, has one of the places of its role."""
    monkeypatch.setattr(job_service, "MOST_OF_A_ROLE", 2)
    async with served() as (told, peer):
        client = await registered(peer)
        streams: list[Any] = []
        for _number in range(4):
            streams.append(peer.jobs(client))
            await streams[-1].call.initial_metadata()
            await told.flood()
        other = peer.jobs(await registered(peer))
        await other.call.initial_metadata()
        await told.flood()
        assert (await other.call.read()).jobId == "job"


async def test_registrations_that_nobody_uses_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are gone say nothing. Who has a stream keeps it."""
    monkeypatch.setattr(fault_service, "MOST", 3)
    async with served() as (_, peer):
        await peer.register_for_faults("", "stays")
        stays = peer.faults("", "stays")
        await stays.call.initial_metadata()
        for number in range(10):
            await peer.register_for_faults("", f"gone-{number}")
        assert "not registered, role=gone-0" in await peer.faults("", "gone-0").end()
        last = peer.faults("", "gone-9")
        assert (await last.next()).signalType == "normal"
        assert (await stays.next()).signalType == "normal"
        others = [peer.faults("", "gone-8")]
        await others[0].call.initial_metadata()
        with pytest.raises(grpc.aio.AioRpcError, match="3 clients have subscribed, which is the most"):
            await peer.register_for_faults("", "one-more")
