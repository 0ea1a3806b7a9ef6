"""One real stack for the whole folder: Temporal server, control worker, gateway, watcher, local cluster."""

import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest_asyncio

from rekindle.cli.scenario import Meanwhile, Options, Scenario
from rekindle.cli.stack import Machine, Stack, running

STEPS = 120


@dataclass
class Product:
    """The running product, and a way to run the demo's scenario on it."""

    stack: Stack
    directory: Path

    async def run(self, meanwhile: Meanwhile | None = None, **changes: Any) -> dict[str, Any]:
        """The demo's object for one run with these options."""
        options = Options(**{"steps": STEPS, **changes})
        return await Scenario(options, self.stack, self.directory, lambda _: None, meanwhile).run()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product() -> AsyncIterator[Product]:
    with tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as folder:
        async with running(Path(folder), Machine(nodes=3, accelerators=2)) as stack:
            yield Product(stack, Path(folder))
