"""An OTLP collector on this machine: it takes spans as protobuf over HTTP, and keeps them."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Told = str | int | float | bool | list[str]


@dataclass(frozen=True)
class Received:
    """A span, with its times in seconds."""

    name: str
    trace: str
    id: str
    parent: str
    began: float
    ended: float
    service: str
    attributes: dict[str, Told]
    error: str


@dataclass
class Collector:
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: bool = True
    """False: it takes no request to its end."""
    says: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    """Answer instead of its own. Spans are not kept then."""
    port: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, condition: Callable[[list[Received]], bool], within: float = 60.0) -> list[Received]:
        """Returns the spans as soon as they satisfy a condition."""
        async with asyncio.timeout(within):
            while not condition(self.spans):
                self._changed.clear()
                await self._changed.wait()
        return self.spans

    async def trace(self, incident: int = 1, job: str = "") -> list[Received]:
        """Waits for the root of an incident, and returns the spans of its trace."""

        def is_root(span: Received) -> bool:
            return span.name == "incident" and span.attributes["rekindle.incident"] == incident and job in (*_jobs(span), "")

        found = await self.until(lambda spans: any(map(is_root, spans)))
        root = next(filter(is_root, found))
        return [span for span in self.spans if span.trace == root.trace]

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.says:
            return await self.says(request)
        if not self.answers:
            await asyncio.Event().wait()
        if request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.headers.append(dict(request.headers))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {pair.key: _plain(pair.value) for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_received(span, str(about["service.name"])) for span in scope.spans]
        self._changed.set()
        return web.Response(body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf")


def _jobs(span: Received) -> tuple[Told, Told]:
    return span.attributes["rekindle.job.id"], span.attributes["rekindle.job.name"]


def _received(span: Span, service: str) -> Received:
    return Received(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        began=span.start_time_unix_nano / 1e9,
        ended=span.end_time_unix_nano / 1e9,
        service=service,
        attributes={pair.key: _plain(pair.value) for pair in span.attributes},
        error=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
    )


def _plain(value: AnyValue) -> Told:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [one.string_value for one in value.array_value.values]
    said: str | int | float | bool = getattr(value, kind or "string_value")
    return said


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Runs a collector on a free port."""
    made = Collector()
    application = web.Application()
    application.add_routes([web.post("/v1/traces", made.take)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.port = runner.addresses[0][1]
        yield made
    finally:
        await runner.cleanup()
