"""A manifest of `examples/kubernetes` on a running product: real training, through what happens to it, to the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.clusters.api_server import Object
from rekindle.cli.demos import measure
from rekindle.cli.ports import free_ports
from rekindle.cli.stack import Stack
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode, Outcome
from rekindle.model.picture import StepRecord
from rekindle.temporal import connect
from simulators.kubernetes.binaries import kubectl
from tests.kubernetes.world.control_plane import Namespace, a_namespace
from tests.kubernetes.world.examples import CHECKPOINT_EVERY, STEPS, Here, adapted, apply, documents, plural_of

PATIENCE = 600.0
STRUCK_AFTER = 10
"""Number of steps after which the fault is injected."""

UNHURRIED, DRAGGING, HURRIED = 1500, 30_000, 0
"""Milliseconds of a step: while something happens to a job that trains on, when half of its steps are done meanwhile, so that the
others last for `PATIENCE`, and afterwards."""

RANKS = 4
NO_WORDS: Object = {}

Controllers = Callable[[Namespace], AbstractAsyncContextManager[Any]]


def kubeconfig_of(stack: Stack) -> Path:
    return Path(stack.addresses.state_dir) / "kubernetes" / "kubeconfig"


@dataclass(frozen=True)
class Underway:
    """A job that trains."""

    stack: Stack
    rekindle: Rekindle
    namespace: Namespace
    folder: Path
    """Folder that all pods share."""
    uid: str

    def holder(self, rank: int) -> StepRecord:
        """Returns the record of the last step of a rank, which names its pod."""
        return [one for one in measure.read_steps(self.folder) if one.rank == rank][-1]

    async def lose(self, *ranks: int) -> None:
        """The pods of these ranks are gone at once."""
        lost = {(one.pod, one.pod_uid) for one in map(self.holder, ranks)}
        await asyncio.gather(*(self.namespace.api.delete(self.namespace.path("pods", name), uid, 0) for name, uid in lost))

    @asynccontextmanager
    async def degraded(self, node: str) -> AsyncIterator[None]:
        """The node is sub-healthy meanwhile."""
        async with ClusterClient(Path(self.stack.addresses.socket)) as cluster:
            await cluster.degrade(node, "80E18005", "NPU link is degraded")
            try:
                yield
            finally:
                await cluster.heal(node)

    async def budgeted(self) -> None:
        """Returns when the API server has counted the job's disruption budget."""

        def is_counted(budget: Object) -> bool:
            return bool(budget.get("status", {}).get("observedGeneration") == budget["metadata"]["generation"])

        self.unhurried()
        path = f"/apis/policy/v1/namespaces/{self.namespace.name}/poddisruptionbudgets"
        async with asyncio.timeout(PATIENCE):
            while not any(map(is_counted, (await self.namespace.api.list(path)).items)):
                await asyncio.sleep(0.1)

    async def mended(self) -> Incident:
        """The first incident, as soon as it has ended. Training outlasts it."""
        self.unhurried()
        async with asyncio.timeout(PATIENCE):
            while not (history := (await self.rekindle.status(self.uid, ended=True)).state.history):
                if measure.last_step(measure.read_steps(self.folder)) > STEPS / 2:
                    self._take(DRAGGING)
                await asyncio.sleep(0.2)
        return history[0]

    def unhurried(self) -> None:
        """Training lasts for as long as something is to happen to it."""
        self._take(UNHURRIED)

    def hurry(self) -> None:
        """Nothing happens to training any more."""
        self._take(HURRIED)

    def _take(self, milliseconds: int) -> None:
        """Sets the time of a step, from the next one on."""
        scratch = self.folder / "pace.new"
        scratch.write_text(str(milliseconds))
        scratch.replace(self.folder / "pace")

    async def kubectl(self, *words: str) -> str:
        """Runs `kubectl`, for as long as it takes, and returns its output."""
        command = [str(await asyncio.to_thread(kubectl, print)), f"--kubeconfig={kubeconfig_of(self.stack)}", *words]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said
        return said


@dataclass(frozen=True)
class Trained:
    """Result of a completed job."""

    history: Sequence[Incident]
    records: list[StepRecord]

    @property
    def incident(self) -> Incident:
        """The only one."""
        (incident,) = self.history
        return incident

    @property
    def pods(self) -> list[int]:
        """Number of pods that have held each rank, one after the other."""
        return [len({one.pod_uid for one in self.records if one.rank == rank}) for rank in range(RANKS)]

    @property
    def ladder(self) -> list[tuple[Mode, Outcome]]:
        """Modes that were tried, and how each ended."""
        return [(one.mode, one.outcome) for one in self.incident.ladder]


Happens = Callable[[Underway], Awaitable[None]]
"""Disturbance of the job; returns when it is over."""


async def trained_through(
    happens: Happens, kind: str, stack: Stack, folder: Path, controllers: Controllers, words: Object = NO_WORDS
) -> Trained:
    """Applies the manifest, and sees the job to its end, as its controller says it, with equal parameters on all ranks.

    Args:
        folder: which all pods share.
        words: labels and annotations that the job has besides.
    """
    rekindle = Rekindle(await connect(stack.addresses.temporal, started_here=True))
    async with AsyncExitStack() as stays:
        namespace = await stays.enter_async_context(a_namespace(kubeconfig_of(stack), f"kind-{kind.lower()}-{free_ports(1)[0]}"))
        stays.callback(_show_logs, stack, namespace.name)
        await stays.enter_async_context(controllers(namespace))
        applied = adapted(documents(kind), Here(stack.addresses.gateway, free_ports(1)[0], folder))
        job = await apply(namespace, [*applied[:-1], _with(applied[-1], words)])
        underway = Underway(stack, rekindle, namespace, folder, str(job["metadata"]["uid"]))
        await _trains(folder, STRUCK_AFTER)
        await happens(underway)
        underway.hurry()
        await _trains(folder, STEPS)
        done = await namespace.until(plural_of(job), "gpt", _is_complete)
        history = (await rekindle.status(underway.uid, ended=True)).state.history
    assert done["metadata"]["uid"] == underway.uid
    assert len({file.read_bytes() for file in (folder / "final").iterdir()}) == 1
    trained = Trained(history, measure.read_steps(folder))
    tried = ", ".join(f"{one.mode} {one.outcome}" for incident in history for one in incident.ladder)
    print(f"{kind}: {tried or 'no incident'}; steps lost: {measure.steps_lost(trained.records)}; pods: {trained.pods}")
    return trained


async def trained_through_a_lost_pod(
    kind: str, stack: Stack, folder: Path, controllers: Controllers, words: Object = NO_WORDS
) -> None:
    """Deletes the pod of rank 2. Which mode recovers it depends on whether its controller or the replacement creates a pod
    first."""

    async def lose(underway: Underway) -> None:
        await underway.lose(2)

    trained = await trained_through(lose, kind, stack, folder, controllers, words)
    assert trained.incident.verdict is Outcome.RECOVERED, trained.incident
    assert Mode.JOB_RESCHEDULING not in dict(trained.ladder), trained.incident
    assert measure.steps_lost(trained.records) == 0
    assert [one.rank for one in measure.switched(trained.records)] == [2, 3]
    assert trained.pods == [1, 1, 2, 2]


async def trained_through_a_hot_switch(
    kind: str, stack: Stack, folder: Path, controllers: Controllers, words: Object = NO_WORDS, rank: int = 2
) -> None:
    """The node of a rank is marked as sub-healthy, and one is free."""
    left = ""

    async def degrade(underway: Underway) -> None:
        nonlocal left
        left = underway.holder(rank).node
        async with underway.degraded(left):
            await underway.mended()

    _is_moved(await trained_through(degrade, kind, stack, folder, controllers, words), left, rank)


async def trained_through_a_drain(
    kind: str, stack: Stack, folder: Path, controllers: Controllers, words: Object = NO_WORDS
) -> None:
    """`kubectl drain` of the node of rank 2: the budget of the job refuses its eviction until the rank has moved."""
    left = said = ""

    async def drain(underway: Underway) -> None:
        nonlocal left, said
        left = underway.holder(2).node
        await underway.budgeted()
        drained = asyncio.create_task(
            underway.kubectl("drain", left, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={PATIENCE:g}s")
        )
        try:
            await underway.mended()
            said = await drained
        finally:
            await underway.kubectl("uncordon", left)

    _is_moved(await trained_through(drain, kind, stack, folder, controllers, words), left, 2)
    assert "violate the pod's disruption budget" in said, said
    assert f"node/{left} drained" in said, said


def _is_moved(trained: Trained, left: str, rank: int) -> None:
    """The pod of a rank has left its node by a hot switch, and the other pod has stayed."""
    assert trained.ladder == [(Mode.HOT_SWITCH, Outcome.RECOVERED)], trained.incident
    assert measure.steps_lost(trained.records) == 0
    moved = measure.switched(trained.records)
    assert [one.rank for one in moved] == ([2, 3] if rank >= 2 else [0, 1])
    assert {one.before.node for one in moved} == {left}
    assert left not in {one.after.node for one in moved}
    assert sorted(trained.pods) == [1, 1, 2, 2]


async def trained_through_a_restart(kind: str, stack: Stack, folder: Path, controllers: Controllers) -> None:
    """All pods of the job are lost at once, and with them what they had trained since the last checkpoint."""

    async def lose_all(underway: Underway) -> None:
        await underway.lose(0, 2)
        await underway.mended()

    trained = await trained_through(lose_all, kind, stack, folder, controllers)
    assert trained.ladder[-1] == (Mode.JOB_RESCHEDULING, Outcome.RECOVERED), trained.incident
    assert measure.steps_lost(trained.records) <= 2 * CHECKPOINT_EVERY
    assert all(pods > 1 for pods in trained.pods)


@asynccontextmanager
async def nothing_more(_: Namespace) -> AsyncIterator[None]:
    """The controllers run already, for all namespaces."""
    yield


async def watch_anew(stack: Stack) -> None:
    """Restarts the watcher, so that it notices newly installed kinds at once instead of within a minute."""
    watcher = stack.members["watcher"]
    started, process = watcher.started, watcher.process
    assert process
    process.kill()
    while watcher.started == started:
        await asyncio.sleep(0.05)


async def _trains(folder: Path, step: int) -> None:
    """Waits until training has completed a step, by polling the ranks' files."""
    try:
        async with asyncio.timeout(PATIENCE):
            while measure.last_step(measure.read_steps(folder)) < step:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"step {step} was not completed within {PATIENCE:g} s") from None


def _with(job: Object, words: Object) -> Object:
    metadata = {**job["metadata"], **{part: {**job["metadata"].get(part, {}), **said} for part, said in words.items()}}
    return {**job, "metadata": metadata}


def _is_complete(job: Object) -> bool:
    """Returns whether the job's controller reports it as complete."""
    conditions = job.get("status", {}).get("conditions") or ()
    return any(one["type"] in ("Complete", "Completed", "Succeeded") and one["status"] == "True" for one in conditions)


def _show_logs(stack: Stack, namespace: str) -> None:
    """Prints the end of the pods' logs, for the analysis of failures."""
    for log in sorted(kubeconfig_of(stack).parent.rglob(f"{namespace}_*.log")):
        print(f"---- {log.name}", *log.read_text().splitlines()[-45:], sep="\n")
