"""Export of spans: ids and services, the queue, and a collector that does not answer."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from rekindle import otlp
from rekindle.spans import Names, Place, Process, Span, incident_place, mode_place
from tests.fakes.collector import Collector, collector

NOW = datetime(2026, 11, 28, 12, 0, 0, 123456, tzinfo=UTC)
RECOVERY = "recovery/default.gpt/3-hot-switch/09145dc8"


def a_span(place: Place, parent: Place | None = None, process: str = Process.CONTROL, **fields: object) -> Span:
    about = {Names.MODE: "hot switch", Names.NODE: "", Names.RANKS: ("2", "3")}
    return Span("a span", place, parent, NOW, NOW + timedelta(seconds=2), process, about, **fields)  # type: ignore[arg-type]


def places() -> tuple[Place, Place]:
    root, mode = incident_place(RECOVERY), mode_place(RECOVERY)
    assert root is not None
    assert mode is not None
    return root, mode


def test_ids_follow_from_names() -> None:
    """Modes of one incident share its trace. Other incidents, and jobs of the same name, have others."""
    root, mode = places()
    assert root.trace == mode.trace
    assert root.span != mode.span
    assert incident_place("recovery/default.gpt/3-job-rescheduling/09145dc8") == root
    for other in ("recovery/default.gpt/4-hot-switch/09145dc8", "recovery/default.gpt/3-hot-switch/aaaaaaaa"):
        assert incident_place(other) != root
    assert incident_place("job/09145dc8") is None


async def test_spans_have_the_ids_and_times_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span arrives as the process that it is of, with exact times, and without empty attributes."""
    root, mode = places()
    async with collector() as there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
        with otlp.exporting(Process.CONTROL):
            export = otlp.exporter()
            assert export
            export.export([a_span(root), a_span(mode, root, Process.GATEWAY, error="escalate")])
            await export.flush(10)
        first, second = there.spans
    assert (first.trace, first.id, first.parent) == (f"{root.trace:032x}", f"{root.span:016x}", "")
    assert (second.trace, second.id, second.parent) == (first.trace, f"{mode.span:016x}", first.id)
    assert (first.began, first.ended) == (NOW.timestamp(), NOW.timestamp() + 2)
    assert (first.service, second.service) == ("rekindle-control", "rekindle-gateway")
    assert first.attributes == {"rekindle.mode": "hot switch", "rekindle.ranks": ["2", "3"]}
    assert second.attributes["error.type"] == second.error == "escalate"
    assert there.headers[0]["api-key"] == "secret"


async def test_the_service_is_named_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OTEL_SERVICE_NAME` names the process that has it, and resource attributes come with every span."""
    root, mode = places()
    async with collector() as there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{there.url}/v1/traces")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        with otlp.exporting(Process.CONTROL):
            export = otlp.exporter()
            assert export
            export.export([a_span(root), a_span(mode, root, Process.GATEWAY)])
            await export.flush(10)
    assert [span.service for span in there.spans] == ["ours", "rekindle-gateway"]


async def test_a_sampler_leaves_out_whole_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of a trace that is not sampled are not sent, also those that have a parent."""
    root, mode = places()
    async with collector() as there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
        with otlp.exporting(Process.CONTROL):
            export = otlp.exporter()
            assert export
            for number in range(40):
                recovery = f"recovery/default.gpt/{number}-hot-switch/09145dc8"
                root, mode = incident_place(recovery) or root, mode_place(recovery) or mode
                export.export([a_span(root), a_span(mode, root)])
            await export.flush(10)
    by_trace = [span.trace for span in there.spans]
    assert 0 < len(by_trace) < 80
    assert all(by_trace.count(trace) == 2 for trace in by_trace)


async def test_a_collector_that_does_not_answer_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export returns at once, a flush and the end of the process are bounded, and spans beyond the queue are counted."""
    root, mode = places()
    async with collector() as there:
        there.answers = False
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
        began = time.monotonic()
        with otlp.exporting(Process.CONTROL):
            export = otlp.exporter()
            assert export
            export.export([a_span(mode.inner(number), root) for number in range(100)])
            assert otlp.dropped() == 96
            await export.flush(0.1)
        assert time.monotonic() - began < otlp.END_WITHIN + 5
        assert otlp.dropped() == 0, "nothing is exported any more"


async def test_spans_that_nobody_takes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that refuses spans, or is not there, costs these spans."""
    root, _ = places()
    gone = Collector()
    async with collector() as there:
        gone.port = there.port
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", gone.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with otlp.exporting(Process.CONTROL):
        export = otlp.exporter()
        assert export
        export.export([a_span(root)])
        await export.flush(10)
        assert otlp.dropped() == 1


async def _redirects(_: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/login"})


async def _shows_a_page(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>Welcome</html>", content_type="text/html")


async def _says_garbage(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\xff\xff", content_type="application/x-protobuf")


async def _takes_none(_: web.Request) -> web.StreamResponse:
    said = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=1))
    return web.Response(body=said.SerializeToString(), content_type="application/x-protobuf")


async def _never_ends(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(bytes(65_536))


async def _is_busy(_: web.Request) -> web.StreamResponse:
    return web.Response(status=429, headers={"Retry-After": "3600"})


@pytest.mark.parametrize("says", [_redirects, _shows_a_page, _says_garbage, _takes_none, _never_ends, _is_busy])
async def test_spans_that_an_endpoint_does_not_keep_are_counted(
    says: Callable[[web.Request], Awaitable[web.StreamResponse]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any web server answers something. Only the answer of a collector means that it has the spans."""
    root, _ = places()
    async with collector() as there:
        there.says = says
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        with otlp.exporting(Process.CONTROL):
            export = otlp.exporter()
            assert export
            export.export([a_span(root)])
            await export.flush(20)
            assert otlp.dropped() == 1
