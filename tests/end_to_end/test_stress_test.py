"""The whole product, for real: a node that computes wrongly is found under load, and training goes on without it."""

import pytest

from rekindle.cli.demos.device_check import StressDemo, StressScenario
from tests.end_to_end.conftest import STEPS, Product

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


@pytest.mark.same_path("a rank is struck or a pod is lost, on one machine")
async def test_a_node_that_computes_wrongly_is_isolated_and_training_goes_on_without_it(product: Product) -> None:
    """The ranks of its pod move to a spare node. No step is lost, and the parameters are those of an undisturbed run, bit for
    bit."""
    options = StressDemo(steps=STEPS)
    result = await StressScenario(options, product.stack, product.directory, lambda _: None).run()
    assert options.is_met_by(result), result
    codes = {(row["node"], row["check"]): row["code"] for row in result["tested"]["rows"]}
    assert {key for key, code in codes.items() if code == "2"} == {("node-1", "aic")}
