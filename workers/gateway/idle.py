"""Streams on which nothing is ever sent: a client that could not hold them would ask for them again every other second.

A manager subscribes at its start to what a person may ask of its job: links that are to be switched, a stress test, another level
of tracing. As long as nobody can ask for them here, each of them is held open until the client leaves.
"""

import asyncio
from typing import Any

import grpc

from rekindle_wire import recover_pb2 as wire
from workers.gateway.desk import Context, Desk

DATA_TRACE = "TrainingDataTrace"


class IdleStreams:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._over = asyncio.Event()
        self._reason = ""

    async def hold(self, context: Context, job_id: str) -> None:
        """Keeps a stream open. Who subscribes need not be registered yet: managers come here before Init."""
        async with self._desk.subscription(context, job_id):
            await context.send_initial_metadata(())
            await self._over.wait()
            await context.abort(grpc.StatusCode.ABORTED, self._reason)

    def end_all(self, reason: str) -> None:
        self._reason = reason
        self._over.set()


def data_trace(idle: IdleStreams) -> grpc.GenericRpcHandler:
    """The method of ClusterD's service `TrainingDataTrace` that managers call. Its request is a `ClientInfo` on the wire."""

    async def subscribe(request: wire.ClientInfo, context: Context) -> None:
        await idle.hold(context, request.jobId)

    behaviour: Any = subscribe  # writes through its context, which grpc.aio allows and its types do not know
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
        behaviour, request_deserializer=wire.ClientInfo.FromString
    )
    return grpc.method_handlers_generic_handler(DATA_TRACE, {"SubscribeDataTraceSwitch": handler})
