"""Service `job.Job` of the wire contract: sends platforms the jobs and their states.

The messages have no rank table: `HcclJson` is empty, as ClusterD leaves it for large jobs.
"""

import logging
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc

from rekindle.errors import Unavailable
from rekindle.policy.platforms import Stage, View
from rekindle_wire import job_pb2 as wire
from rekindle_wire import job_pb2_grpc
from workers.gateway.access import Context
from workers.gateway.limits import Bucket
from workers.gateway.platforms import Platforms
from workers.gateway.watch import ALL, Ended, Subscriber, Watch

REGISTERED = 200
ROLES = ("CCAgent", "DefaultUser1", "DefaultUser2", "FdAgent")
MOST_OF_A_ROLE = 20
"""Largest number of streams of one role. Source, also of the roles: ClusterD."""

RATE, BURST = 20.0, 20
"""Largest number of subscriptions per second, and largest burst. Source: ClusterD."""

MOST = 10_000
"""Largest number of clients in memory; the least recent registrations are dropped."""

BATCH = 1_000
"""Number of jobs in one message: some 300 bytes each, of the 8 MiB that a message may have."""

logger = logging.getLogger("gateway")


@dataclass
class _Client:
    role: str
    subscriber: Subscriber | None = None


class JobService(job_pb2_grpc.JobServicer):
    def __init__(self, watch: Watch, platforms: Platforms) -> None:
        self._watch, self._platforms = watch, platforms
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._streams: Counter[str] = Counter()
        """Number of open streams by role."""
        self._subscriptions = Bucket(RATE, BURST)

    async def Register(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        """Returns an id with which the client can subscribe once."""
        await self._platforms.admit(context)
        if request.role not in ROLES:
            words = f"role: {request.role[:40]!r} is not accepted: {', '.join(ROLES)}"
            await context.abort(grpc.StatusCode.UNKNOWN, words)
        client_id = str(uuid.uuid4())
        self._clients[client_id] = _Client(request.role)
        if len(self._clients) > MOST:
            self._forget_the_oldest()
        return wire.Status(code=REGISTERED, info="registration successful", clientId=client_id)

    def _forget_the_oldest(self) -> None:
        idle = next((name for name, client in self._clients.items() if client.subscriber is None), None)
        if idle is not None:
            del self._clients[idle]

    async def SubscribeJobSummarySignal(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        """Sends all jobs, one message each, and then each job that changes."""
        async with self._subscription(request, context) as subscriber:
            while news := await subscriber.news():
                for view in news:
                    await subscriber.write(context, _signal(view))

    async def SubscribeJobSummarySignalList(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        """Sends all jobs in as few messages as possible, and then those that change."""
        async with self._subscription(request, context) as subscriber:
            if not subscriber.has_news:
                await subscriber.write(context, _list([], 0))
            while news := await subscriber.news():
                for batch in _batches(news):
                    await subscriber.write(context, _list(batch, len(news)))

    @asynccontextmanager
    async def _subscription(self, request: wire.ClientInfo, context: Context) -> AsyncIterator[Subscriber]:
        """Opens the stream of a registered client. A second stream ends the first; the end of the last one unregisters the
        client."""
        client = await self._admitted(request, context)
        self._streams[client.role] += 1
        ended = ""
        try:
            async with self._watch.subscribed(ALL) as subscriber:
                if client.subscriber:
                    client.subscriber.end("another subscriber took over")
                client.subscriber = subscriber
                await context.send_initial_metadata(())
                try:
                    with suppress(Ended):
                        yield subscriber
                finally:
                    if client.subscriber is subscriber:
                        self._clients.pop(request.clientId, None)
                ended = subscriber.ended
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            self._streams[client.role] -= 1
        await context.abort(grpc.StatusCode.ABORTED, ended)

    async def _admitted(self, request: wire.ClientInfo, context: Context) -> _Client:
        await self._platforms.admit(context)
        client = self._clients.get(request.clientId)
        problem = ""
        if client is None:
            problem = f"clientId: {request.clientId[:40]!r} is not registered here, please register first"
        elif client.role != request.role:
            problem = f"role: {request.role[:40]!r} is not the one that has registered, {client.role}"
        elif self._streams[client.role] >= MOST_OF_A_ROLE and client.subscriber is None:
            problem = f"role: {client.role} has {MOST_OF_A_ROLE} subscriptions, which is the most"
        elif not await self._subscriptions.take():
            problem = f"rate limited: more than {RATE:g} subscriptions a second, please retry later"
        if problem or client is None:
            await context.abort(grpc.StatusCode.UNKNOWN, problem)
            raise AssertionError
        return client


def _list(views: list[View], total: int) -> wire.JobSummarySignalList:
    signals = [_signal(view) for view in views]
    return wire.JobSummarySignalList(jobSummarySignals=signals, ReportTime=str(int(time.time() * 1000)), JobTotalNum=total)


def _signal(view: View) -> wire.JobSummarySignal:
    over = view.is_over or view.stage in (Stage.FAILED, Stage.COMPLETE)
    return wire.JobSummarySignal(
        uuid=str(uuid.uuid4()),
        jobId=view.id,
        jobName=view.name,
        namespace=view.namespace,
        frameWork=view.framework,
        jobStatus=view.stage,
        time=str(int(view.since.timestamp())) if view.since else "",
        cmIndex="0",
        total="1",
        deleteTime=str(int(time.time())) if over else "",
        operator="delete" if view.is_over else "add",
    )


def _batches(views: list[View]) -> Iterator[list[View]]:
    for start in range(0, len(views), BATCH):
        yield views[start : start + BATCH]
