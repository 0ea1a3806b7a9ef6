"""A real job without replicas goes back to snapshots in memory when a rank is lost, with the whole control plane."""

import pytest

from rekindle.cli.demos.process_faults import ProcessFaultScenario
from rekindle.cli.demos.snapshots import SnapshotsDemo
from tests.end_to_end.conftest import Product

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("lose_pod", [False, True], ids=["rank", "pod"])
async def test_a_lost_shard_comes_from_a_snapshot(product: Product, lose_pod: bool) -> None:
    """No other rank has it, and no checkpoint was written. Training goes back a few steps and ends as an undisturbed run."""
    options = SnapshotsDemo(steps=60, lose_pod=lose_pod)
    result = await ProcessFaultScenario(options, product.stack, product.directory, lambda _: None).run()
    assert options.is_met_by(result), result
