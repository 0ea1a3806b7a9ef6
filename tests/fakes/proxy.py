"""gRPC proxy in front of the Temporal server, with which a test can inspect every call, hold it open, and drop it.

Calls are passed on as raw bytes, long polls too. A caller that dies takes its call at the server with it, as a broken connection
would.
"""

from __future__ import annotations  # grpc's classes are generic in their stubs only

from typing import TYPE_CHECKING, Protocol, Self

import grpc

METHODS = "/temporal.api.workflowservice.v1.WorkflowService/"
LARGE = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
UPSTREAM = (
    *LARGE,
    ("grpc.initial_reconnect_backoff_ms", 100),  # a server that comes back is reached at once: the delay is not the proxy's
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)
OWN_HEADERS = (":", "grpc-", "user-agent", "te", "content-type")

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[bytes, bytes]
    Raw = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class Dropped(Exception):
    """The call is not passed on because its caller is dead."""


class Watcher(Protocol):
    """Observer of the calls. It may await as long as a call should be held open."""

    async def before(self, caller: str, method: str, request: bytes) -> object:
        """Observes a call before the server receives it. Returns the value that is passed to `after`. Raises Dropped."""
        ...

    async def after(self, caller: str, method: str, noted: object, response: bytes) -> None:
        """Observes the server's answer before the caller receives it."""
        ...


class Proxy:
    """Proxy between one caller and the server."""

    def __init__(self, caller: str, server: str, watcher: Watcher) -> None:
        self._caller, self._server_address, self._watcher = caller, server, watcher
        self._calls: dict[str, Raw] = {}
        self.address = ""

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._server_address, options=UPSTREAM)
        self._server = grpc.aio.server(handlers=[_AnyMethod(self)], options=LARGE)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)
        await self._channel.close()

    async def pass_on(self, path: str, request: bytes, context: Context) -> bytes:
        """Passes on one call, and shows it to the watcher on its way in and out."""
        method = path.removeprefix(METHODS)
        try:
            noted = await self._watcher.before(self._caller, method, request)
            response = await self._forward(path, request, context)
            await self._watcher.after(self._caller, method, noted, response)
        except Dropped:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped")
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
        return response

    async def _forward(self, path: str, request: bytes, context: Context) -> bytes:
        if path not in self._calls:
            self._calls[path] = self._channel.unary_unary(path, request_serializer=None, response_deserializer=None)
        remaining = context.time_remaining()
        headers = tuple((key, value) for key, value in context.invocation_metadata() or () if not key.startswith(OWN_HEADERS))
        return await self._calls[path](request, metadata=headers, timeout=remaining)


class _AnyMethod(grpc.GenericRpcHandler):
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        path = str(handler_call_details.method)

        async def handle(request: bytes, context: Context) -> bytes:
            return await self._proxy.pass_on(path, request, context)

        return grpc.unary_unary_rpc_method_handler(handle)
