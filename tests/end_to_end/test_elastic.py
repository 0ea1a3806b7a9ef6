"""Real jobs go on with fewer replicas where no node is free, and grow back."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.demos.elastic import ElasticDemo, ElasticScenario
from rekindle.cli.stack import Machine, Stack, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed() -> AsyncIterator[tuple[Stack, Path]]:
    with tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as folder:
        async with running(Path(folder), Machine(nodes=4, accelerators=1)) as stack:
            yield stack, Path(folder)


async def test_two_nodes_are_lost_one_after_the_other_and_come_back(installed: tuple[Stack, Path]) -> None:
    """No node is free. The parameters are those of an undisturbed run, and no step is lost."""
    stack, directory = installed
    options = ElasticDemo(steps=100)
    result = await ElasticScenario(options, stack, directory, lambda _: None).run()
    assert options.is_met_by(result), result
