"""A real local cluster for tests: `async with local_cluster(tmp_path, nodes=3) as client`."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rekindle.cluster_client import ClusterClient
from rekindle.model.cluster import JobObject, JobSpec, Node, ObjectMeta, Pod, PodPhase, PodTemplate, WatchEvent

ROOT = Path(__file__).parents[2]
START_LIMIT = 30.0
WAIT_LIMIT = 20.0

FOREVER = ("sleep", "1000")
"""A pod that runs until it is ended."""


@dataclass(frozen=True)
class RunningCluster:
    """The process of a local cluster, and a client of it."""

    client: ClusterClient
    process: asyncio.subprocess.Process
    socket: Path
    state_dir: Path

    async def kill(self) -> None:
        """As the machine dies: SIGKILL."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def cluster_process(
    state_dir: Path, *, nodes: int = 3, accelerators_per_node: int = 8, gateway_port: int = 8899, socket: Path | None = None
) -> AsyncIterator[RunningCluster]:
    """A local cluster in a process of its own; told to stop at the end."""
    with tempfile.TemporaryDirectory(prefix="rk-") as short:  # pytest's own directories are too long for a socket
        path = socket or Path(short) / "cluster.sock"
        command = [f"--socket={path}", f"--state-dir={state_dir}", f"--nodes={nodes}", f"--gateway-port={gateway_port}"]
        command += [f"--accelerators-per-node={accelerators_per_node}"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "workers.local_cluster", *command),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await _ready(process)
            async with ClusterClient(path) as client:
                yield RunningCluster(client, process, path, state_dir)
        finally:
            await _stop(process)


@asynccontextmanager
async def local_cluster(
    state_dir: Path, *, nodes: int = 3, accelerators_per_node: int = 8, gateway_port: int = 8899
) -> AsyncIterator[ClusterClient]:
    """The client of a fresh local cluster."""
    async with cluster_process(
        state_dir, nodes=nodes, accelerators_per_node=accelerators_per_node, gateway_port=gateway_port
    ) as running:
        yield running.client


async def _ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(START_LIMIT):
        line = await process.stdout.readline()
    assert line.startswith(b"ready"), f"the local cluster did not start: {line!r}"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Twice: pods that ignore SIGTERM have no place in a test's end."""
    for _ in range(2):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(START_LIMIT):
        await process.wait()


def job_object(
    name: str = "demo",
    *,
    command: Sequence[str] = FOREVER,
    pods: int = 1,
    accelerators: int = 1,
    labels: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    manager: Sequence[str] | None = None,
) -> JobObject:
    """A job of one rank a pod."""
    return JobObject(
        metadata=ObjectMeta(name=name, labels=dict(labels or {})),
        spec=JobSpec(
            pods=pods,
            ranks_per_pod=1,
            template=PodTemplate(command=tuple(command), env=dict(env or {}), accelerators=accelerators),
            manager=PodTemplate(command=tuple(manager)) if manager else None,
        ),
    )


class View:
    """Pods and nodes as a watch shows them."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, JobObject] = {}
        self.seen: list[WatchEvent] = []

    def apply(self, event: WatchEvent) -> None:
        self.seen.append(event)
        thing = event.object
        table: dict[str, Pod] | dict[str, Node] | dict[str, JobObject]
        table = self.pods if isinstance(thing, Pod) else self.nodes if isinstance(thing, Node) else self.jobs
        if event.type == "DELETED":
            table.pop(thing.metadata.name, None)
        else:
            table[thing.metadata.name] = thing  # type: ignore[assignment]


async def until(client: ClusterClient, satisfied: Callable[[View], bool], limit: float = WAIT_LIMIT) -> View:
    """What the watch shows as soon as it satisfies a condition."""
    view = View()
    async with asyncio.timeout(limit):
        async for event in client.watch():
            view.apply(event)
            if satisfied(view):
                return view
    raise AssertionError("a watch never ends well")


async def until_running(client: ClusterClient, *names: str) -> list[Pod]:
    """The pods of these names, running."""
    view = await until(client, lambda view: all(phase(view, name) is PodPhase.RUNNING for name in names))
    return [view.pods[name] for name in names]


async def until_gone(client: ClusterClient, pod: Pod, limit: float = WAIT_LIMIT) -> None:
    """Waits until this very pod is no more."""
    uid = pod.metadata.uid
    async with asyncio.timeout(limit):
        async for event in client.watch():  # once it is open, nothing is missed
            if event.type == "DELETED" and event.object.metadata.uid == uid:
                return
            if event.kind == "Node" and uid not in {known.metadata.uid for known in await client.pods()}:
                return


def phase(view: View, name: str) -> PodPhase | None:
    return view.pods[name].status.phase if name in view.pods else None
