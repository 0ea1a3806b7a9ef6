"""A real local cluster for tests: `async with local_cluster(tmp_path, nodes=3) as client`."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rekindle.cluster_client import ClusterClient
from rekindle.model.cluster import JobObject, JobSpec, Node, ObjectMeta, Pod, PodPhase, PodTemplate, WatchEvent

ROOT = Path(__file__).parents[2]
START_LIMIT = 60.0
WAIT_LIMIT = 60.0

FOREVER = ("sleep", "1000")
"""Command of a pod that runs until it is ended."""


Thing = TypeVar("Thing", JobObject, Node, Pod)


@dataclass(frozen=True)
class RunningCluster:
    """Process of a local cluster, and a client of it."""

    client: ClusterClient
    process: asyncio.subprocess.Process
    socket: Path
    state_dir: Path

    async def kill(self) -> None:
        """Kills the cluster with SIGKILL, like the death of its machine."""
        self.process.kill()
        await self.process.wait()


def command_line(
    socket: Path, state_dir: Path, nodes: int, accelerators_per_node: int, gateway_port: int = 8899, *, links: bool = False
) -> list[str]:
    command = [sys.executable, "-P", "-m", "simulators.local_cluster", f"--socket={socket}", f"--state-dir={state_dir}"]
    return [
        *command,
        f"--nodes={nodes}",
        f"--accelerators-per-node={accelerators_per_node}",
        f"--gateway-port={gateway_port}",
        *(["--links"] if links else []),
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def shared_cluster(
    state_dir: Path, *, nodes: int, accelerators_per_node: int, gateway_port: int = 8899, links: bool = False
) -> Iterator[Path]:
    """Yields the socket of a local cluster that several tests share, with any event loops."""
    with tempfile.TemporaryDirectory(prefix="rk-") as short:
        socket = Path(short) / "cluster.sock"
        command = command_line(socket, state_dir, nodes, accelerators_per_node, gateway_port, links=links)
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"ready")
            try:
                yield socket
            finally:
                process.terminate()


@asynccontextmanager
async def cluster_process(
    state_dir: Path,
    *,
    nodes: int = 3,
    accelerators_per_node: int = 8,
    gateway_port: int = 8899,
    socket: Path | None = None,
    links: bool = False,
) -> AsyncIterator[RunningCluster]:
    """Runs a local cluster in its own process, and stops it at the end."""
    with tempfile.TemporaryDirectory(prefix="rk-") as short:  # pytest's own directories are too long for a socket
        path = socket or Path(short) / "cluster.sock"
        command = command_line(path, state_dir, nodes, accelerators_per_node, gateway_port, links=links)
        process = await asyncio.create_subprocess_exec(*command, env=environment(), stdout=asyncio.subprocess.PIPE)
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
    """Yields the client of a new local cluster."""
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
    """Stops the cluster with two signals, so that pods that ignore SIGTERM do not delay the end of a test."""
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
    """Returns a job with one rank per pod."""
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
    """Jobs, pods and nodes by name, complete from the beginning and updated by a watch."""

    def __init__(self, jobs: Sequence[JobObject], pods: Sequence[Pod], nodes: Sequence[Node]) -> None:
        self.jobs = {job.metadata.name: job for job in jobs}
        self.pods = {pod.metadata.name: pod for pod in pods}
        self.nodes = {node.metadata.name: node for node in nodes}
        things: list[JobObject | Pod | Node] = [*jobs, *pods, *nodes]
        self._version = max((thing.metadata.resource_version for thing in things), default=0)

    def apply(self, event: WatchEvent) -> None:
        thing = event.object
        if thing.metadata.resource_version <= self._version:
            return
        if isinstance(thing, Pod):
            _apply(self.pods, event.type, thing)
        elif isinstance(thing, Node):
            _apply(self.nodes, event.type, thing)
        else:
            _apply(self.jobs, event.type, thing)


def _apply(table: dict[str, Thing], change: str, thing: Thing) -> None:
    if change == "DELETED":
        table.pop(thing.metadata.name, None)
    else:
        table[thing.metadata.name] = thing


async def until(client: ClusterClient, satisfied: Callable[[View], bool], limit: float = WAIT_LIMIT) -> View:
    """Returns the state of the cluster as soon as it satisfies a condition."""
    async with asyncio.timeout(limit), aclosing(client.watch()) as events:
        first = await anext(events)  # the watch is open: what the lists miss comes as a change
        view = View(await client.jobs(), await client.pods(), await client.nodes())
        view.apply(first)
        while not satisfied(view):
            view.apply(await anext(events))
        return view


async def until_running(client: ClusterClient, *names: str) -> list[Pod]:
    """Returns the pods of these names, when they run."""
    view = await until(client, lambda view: all(phase(view, name) is PodPhase.RUNNING for name in names))
    return [view.pods[name] for name in names]


async def until_said(client: ClusterClient, pod: str, words: str, limit: float = WAIT_LIMIT) -> None:
    """Waits until the pod has written this text."""
    said = ""
    async with asyncio.timeout(limit):
        async for piece in client.logs(pod, follow=True):
            said += piece
            if words in said:
                return
    raise AssertionError(f"{pod} ended without a word of {words!r}: {said}")


async def until_gone(client: ClusterClient, *pods: Pod) -> None:
    """Waits until these pods are gone, compared by UID."""
    uids = {pod.metadata.uid for pod in pods}
    await until(client, lambda view: not uids & {pod.metadata.uid for pod in view.pods.values()})


def phase(view: View, name: str) -> PodPhase | None:
    return view.pods[name].status.phase if name in view.pods else None
