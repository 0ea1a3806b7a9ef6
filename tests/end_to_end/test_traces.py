"""The whole product with a collector: the trace of each incident is one tree with spans of every process, and has no gaps."""

import os
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rekindle.cli.demos.process_faults import Strike
from rekindle.cli.stack import Machine, running
from rekindle.model.mode import Mode
from tests.end_to_end.conftest import Product
from tests.fakes.collector import Collector, Received, collector
from tests.traces.test_incident import root_of, unexplained

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

PATH = pytest.mark.same_path("the trace of an incident, on one machine")
RANKS = {0, 1, 2, 3}


@dataclass
class Traced:
    product: Product
    collector: Collector

    async def trace(self, *names: str) -> list[Received]:
        """Waits for the trace of the only incident, with what its ranks have told, which comes in several messages.

        Args:
            names: names of spans of the manager and of ranks.
        """
        (trace,) = {span.trace for span in await self.collector.until(_has_root) if span.name == "incident"}

        def is_whole(spans: list[Received]) -> bool:
            found = [span for span in spans if span.trace == trace]
            return ranks_of(found) == RANKS and {span.name for span in found} >= set(names)

        await self.collector.until(is_whole)
        return [span for span in self.collector.spans if span.trace == trace]


def _has_root(spans: list[Received]) -> bool:
    return any(span.name == "incident" for span in spans)


def ranks_of(spans: list[Received]) -> set[object]:
    return {span.attributes["rekindle.rank"] for span in spans if span.service == "rekindle-rank"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def traced() -> AsyncIterator[Traced]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as folder:
        async with collector() as there:
            patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
            async with running(Path(folder), Machine(nodes=3, accelerators=2)) as stack:
                yield Traced(Product(stack, Path(folder)), there)


def is_whole(spans: list[Received], result: dict[str, Any]) -> None:
    """Asserts that the trace is one tree without gaps, with spans of all processes."""
    root = root_of(spans)
    assert not unexplained(spans)
    assert {"rekindle-control", "rekindle-gateway", "rekindle-manager", "rekindle-rank"} <= {span.service for span in spans}
    assert [span.name for span in spans if span.parent == root.id and span.name in set(Mode)] == [
        step["mode"] for step in result["ladder"]
    ]


@PATH
async def test_a_hot_switch_has_spans_of_the_watcher_and_of_every_rank(traced: Traced) -> None:
    """The backup loads, all ranks hold and pause, and the new communicator, the state and the first step are in the trace."""
    traced.collector.spans.clear()
    result = await traced.product.run()
    spans = await traced.trace("backups load", "hold", "pause", "rebuild", "communicator", "state", "first step")
    is_whole(spans, result)
    assert "rekindle-watcher" in {span.service for span in spans}


@PATH
async def test_a_rank_that_is_killed_has_spans_of_the_gateway_and_of_every_rank(traced: Traced) -> None:
    """The replacement takes the state of another rank."""
    traced.collector.spans.clear()
    result = await traced.product.struck(Mode.IN_PLACE, Strike.KILL)
    is_whole(await traced.trace("replacements start", "rebuild", "communicator", "state", "first step"), result)


@PATH
@pytest.mark.parametrize(
    ("mode", "strike"),
    [
        (Mode.ONLINE_RETRY, Strike.MEMORY),
        (Mode.PROCESS_RESCHEDULING, Strike.KILL),
        (Mode.DYING_GASP, Strike.KILL),
        (Mode.POD_RESCHEDULING, Strike.KILL),
        (Mode.JOB_RESCHEDULING, Strike.KILL),
    ],
)
async def test_each_other_mode_has_one_tree(traced: Traced, mode: Mode, strike: Strike) -> None:
    """Spans of all processes are in it, also where new processes take all ranks."""
    traced.collector.spans.clear()
    result = await traced.product.struck(mode, strike)
    is_whole(await traced.trace("communicator", "first step"), result)


@PATH
async def test_a_kill_of_the_control_worker_leaves_one_tree(traced: Traced) -> None:
    """The control worker is killed when the fault is reported. Its successor ends the recovery, and exports the whole trace."""
    traced.collector.spans.clear()

    async def kill(_: object) -> None:
        control = traced.product.stack.members["control"].process
        assert control is not None
        os.kill(control.pid, signal.SIGKILL)

    result = await traced.product.struck(Mode.IN_PLACE, Strike.KILL, ("process fault report sent", kill))
    is_whole(await traced.trace(), result)
