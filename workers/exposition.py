"""Metrics of a process in Prometheus' text format: our own, and those of the Temporal SDK.

The SDK serves its metrics on a port of its own. It is one of the loopback interface, and its answer is passed on.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator

import aiohttp
from prometheus_client import REGISTRY, Gauge, Metric, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

import rekindle
from rekindle import otlp
from rekindle.errors import Unavailable

BUILD_INFO = Gauge("rekindle_build_info", "Version of the process; the value is 1.", ("version",))

SDK_WITHIN = 5.0
"""Seconds for the metrics of the Temporal SDK. Prometheus waits ten seconds for all."""

PORTS = 5
"""Number of ports that are tried for the SDK's metrics. One may be taken between its choice and its use."""

logger = logging.getLogger("process")

disable_created_metrics()  # type: ignore[no-untyped-call]


class Spans(Collector):
    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("rekindle_spans_dropped", "Spans of traces that were not exported.", value=otlp.dropped())


REGISTRY.register(Spans())


class Exposition:
    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, *, sdk: bool) -> None:
        """Args:
        sdk: True if the process has clients of Temporal. They must not be created before.
        """
        self._sdk = _measured_sdk() if sdk else ""
        self.further: list[Callable[[], bytes]] = []
        """Functions that return further metrics as text."""
        BUILD_INFO.labels(rekindle.__version__).set(1)

    async def text(self) -> bytes:
        """Returns all metrics of the process."""
        own = b"".join([generate_latest(REGISTRY), *(text() for text in self.further)])
        return own + await self._of_sdk() if self._sdk else own

    async def _of_sdk(self) -> bytes:
        """Returns the metrics of the SDK; empty: it does not answer, and ours are exposed all the same."""
        try:
            async with asyncio.timeout(SDK_WITHIN), aiohttp.ClientSession() as session, session.get(self._sdk) as answer:
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("metrics of the Temporal SDK not read", extra={"error": f"{type(error).__name__}: {error}"})
            return b""


def _measured_sdk() -> str:
    """Makes the Temporal SDK measure itself, and returns the URL of its metrics."""
    from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

    for tries_left in range(PORTS, 0, -1):
        address = f"127.0.0.1:{_free_port()}"
        prometheus = PrometheusConfig(address, counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True)
        try:
            runtime = Runtime(telemetry=TelemetryConfig(metrics=prometheus, attach_service_name=False))
        except ValueError as error:  # another process has taken the port meanwhile
            if tries_left == 1:
                raise Unavailable(f"the Temporal SDK cannot expose its metrics on {address}: {error}") from error
        else:
            Runtime.set_default(runtime, error_if_already_set=False)
            return f"http://{address}/metrics"
    raise AssertionError("the last try returns or raises")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
