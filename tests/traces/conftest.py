"""Fixture of the tests of traces."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rekindle import otlp
from rekindle.spans import Process
from tests.fakes.collector import Collector, collector


@pytest_asyncio.fixture
async def traced(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector to which this process exports."""
    async with collector() as there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        with otlp.exporting(Process.CONTROL):
            yield there
