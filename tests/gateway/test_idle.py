"""Streams that are held open although nothing is ever sent on them, so that idle clients do not ask again and again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle_wire import recover_pb2 as wire
from tests.support.harness import Harness, a_job, harness
from workers.gateway import server

SUBSCRIPTIONS = (
    "/Recover/SubscribeNotifySwitch",
    "/Recover/SubscribeNotifyExecStressTest",
    "/TrainingDataTrace/SubscribeDataTraceSwitch",
)


@asynccontextmanager
async def subscribed(world: Harness, path: str, job_id: str) -> AsyncIterator[Any]:
    """A call as a manager makes it, before it has introduced itself."""
    async with grpc.aio.insecure_channel(world.gateway.address) as channel:
        method: Any = channel.unary_stream(path)
        yield method(wire.ClientInfo(jobId=job_id, role="taskd").SerializeToString())


@pytest.mark.parametrize("path", SUBSCRIPTIONS)
async def test_what_a_manager_subscribes_to_stays_open_until_the_gateway_stops(
    temporal: WorkflowEnvironment, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered or not; the end says why, and does not keep the gateway from stopping."""
    monkeypatch.setattr(server, "GRACE", 3600)
    async with harness(temporal, a_job()) as world, subscribed(world, path, world.job.id) as call:
        await asyncio.wait_for(call.initial_metadata(), 60)
        async with world.peer():
            assert not call.done()
        await asyncio.wait_for(world.gateway.stop(), 60)
        assert await call.code() is grpc.StatusCode.ABORTED
        assert await call.details() == "the gateway shuts down"


@pytest.mark.parametrize("path", SUBSCRIPTIONS)
async def test_a_subscription_without_a_job_is_refused(temporal: WorkflowEnvironment, path: str) -> None:
    """A subscription whose job id cannot be the id of a job is refused instead of held open."""
    async with harness(temporal, a_job()) as world, subscribed(world, path, "a/b") as call:
        assert await call.code() is grpc.StatusCode.UNKNOWN
        assert "'a/b' is not accepted" in await call.details()
