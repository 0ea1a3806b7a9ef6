"""Real jobs go on with fewer replicas where no node is free, and grow back."""

import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rekindle.cli.demos import measure
from rekindle.cli.demos.elastic import ElasticDemo, ElasticScenario
from rekindle.cli.demos.scenario import until
from rekindle.cli.stack import Machine, Stack, running
from rekindle.model.incident import Incident
from rekindle.model.keys import ELASTIC
from rekindle.model.mode import Mode, Outcome

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


class ReplicasDemo(ElasticDemo):
    """Options of a job with two replicas of two pods each."""

    @property
    def script(self) -> str:
        return "rekindle_training.examples.gpt_replicas"

    @property
    def annotations(self) -> dict[str, str]:
        return {ELASTIC: "1; pods=2; wait=0"}

    @property
    def incidents(self) -> int:
        return 1

    @property
    def expected(self) -> tuple[tuple[Mode, Outcome], ...]:
        return ((Mode.ELASTIC_TRAINING, Outcome.RECOVERED),)


class ReplicasScenario(ElasticScenario):
    """Loses a pod of the second replica. Then its node comes back."""

    async def strike(self) -> None:
        *_, last = await self._nodes_without_manager()
        await self.cluster.take_down(last)
        await self.concluded(1)
        await self._some_steps()
        await self.cluster.bring_up(last)
        await until(self._has_grown, "the return of the replica")
        await self._some_steps()

    def more(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        return {"replicas": [one.model_dump(mode="json") for one in measure.replicas(measure.read_steps(self.job_directory), 2)]}


async def test_a_replica_of_two_pods_is_lost_and_comes_back(installed: tuple[Stack, Path]) -> None:
    """A pod of the replica is lost, and the other pod leaves with it. The parameters are those of an undisturbed run, and no step
    is lost."""
    stack, directory = installed
    result = await ReplicasScenario(ReplicasDemo(steps=100), stack, directory, lambda _: None).run()
    modes = [(step["mode"], step["verdict"]) for step in result["ladder"] if step["mode"] != Mode.SCALING]
    assert (modes, result["steps_lost"], result["parameters_equal"]) == ([*ReplicasDemo().expected], 0, True), result
    assert [one["replicas"] for one in result["replicas"]] == [2, 1, 2], result
