"""`kubectl drain` of a node under a training job, on a real control plane: it takes a moment longer, and no step is lost."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.stack import ClusterKind, Machine, Stack, running
from rekindle.cli.sub_health import HotSwitchScenario, SubHealth
from rekindle.model.keys import RANK_INDEX
from tests.end_to_end.conftest import STEPS
from tests.end_to_end.test_hot_switch import tried
from workers.local_kubernetes.binaries import kubectl

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


class Drained(HotSwitchScenario):
    """The node of a pod is drained, as the maintainer of a cluster does it."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        super().__init__(SubHealth(steps=STEPS), stack, directory, lambda _: None)
        self.node, self.words = "", ""
        self._draining: asyncio.Task[int] | None = None

    async def strike(self) -> None:
        pods = await self.cluster.pods(self.job_id)
        manager = next(pod for pod in pods if RANK_INDEX not in pod.metadata.annotations)
        pod = next(p for p in pods if RANK_INDEX in p.metadata.annotations and p.spec.node_name != manager.spec.node_name)
        self.node = pod.spec.node_name
        async with asyncio.timeout(20):
            while "No resources" in await self._answer("get", "poddisruptionbudgets"):
                await asyncio.sleep(0.2)
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        self._draining = asyncio.create_task(self._kubectl("drain", self.node, *options))

    async def drained(self) -> int:
        assert self._draining
        return await self._draining

    async def tidy(self) -> None:
        await super().tidy()
        if self._draining:
            await self._draining
            await self._kubectl("uncordon", self.node)

    async def _answer(self, *words: str) -> str:
        before = len(self.words)
        await self._kubectl(*words)
        return self.words[before:]

    async def _kubectl(self, *words: str) -> int:
        config = self._directory / "kubernetes" / "kubeconfig"
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            str(kubectl(print)), f"--kubeconfig={config}", *words, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        self.words += out.decode()
        assert process.returncode is not None
        return process.returncode


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[tuple[Stack, Path]]:
    kubectl(print)
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-e2e-")))
        yield await ends.enter_async_context(running(folder, Machine(3, 2, ClusterKind.KUBERNETES))), folder


async def test_a_drain_of_a_node_under_a_training_job_loses_no_step(stack: tuple[Stack, Path]) -> None:
    """The budget holds the eviction until the ranks have moved; their parameters are those of an undisturbed run, bit for bit."""
    scenario = Drained(*stack)
    result = await scenario.run()
    assert await scenario.drained() == 0, scenario.words
    assert f"node/{scenario.node} drained" in scenario.words, scenario.words
    assert tried(result) == [("hot switch", "recovered")], result
    assert result["parameters_equal"]
    assert (result["steps_lost"], result["policy_after"]) == (0, "hotSwitch")
    assert {moved["before"]["node"] for moved in result["switched"]} == {scenario.node}
