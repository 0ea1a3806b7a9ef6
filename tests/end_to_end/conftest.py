"""One real stack for the whole folder: Temporal server, control worker, gateway, watcher, local cluster."""

import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest_asyncio

from rekindle.cli.process_faults import ProcessFaults, ProcessFaultScenario, Strike
from rekindle.cli.stack import Machine, Stack, running
from rekindle.cli.sub_health import HotSwitchScenario, Meanwhile, SubHealth
from rekindle.cluster_client import ClusterClient
from rekindle.model.recovery import Mode

STEPS = 120
STRUCK_STEPS = 60
"""Training stands while it is recovered."""


@dataclass
class Product:
    """The running product, and ways to run the demos' scenarios on it."""

    stack: Stack
    directory: Path

    async def run(self, meanwhile: Meanwhile | None = None, **changes: Any) -> dict[str, Any]:
        """The object of the hot switch's demo for one run with these options."""
        options = SubHealth(**{"steps": STEPS, **changes})
        return await HotSwitchScenario(options, self.stack, self.directory, lambda _: None, meanwhile).run()

    async def struck(self, mode: Mode, fault: Strike, **changes: Any) -> dict[str, Any]:
        """The object of the demo of a process fault, which went as its options have it go."""
        options = ProcessFaults(**{"mode": mode, "fault": fault, "steps": STRUCK_STEPS, **changes})
        result = await ProcessFaultScenario(options, self.stack, self.directory, lambda _: None).run()
        assert options.is_met_by(result), result
        return result

    async def set_capacity(self, node: str, accelerators: int) -> None:
        """Without any, no new pod finds a place there."""
        async with ClusterClient(Path(self.stack.addresses.socket)) as cluster:
            await cluster.set_capacity(node, accelerators)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product() -> AsyncIterator[Product]:
    with tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as folder:
        async with running(Path(folder), Machine(nodes=3, accelerators=2)) as stack:
            yield Product(stack, Path(folder))
