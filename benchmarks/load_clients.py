"""Training sides of many jobs in one process. For `benchmarks.load`."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import grpc

from benchmarks.installations import persistently
from rekindle_wire import PROTOCOL, training_pb2
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from rekindle_wire.training_pb2_grpc import ProgressStub

OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # otherwise channels of one process share a connection
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
)
"""gRPC options, equal to those of our own manager (`rekindle_training.wire`)."""

FULL = "too many come at once"
"""Message of a gateway that cannot admit a client in time."""

MOST_CONNECTIONS = 1000
"""Maximum number of connections. More of them would take the memory and the time of this process; jobs have them in common."""

LONGEST_RETRY = 1.0
CALL_SECONDS = 60.0


class ScriptedClient:
    """Manager of one job. It reconnects with jitter, and carries out the orders of a hot switch or an in-place recovery at
    once."""

    def __init__(self, channel: grpc.aio.Channel, job_id: str) -> None:
        self.job_id = job_id
        self.attached = asyncio.Event()
        self.sent_away = 0
        """Number of times that the gateway refused the client, because it was full or with an error code."""
        self.first_order_at: float | None = None
        self._channel = channel
        self._me = wire.ClientInfo(jobId=job_id, role="taskd")
        self._stub: Any = RecoverStub(channel)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._live())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _live(self) -> None:
        """Subscribes and reconnects until it is cancelled."""
        while True:
            try:
                await self._subscribe()
            except grpc.aio.AioRpcError as error:
                self.sent_away += FULL in (error.details() or "")
            self.attached.clear()
            await asyncio.sleep(random.uniform(0, LONGEST_RETRY))

    async def _subscribe(self) -> None:
        for call in (self._stub.Init, self._stub.Register):
            if (await call(self._me, timeout=CALL_SECONDS)).code:
                self.sent_away += 1
                return
        stream = self._stub.SubscribeProcessManageSignal(self._me)
        await stream.initial_metadata()
        self.attached.set()
        async for signal in stream:
            if signal.signalType != "keep-alive":
                await self._carry_out(signal)

    async def _carry_out(self, signal: wire.ProcessManageSignal) -> None:
        self.first_order_at = self.first_order_at or time.monotonic()
        done, stub = wire.Status(info="scripted"), self._stub
        match signal.signalType, signal.changeStrategy or signal.actions[0]:
            case "stopTrain", _:
                await stub.ReportStopComplete(wire.StopCompleteRequest(jobId=self.job_id, status=done))
            case "globalFault", _:
                await stub.ReportRecoverStrategy(wire.RecoverStrategyRequest(jobId=self.job_id, strategies=["recover", "exit"]))
            case _, "new pod running":
                await stub.ReportRecoverStrategy(wire.RecoverStrategyRequest(jobId=self.job_id, strategies=["migration"]))
            case _, ("migration" | "recover") as strategy:
                await stub.ReportRecoverStatus(wire.RecoverStatusRequest(jobId=self.job_id, strategy=strategy, status=done))

    async def report_fault(self) -> None:
        """Reports the loss of the process of rank 2, after which a manager has stopped the other ranks, until it is taken."""
        fault = wire.FaultRank(rankId="2", faultType="1")
        request = wire.ProcessFaultRequest(jobId=self.job_id, faultRanks=[fault])
        status = await persistently(lambda: self._stub.ReportProcessFault(request, timeout=CALL_SECONDS))
        assert status.code == 0, status

    async def first_step(self) -> None:
        stub: Any = ProgressStub(self._channel)
        step = training_pb2.ProgressReport(job_id=self.job_id, incarnation="life-1", step=1, protocol=PROTOCOL)
        assert (await stub.ReportProgress(step, timeout=CALL_SECONDS)).code == 0


@asynccontextmanager
async def scripted(address: str, job_ids: Sequence[str]) -> AsyncIterator[list[ScriptedClient]]:
    """Makes the clients of jobs, and stops them at the end. They begin to attach when they are started."""
    async with AsyncExitStack() as opened:
        count = min(len(job_ids), MOST_CONNECTIONS)
        channels = [await opened.enter_async_context(grpc.aio.insecure_channel(address, options=OPTIONS)) for _ in range(count)]
        clients = [ScriptedClient(channel, job_id) for channel, job_id in zip(cycle(channels), job_ids, strict=False)]
        try:
            yield clients
        finally:
            await asyncio.gather(*(client.stop() for client in clients))


async def all_attached(clients: Sequence[ScriptedClient]) -> None:
    await asyncio.gather(*(client.attached.wait() for client in clients))
