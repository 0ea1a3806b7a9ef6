"""Links of a job are maintained, for real: the kernel counts what nodes send over which link, and cables are really pulled.

Whatever happens meanwhile, the parameters are those of an undisturbed run, bit for bit, and no step is lost.
"""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rekindle.cli.demos.link_failover import BACKUP, FIRST, LinkFailover, LinkFailoverScenario, used
from rekindle.cli.stack import Machine, running
from rekindle.client import Rekindle
from rekindle.maintenances import Maintenances
from rekindle.model.maintenance import Maintenance, Stage
from rekindle.model.mode import Mode
from tests.end_to_end.conftest import Product
from tests.end_to_end.test_hot_switch import tried

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

SAME = pytest.mark.same_path("links of a job are maintained, on one machine")
STEPS = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def product() -> AsyncIterator[Product]:
    with tempfile.TemporaryDirectory(prefix="rekindle-e2e-") as folder:
        async with running(Path(folder), Machine(nodes=3, accelerators=2, links=True)) as stack:
            yield Product(stack, Path(folder))


async def maintained(product: Product, **changes: Any) -> dict[str, Any]:
    """The object of the demo, which went as its options have it go."""
    options = LinkFailover(**{"steps": STEPS, **changes})
    result = await LinkFailoverScenario(options, product.stack, product.directory, lambda _: None).run()
    assert options.is_met_by(result), result
    return result


async def maintenance_of(product: Product, result: dict[str, Any]) -> Maintenance:
    rekindle = await Rekindle.connect(product.stack.addresses.temporal)
    return await Maintenances(rekindle).settled(result["maintenance"])


@SAME
async def test_traffic_leaves_its_links_and_returns(product: Product) -> None:
    """The first links are down while training runs on the others. A rank that is killed meanwhile is replaced in its pod."""
    result = await maintained(product)
    before, between, after = (result[f"links_{when}"] for when in ("before", "between", "after"))
    assert (used(before), used(between), used(after)) == ([FIRST], [BACKUP], [FIRST])
    assert not between[FIRST]["up"]
    assert all(link["up"] for link in (*before.values(), *after.values()))
    assert [moved["rank"] for moved in result["switched"]] == [2]
    for pause, beyond in zip(result["switch_seconds"], result["beyond_switch_seconds"], strict=True):
        assert pause > max(beyond, 0)
    assert (await maintenance_of(product, result)).stage is Stage.OVER


@SAME
async def test_a_rank_that_is_lost_in_a_switch_comes_first(product: Product) -> None:
    """The rank is replaced on the links in use before the switch, and then all ranks move."""
    result = await maintained(product, struck_in_switch=True, no_spare=True)
    assert tried(result)[:3] == [("link switch", "cancelled"), ("in-place recovery", "recovered"), ("link switch", "recovered")]
    assert [moved["rank"] for moved in result["switched"]] == [0, 2]


@SAME
async def test_a_pod_that_is_lost_meanwhile_begins_on_its_first_link(product: Product) -> None:
    """The maintenance is notified of the lost pod, and moves back the links that are left."""
    result = await maintained(product, mode=Mode.PROCESS_RESCHEDULING)
    assert [moved["rank"] for moved in result["switched"]] == [2, 3]
    assert used(result["links_between"]) == [FIRST, BACKUP]
    lost = result["switched"][0]["before"]["node"]
    over, reset, back = (move.what for move in (await maintenance_of(product, result)).moves)
    assert reset == f"on their first links, in new pods: {lost} devices 0,1"
    assert (lost in over, lost in back) == (True, False)
