"""Processes of different releases: refused with both versions named, before anything of the job is touched."""

import asyncio
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import grpc
import pytest

from rekindle_training.processor.processor import REFUSED
from rekindle_wire import PROTOCOL, protocol_problem
from rekindle_wire.training_pb2 import Hello, ManagerMessage, RankMessage
from rekindle_wire.training_pb2_grpc import RanksServicer, RanksStub, add_RanksServicer_to_server
from tests.training.gateway_service import GatewayPeer
from tests.training.job import Job


class Refusing(RanksServicer):
    """A manager of another release."""

    async def Join(  # noqa: N802  # the contract's name
        self, request_iterator: AsyncIterator[RankMessage], context: Any
    ) -> AsyncIterator[ManagerMessage]:
        first = await anext(request_iterator)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, protocol_problem(first.hello.protocol + 1))
        yield ManagerMessage()


@pytest.mark.parametrize("spoken", [0, PROTOCOL + 1])
async def test_a_manager_refuses_a_process_of_another_protocol(
    job: Job, gateway: GatewayPeer, reference: list[bytes], spoken: int
) -> None:
    """The stream ends with the field, what was said and what is accepted; the job's own processes train as ever. The gateway
    has heard which protocol and release the manager has."""
    await job.manager()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        stub: Any = RanksStub(channel)
        hello = RankMessage(hello=Hello(rank=0, role="worker", process="stranger", protocol=spoken))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Join(iter([hello]), wait_for_ready=True).read()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"protocol: {spoken} is not spoken here, accepted is {PROTOCOL}" in (refused.value.details() or "")
    for pod_rank in (0, 1):
        await job.worker(pod_rank)
    assert await job.codes() == {0}
    assert gateway.spoken == f"{PROTOCOL} {version('rekindle-recovery-training')}"
    assert job.final() == reference


async def test_a_launcher_that_counts_other_ranks_than_the_manager_does_not_wait_in_silence(job: Job) -> None:
    """An operator may write another number than the manifest has: the log of its pod has both numbers."""
    await job.manager()
    job.flags = ["--nproc-per-node=1"]
    worker = await job.worker(0)
    async with asyncio.timeout(60):
        while "1 in each pod" not in job.outputs():
            await asyncio.sleep(0.05)
    assert "its launcher has 2 ranks, 1 in each pod; accepted is what --nnodes and --nproc-per-node of " in job.outputs()
    assert await worker.code() == REFUSED


async def test_a_process_that_is_refused_ends_and_says_why(job: Job) -> None:
    """A process that is refused does not come back for ever. Its pod fails, and the log has the reason."""
    server = grpc.aio.server()
    add_RanksServicer_to_server(Refusing(), server)
    server.add_insecure_port(f"127.0.0.1:{job.port}")
    await server.start()
    try:
        assert await (await job.worker(0)).code() == REFUSED
    finally:
        await server.stop(0)
    assert "install one release of rekindle-recovery-training everywhere" in job.outputs()
