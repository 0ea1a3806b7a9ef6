"""`kubectl drain` of node after node under a training job, on a real control plane. A drain takes a moment longer, and no step is
lost as long as a node is free. The job's owner decides where none is free."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from rekindle.cli.demos import measure
from rekindle.cli.demos.scenario import until
from rekindle.cli.demos.sub_health import HotSwitchScenario, SubHealth
from rekindle.cli.stack import ClusterKind, Machine, Stack, running
from rekindle.model.cluster import Pod, PodPhase
from rekindle.model.keys import JOB_ID, RANK_INDEX, REPLICA_TYPE
from simulators.kubernetes.binaries import kubectl

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

STEPS = 400
STEP_MS = 500.0


class Upgraded(SubHealth):
    """Options of a scenario in which no wait is long."""

    steps: int = STEPS
    at_step: int = 5

    @property
    def limits(self) -> dict[str, float]:
        """Limits with which a restart waits for a node that is being upgraded."""
        return {**super().limits, "backupScheduled": 3, "drainAgain": 2, "replacementScheduled": 3}


class Drained(HotSwitchScenario):
    """Nodes of a job are drained, as the maintainer of a cluster does it."""

    def __init__(self, stack: Stack, directory: Path, drains: Callable[["Drained"], Awaitable[None]]) -> None:
        super().__init__(Upgraded(), stack, directory, lambda _: None)
        self._drains = drains

    def step_ms(self, loading: float) -> float:
        return STEP_MS

    async def strike(self) -> None:
        await self._drains(self)

    async def tidy(self) -> None:
        for node in await self.cluster.nodes():
            await self.cluster.cordon(node.metadata.name, cordoned=False)
        await super().tidy()

    @property
    def steps_lost(self) -> int:
        """Steps lost so far."""
        return measure.steps_lost(measure.read_steps(self.job_directory))

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Waits for a condition while training goes on for as long as it takes."""

        async def holds() -> object:
            self._drag_out()
            return await condition()

        await until(holds, what)

    async def ranks(self) -> dict[str, Pod]:
        """Returns the running pods that hold a rank, by rank."""
        status = await self._status()
        pods = [pod for pod in await self.cluster.pods(self.job_id) if RANK_INDEX in pod.metadata.annotations]
        running = (pod for pod in pods if pod.status.phase is PodPhase.RUNNING and not pod.metadata.deletion_timestamp)
        return {pod.metadata.annotations[RANK_INDEX]: pod for pod in running if pod.metadata.uid[:8] in status.state.holders}

    async def trains_on(self, *nodes: str) -> None:
        """Waits until all ranks are on these nodes, have completed a step there, and nothing more is to be done."""

        async def settled() -> bool:
            on = {pod.spec.node_name for pod in (await self.ranks()).values()}
            status = await self._status()
            return on == set(nodes) and not status.running and not status.state.faults

        await self.until(settled, f"the ranks to be on {' and '.join(nodes)}")
        step = measure.last_step(measure.read_steps(self.job_directory))
        await self.until(lambda: self._has_completed(step + 1), "the next step")

    async def _has_completed(self, step: int) -> bool:
        return measure.last_step(measure.read_steps(self.job_directory)) >= step

    def drain(self, node: str) -> asyncio.Task[str]:
        """Starts `kubectl drain`, and returns the task that returns its output."""
        words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        return asyncio.create_task(self.kubectl("drain", node, *words))

    async def drained(self, node: str) -> str:
        draining = self.drain(node)
        await self.until(lambda: _is_done(draining), f"the drain of {node}")
        said = await draining
        assert f"node/{node} drained" in said, said
        return said

    async def uncordon(self, node: str) -> None:
        await self.kubectl("uncordon", node)

    async def says(self, word: str) -> None:
        """Sets the annotation by which the owner of the job says what happens to it without a spare."""
        await self.kubectl("annotate", "trainingjob", "gpt", f"rekindle.io/drain={word}", "--overwrite")

    async def budgets(self) -> dict[str, bool]:
        """Returns for each budget whether the server has observed it. For an unobserved budget `kubectl drain` reports nothing,
        and asks again 10 s later."""
        found = json.loads(await self.kubectl("get", "poddisruptionbudgets", "--output=json"))
        return {
            one["metadata"]["name"]: one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"]
            for one in found["items"]
        }

    async def is_held(self) -> bool:
        return any(counted for name, counted in (await self.budgets()).items() if name.endswith("-drain"))

    async def is_held_by_its_owner(self) -> bool:
        """Returns whether the owner's budget alone holds the job, and ours no longer does."""
        return await self.budgets() == {"own": True}

    async def is_not_held(self) -> bool:
        return not await self.budgets()

    async def told(self) -> set[str]:
        """Returns the names of the objects that have an event which says that the drain waits."""
        found = json.loads(await self.kubectl("get", "events", "-A", "--field-selector=reason=DrainWaits", "--output=json"))
        return {one["involvedObject"]["name"] for one in found["items"]}

    async def kubectl(self, *words: str) -> str:
        config = self._directory / "kubernetes" / "kubeconfig"
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            str(kubectl(print)), f"--kubeconfig={config}", *words, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        said = out.decode()
        assert process.returncode == 0, said
        return said


async def _is_done(task: asyncio.Task[str]) -> bool:
    return task.done()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[tuple[Stack, Path]]:
    kubectl(print)
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-e2e-")))
        yield await ends.enter_async_context(running(folder, Machine(3, 2, ClusterKind.KUBERNETES))), folder


async def test_a_cluster_is_upgraded_twice_under_a_training_job(stack: tuple[Stack, Path]) -> None:
    """Every node is drained, taken back, and the next follows: first with a spare, held by our budget or the owner's own; then
    without one, each time with another word of the owner. Its parameters are those of an undisturbed run, bit for bit."""
    nodes: list[str] = []

    async def drains(job: Drained) -> None:
        ranks = await job.ranks()
        first, second = ranks["0"].spec.node_name, ranks["1"].spec.node_name
        (third,) = {node.metadata.name for node in await job.cluster.nodes()} - {first, second}
        nodes.extend((first, second, third))
        await with_a_spare(job, first, second, third)
        await without_one(job, first, second, third)

    result = await Drained(*stack, drains).run()
    assert len(nodes) == 3
    assert result["parameters_equal"]
    assert result["policy_after"] == "hotSwitch"


async def with_a_spare(job: Drained, first: str, second: str, third: str) -> None:
    await job.until(job.is_held, "the budget of the job")
    assert "disruption budget" in await job.drained(first)
    await job.trains_on(second, third)
    await job.uncordon(first)

    await job.says("let-go")
    selector = f"--selector={JOB_ID}={job.job_id},{REPLICA_TYPE} notin (manager)"
    await job.kubectl("create", "poddisruptionbudget", "own", selector, "--min-available=2")
    await job.until(job.is_held_by_its_owner, "the owner's budget alone")
    assert "disruption budget" in await job.drained(second)
    await job.trains_on(first, third)
    await job.uncordon(second)
    await job.kubectl("delete", "poddisruptionbudget", "own")

    await job.says("wait")
    await job.until(job.is_held, "the budget of the job")
    await job.drained(third)
    await job.trains_on(first, second)
    assert job.steps_lost == 0


async def without_one(job: Drained, first: str, second: str, third: str) -> None:
    """Drains without a spare: the third node is still cordoned."""
    draining = job.drain(first)
    (waiting,) = [pod.metadata.name for pod in (await job.ranks()).values() if pod.spec.node_name == first]

    async def is_told() -> bool:
        return {waiting, first} <= await job.told()

    await job.until(is_told, "the word that the drain waits")
    assert not draining.done()
    await job.uncordon(third)
    await job.until(lambda: _is_done(draining), "the drain that waited")
    assert f"node/{first} drained" in await draining
    await job.trains_on(second, third)
    assert job.steps_lost == 0

    await job.says("reschedule")
    await job.drained(second)
    await job.uncordon(first)
    await job.trains_on(first, third)

    await job.says("let-go")
    await job.until(job.is_not_held, "the end of our budget")
    await job.drained(third)
    await job.uncordon(second)
    await job.trains_on(first, second)
