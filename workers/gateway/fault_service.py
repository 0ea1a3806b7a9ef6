"""Service `fault.Fault` of the wire contract: sends platforms the faults of the nodes of one job, or of all jobs.

The faults are those in the jobs' states. A node without a registered job has no fault here.
"""

import logging
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

import grpc

from rekindle.errors import BadInput, Unavailable
from rekindle.policy.platforms import DeviceFaults, NodeFaults, merged
from rekindle_wire import fault_pb2 as wire
from rekindle_wire import fault_pb2_grpc
from workers.gateway import messages
from workers.gateway.access import INVALID_PARAMETER, OK, Context
from workers.gateway.job_workflows import Rejected
from workers.gateway.limits import Bucket
from workers.gateway.platforms import Platforms
from workers.gateway.watch import ALL, Ended, Subscriber, Watch

FOUND, TOO_MANY = 200, 429
CLUSTER = "-1"
"""Value in place of a job's id: all jobs. Source: ClusterD."""

NODE = "-1"
"""Value in place of a device's id: the node itself. Source: ClusterD."""

RATE, BURST, QUEUE = 10.0, 10, 50
"""Queries per second, largest burst, and number of queries that may wait. Source: ClusterD."""

MOST = 10_000
"""Largest number of remembered clients: those with a stream, and the last that registered. Source: ClusterD's MaxServeJobs."""

LONGEST_ROLE = 128

logger = logging.getLogger("gateway")


class FaultService(fault_pb2_grpc.FaultServicer):
    def __init__(self, watch: Watch, platforms: Platforms) -> None:
        self._watch, self._platforms = watch, platforms
        self._registered: OrderedDict[tuple[str, str], Subscriber | None] = OrderedDict()
        """Registrations by job and role, the newest last, with the stream; None: not subscribed yet."""
        self._questions = Bucket(RATE, BURST, QUEUE)

    async def Register(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        """Registers a platform, or aborts with a gRPC error. An earlier client of the same job and role is disconnected."""
        job_id, role = await self._admitted(request, context)
        try:
            if job_id != ALL:
                await self._watch.ask(job_id)
        except Rejected as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        if not self._has_room((job_id, role)):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST} clients have subscribed, which is the most")
        if older := self._registered.pop((job_id, role), None):
            older.end("another client has registered for this job and role")
        self._registered[job_id, role] = None
        return wire.Status(code=OK, info="register success")

    def _has_room(self, key: tuple[str, str]) -> bool:
        """Returns whether a client may register. If there are too many, removes the oldest one without a stream.

        Nothing reports that such a client is gone.
        """
        if key in self._registered or len(self._registered) < MOST:
            return True
        idle = next((name for name, stream in self._registered.items() if stream is None), None)
        if idle is not None:
            del self._registered[idle]
        return idle is not None

    async def SubscribeFaultMsgSignal(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        """Sends the current faults, and then each change. After the stream has ended a client registers again."""
        job_id, role = key = await self._admitted(request, context)
        if key not in self._registered:
            await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job_id or CLUSTER} not registered, role={role}")
        ended = ""
        try:
            async with self._watch.subscribed(job_id) as subscriber:
                if older := self._registered.get(key):
                    older.end("another subscriber took over")
                self._registered[key] = subscriber
                await context.send_initial_metadata(())
                try:
                    with suppress(Ended):
                        await self._push(subscriber, context)
                finally:
                    if self._registered.get(key) is subscriber:
                        del self._registered[key]
                ended = subscriber.ended
        except Rejected as error:
            self._registered.pop(key, None)
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        await context.abort(grpc.StatusCode.ABORTED, ended)

    async def _push(self, subscriber: Subscriber, context: Context) -> None:
        """Writes each change of the faults; like ClusterD, never sends the same message twice in a row."""
        known: dict[str, tuple[NodeFaults, ...]] = {}
        last: tuple[NodeFaults, ...] | None = None
        if subscriber.job_id == ALL and not subscriber.has_news:
            last = ()
            await subscriber.write(context, _signal(ALL, last))
        while news := await subscriber.news():
            known |= {view.id: view.nodes for view in news}
            for view in news:
                if view.is_over:
                    del known[view.id]
            now = merged(known.values())
            if now != last:
                last = now
                await subscriber.write(context, _signal(subscriber.job_id, now))

    async def GetFaultMsgSignal(self, request: wire.ClientInfo, context: Context) -> wire.FaultQueryResult:
        await self._platforms.admit(context)
        if not await self._questions.take():
            return wire.FaultQueryResult(code=TOO_MANY, info=f"more than {RATE:g} questions a second, and {QUEUE} wait already")
        try:
            job_id, _ = _read(request)
            views = await self._watch.all() if job_id == ALL else [await self._watch.ask(job_id)]
        except (BadInput, Rejected) as error:
            return wire.FaultQueryResult(code=INVALID_PARAMETER, info=str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        signal = _signal(job_id, merged(view.nodes for view in views))
        return wire.FaultQueryResult(code=FOUND, info="query success", faultSignal=signal)

    async def _admitted(self, request: wire.ClientInfo, context: Context) -> tuple[str, str]:
        await self._platforms.admit(context)
        try:
            return _read(request)
        except BadInput as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
            raise


def _read(request: wire.ClientInfo) -> tuple[str, str]:
    """Returns the job's id (`ALL` for all jobs) and the client's role. Raises BadInput."""
    if not 0 < len(request.role) <= LONGEST_ROLE:
        raise BadInput(f"role: {len(request.role)} characters, accepted is the name of a client of 1 to {LONGEST_ROLE}")
    if request.jobId in ("", CLUSTER):
        return ALL, request.role
    return messages.job_id(request.jobId), request.role


def _signal(job_id: str, nodes: Iterable[NodeFaults]) -> wire.FaultMsgSignal:
    told = [
        wire.NodeFaultInfo(nodeName=one.node, faultLevel=one.level, faultDevice=[_device(device) for device in one.devices])
        for one in nodes
    ]
    kind = "fault" if told else "normal"
    return wire.FaultMsgSignal(uuid=str(uuid.uuid4()), jobId=job_id or CLUSTER, signalType=kind, nodeFaultInfo=told)


def _device(device: DeviceFaults) -> wire.DeviceFaultInfo:
    return wire.DeviceFaultInfo(
        deviceId=device.device or NODE,
        deviceType="NPU" if device.device else "Node",
        faultCodes=device.codes,
        faultLevel=device.level,
        faultReason=device.reasons,
    )
