"""Exporter of spans, by OpenTelemetry's SDK. Imported only where traces are on (`rekindle.otlp`).

Spans wait in a bounded queue for a thread that sends them. A collector that does not answer costs only these spans, which are
counted.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace import export as sdk
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from rekindle.spans import Names, Place, Span

if TYPE_CHECKING:
    from requests import Response

MICROSECOND = timedelta(microseconds=1)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_ANSWER = 65_536
"""Largest number of bytes in the answer of a collector."""


class _GivenIds(IdGenerator):
    """Gives the next span the ids that its place names."""

    next = Place(0, 0)

    def generate_span_id(self) -> int:
        return self.next.span

    def generate_trace_id(self) -> int:
        return self.next.trace


class _Counted(sdk.SpanExporter):
    """Exporter that counts which spans have left the queue, and which of them were not taken."""

    def __init__(self, exporter: sdk.SpanExporter, queue: "SpanExporter") -> None:
        self._exporter, self._queue = exporter, queue

    def export(self, spans: Sequence[ReadableSpan]) -> sdk.SpanExportResult:
        result = sdk.SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._queue.left(len(spans), taken=result is sdk.SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class SpanExporter:
    """Exporter of one process, with its queue."""

    def __init__(self, process: str, queue: int, *, grpc: bool) -> None:
        """Args:
        process: name of this process, of `rekindle.spans.Process`.
        queue: largest number of spans that wait.
        grpc: True if they are sent by gRPC. Otherwise they are sent by HTTP.
        """
        self.dropped = 0
        """Number of spans that were not exported: the queue was full, or the collector did not take them."""
        self._process = process
        self._most, self._waiting, self._lock = queue, 0, threading.Lock()
        self._processor = sdk.BatchSpanProcessor(
            _Counted(_by_grpc() if grpc else _by_http(self.refused), self), max_queue_size=queue
        )
        self._flushing = ThreadPoolExecutor(1, thread_name_prefix="spans")
        self._ids, self._resource = _GivenIds(), Resource.create()
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._providers: dict[str, TracerProvider] = {}

    def export(self, spans: Iterable[Span]) -> None:
        """Queues spans. A trace is exported as a whole or not at all: the sampler decides by its id."""
        for span in spans:
            decision = self._sampler.should_sample(None, span.place.trace, span.name).decision
            if decision is not Decision.RECORD_AND_SAMPLE or not self._has_room():
                continue
            self._ids.next = span.place
            tracer = self._provider(span.process).get_tracer("rekindle")
            around = _context(span.parent) if span.parent else Context()
            made = tracer.start_span(span.name, around, attributes=span.attributes, start_time=_nanoseconds(span.began))
            if span.error:
                made.set_status(Status(StatusCode.ERROR, str(span.about.get(Names.REASON) or span.error)))
            made.end(_nanoseconds(max(span.began, span.ended)))

    def left(self, count: int, *, taken: bool) -> None:
        """Notes that spans have left the queue, and whether the collector has taken them."""
        with self._lock:
            self._waiting -= count
            self.dropped += 0 if taken else count

    def refused(self, count: int) -> None:
        """Notes that the collector has taken a request without these spans."""
        with self._lock:
            self.dropped += count

    async def flush(self, within: float) -> None:
        """Sends what waits, and returns when it was sent, after so many seconds at the latest."""
        await asyncio.wait(
            {asyncio.get_running_loop().run_in_executor(self._flushing, self._processor.force_flush)}, timeout=within
        )

    def shutdown(self, within: float) -> None:
        """Sends what waits, and ends. Spans that are not sent within so many seconds are lost."""
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(within)

    def _has_room(self) -> bool:
        """Takes a place in the queue; False: it is full, and the span counts as dropped."""
        with self._lock:
            has_room = self._waiting < self._most
            self._waiting += has_room
            self.dropped += not has_room
            return has_room

    def _provider(self, process: str) -> TracerProvider:
        """Returns the source of spans of a process, which may be another one than this."""
        if process not in self._providers:
            provider = TracerProvider(self._sampler, self._resource_of(process), shutdown_on_exit=False, id_generator=self._ids)
            provider.add_span_processor(self._processor)
            self._providers[process] = provider
        return self._providers[process]

    def _resource_of(self, process: str) -> Resource:
        is_named = not str(self._resource.attributes[SERVICE_NAME]).startswith("unknown_service")
        if process == self._process and is_named:
            return self._resource
        return self._resource.merge(Resource({SERVICE_NAME: f"rekindle-{process}"}))


def _by_http(refused: Callable[[int], None]) -> sdk.SpanExporter:
    from opentelemetry.exporter.otlp.proto.http import trace_exporter
    from requests import Session

    session = Session()
    session.stream = True  # `_judge` reads the answer
    session.hooks["response"].append(partial(_judge, refused))
    return trace_exporter.OTLPSpanExporter(session=session)


def _judge(refused: Callable[[int], None], answer: "Response", **_: object) -> None:
    """Reads an answer. The SDK takes a redirection, and the page of any web server, for the answer of a collector.

    Args:
        refused: receives the number of spans that the collector did not take.

    Raises:
        ConnectionRefusedError: the spans did not arrive.
    """
    body = answer.raw.read(LONGEST_ANSWER + 1, decode_content=True)
    answer.close()
    kind, asked = answer.headers.get("Content-Type", ""), urlsplit(answer.url)
    where = f"{asked.hostname}:{asked.port}{asked.path}"  # without a password or a token in the URL
    if not 200 <= answer.status_code < 300:
        if answer.is_redirect:
            raise ConnectionRefusedError(f"{where} redirects, set the endpoint to which it leads")
    elif "html" in kind or len(body) > LONGEST_ANSWER:
        raise ConnectionRefusedError(f"{where} is no collector, it answers with {kind or 'too many bytes'}")
    elif kind.startswith("application/x-protobuf"):
        refused(_refused(body))


def _refused(body: bytes) -> int:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        return max(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans, 0)
    except DecodeError as error:
        raise ConnectionRefusedError(f"the collector's answer cannot be read: {error}") from error


def _by_grpc() -> sdk.SpanExporter:
    made: sdk.SpanExporter = import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter").OTLPSpanExporter()
    return made


def _context(place: Place) -> Context:
    known = SpanContext(place.trace, place.span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(known), Context())


def _nanoseconds(time: datetime) -> int:
    return (time - BEGINNING) // MICROSECOND * 1000
