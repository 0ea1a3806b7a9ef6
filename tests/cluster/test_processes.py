"""Pods as processes: no process outlives its pod, and no pod its cluster, however either of them ends."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from rekindle.cluster_client import ClusterClient
from rekindle.errors import ClusterUnavailable, WatchExpired
from rekindle.model.cluster import Condition, Node, NodeStatus, ObjectMeta, Pod, PodPhase
from simulators.local_cluster.options import parse
from simulators.local_cluster.processes import NICE
from simulators.local_cluster.store import Store
from tests.support.cluster import (
    WAIT_LIMIT,
    cluster_process,
    command_line,
    environment,
    job_object,
    local_cluster,
    phase,
    until,
    until_gone,
    until_running,
)

FAMILY = "setsid sleep 1000 & sleep 1000 & (setsid sh -c 'sleep 1000 & wait' &) ; echo up; wait"
"""A pod with a child in its process group, one in a session of its own, and one whose parent is gone."""

STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"


async def family(client: ClusterClient, script: str = FAMILY, name: str = "demo") -> tuple[Pod, list[psutil.Process]]:
    """Returns a running pod, and all its processes."""
    await client.submit(job_object(name, command=("sh", "-c", script)))
    (pod,) = await until_running(client, f"{name}-worker-0")
    async for piece in client.logs(pod.metadata.name, follow=True):
        if "up" in piece:
            break
    mark = f"REKINDLE_POD_UID={pod.metadata.uid}"
    return pod, [process for process in psutil.process_iter() if mark in _environment_of(process)]


def _environment_of(process: psutil.Process) -> list[str]:
    try:
        return [f"{name}={value}" for name, value in process.environ().items()]
    except psutil.Error:
        return []


async def all_gone(processes: list[psutil.Process]) -> bool:
    """Returns whether all processes end within some seconds."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=60)
    return not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


async def test_pods_give_way_to_the_control_plane(client: ClusterClient) -> None:
    """Processes of a pod, in whatever session, have a lower priority than the cluster that started them."""
    _, processes = await family(client)
    assert {process.nice() for process in processes} == {psutil.Process().nice() + NICE}


async def test_a_deleted_pod_takes_its_whole_family_with_it(client: ClusterClient) -> None:
    """No process of a deleted pod remains, in whatever session it was."""
    pod, processes = await family(client)
    assert len(processes) >= 4
    await client.delete_pod(pod.metadata.name, pod.metadata.uid, 0)
    await until_gone(client, pod)
    assert await all_gone(processes)


async def test_a_pod_ends_with_its_first_process(client: ClusterClient) -> None:
    """A pod whose first process ends is over only after its remaining processes were killed."""
    await client.submit(job_object(command=("sh", "-c", "setsid sleep 1000 & echo $!; exit 0")))
    await until(client, lambda view: phase(view, "demo-worker-0") is PodPhase.SUCCEEDED)
    pid = int("".join([piece async for piece in client.logs("demo-worker-0")]))
    with contextlib.suppress(psutil.NoSuchProcess):
        assert await all_gone([psutil.Process(pid)])  # one that was killed may take a moment to be a zombie


async def test_sigterm_comes_before_sigkill(client: ClusterClient) -> None:
    """A pod may tidy up after SIGTERM, within its grace period."""
    pod, _ = await family(client, "trap 'echo tidied; exit 0' TERM; echo up; while :; do sleep 0.02; done")
    pieces = client.logs(pod.metadata.name, follow=True)
    first = await anext(pieces)
    await client.delete_pod(pod.metadata.name, pod.metadata.uid, 60)
    await until_gone(client, pod)
    assert "".join([first, *[piece async for piece in pieces]]).endswith("tidied\n")


@pytest.mark.parametrize("grace", [0, 1])
async def test_a_frozen_pod_dies_too(client: ClusterClient, grace: int) -> None:
    """A stopped process ignores SIGTERM; at the end of its grace period it is killed all the same."""
    pod, processes = await family(client)
    for process in processes:
        process.suspend()
    await client.delete_pod(pod.metadata.name, pod.metadata.uid, grace)
    await until_gone(client, pod)
    assert await all_gone(processes)


async def test_a_killed_pod_says_what_killed_it(client: ClusterClient) -> None:
    """A pod killed from outside is Failed with the signal's name and exit code 137."""
    pod, processes = await family(client)
    assert pod.status.pid is not None
    os.kill(pod.status.pid, signal.SIGKILL)
    view = await until(client, lambda view: phase(view, "demo-worker-0") is PodPhase.FAILED)
    status = view.pods["demo-worker-0"].status
    assert (status.exit_code, status.message) == (137, "killed by SIGKILL; last line: up")
    assert await all_gone(processes)


async def test_a_killed_cluster_leaves_no_orphan(tmp_path: Path) -> None:
    """SIGKILL of the cluster ends all processes of all its pods, and no process answers any more."""
    async with cluster_process(tmp_path) as running:
        processes = [process for name in ("a", "b") for process in (await family(running.client, name=name))[1]]
        await running.kill()
        assert await all_gone(processes)
        with pytest.raises(ClusterUnavailable):
            await running.client.jobs()


async def test_a_killed_guardian_is_replaced(tmp_path: Path) -> None:
    """The cluster starts another guardian, which does the same."""
    async with cluster_process(tmp_path) as running:
        _, processes = await family(running.client)
        parent = psutil.Process(running.process.pid)
        (guardian,) = _guardians(parent)
        guardian.kill()
        await asyncio.to_thread(guardian.wait, 60)
        async with asyncio.timeout(WAIT_LIMIT):
            while not _guardians(parent):
                await running.client.nodes()  # it answers while it has not seen the death yet
        await running.kill()
        assert await all_gone(processes)


def _guardians(parent: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in parent.children():
        try:
            if any("guardian" in word for word in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


async def test_a_cluster_that_is_told_to_stop_ends_its_pods_in_order(tmp_path: Path) -> None:
    """SIGTERM gives pods their grace period and kills what ignores it; the socket is gone, the exit code 0."""
    async with cluster_process(tmp_path) as running:
        pod, processes = await family(running.client, "trap 'echo tidied; exit 0' TERM; echo up; while :; do sleep 0.02; done")
        job = await running.client.job("demo")
        running.process.terminate()
        assert await running.process.wait() == 0
        assert await all_gone(processes)
        log = Path(job.status.directory) / "logs" / f"{pod.metadata.name}.{pod.metadata.uid[:8]}.log"
        assert log.read_text().endswith("tidied\n")
        assert not running.socket.exists()


async def test_a_cluster_that_is_told_twice_stops_at_once(tmp_path: Path) -> None:
    """A second SIGTERM does not wait for pods that ignore the first."""
    async with cluster_process(tmp_path) as running:
        pod, processes = await family(running.client, STUBBORN)
        running.process.terminate()
        await until(running.client, lambda view: view.pods[pod.metadata.name].metadata.deletion_timestamp is not None)
        running.process.terminate()
        async with asyncio.timeout(3):
            await running.process.wait()
        assert await all_gone(processes)


async def test_a_stale_socket_is_replaced_and_a_live_one_is_an_error(tmp_path: Path) -> None:
    """A stale socket is replaced by a new cluster after a crash. Beside a living cluster a second one refuses to start, and names
    the socket."""
    async with cluster_process(tmp_path) as first:
        await first.kill()
        assert first.socket.exists()
        async with cluster_process(tmp_path, socket=first.socket) as second:
            assert len(await second.client.nodes()) == 3
            late = await asyncio.to_thread(_start, first.socket, tmp_path)
    assert late.returncode != 0
    assert f"a local cluster is alive at {first.socket}" in late.stderr


def _start(socket: Path, state_dir: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_line(socket, state_dir, 1, 1), env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--nodes=0", "'0' is not a number from 1 to 1000"),
        ("--gateway-port=none", "'none' is not a number from 1 to 65535"),
        ("--no-such-option", "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, words: str
) -> None:
    """The option's value is named, with what is accepted."""
    with pytest.raises(SystemExit):
        parse([f"--socket={tmp_path / 's'}", f"--state-dir={tmp_path}", argument])
    assert words in capsys.readouterr().err


async def test_a_socket_path_that_is_too_long_keeps_the_cluster_from_starting(tmp_path: Path) -> None:
    """The process ends with one line that says how long the path is and how long it may be."""
    late = await asyncio.to_thread(_start, Path(f"/{'x' * 119}"), tmp_path)
    assert late.returncode != 0
    assert "error: socket /xxx" in late.stderr
    assert "120 bytes" in late.stderr
    assert "Traceback" not in late.stderr


async def test_job_directory_and_port_stay_with_the_job(tmp_path: Path) -> None:
    """Two jobs have two directories and two ports, below the range of ephemeral ports."""
    async with local_cluster(tmp_path) as client:
        jobs = [await client.submit(job_object(name)) for name in ("a", "b")]
    directories = {job.status.directory for job in jobs}
    assert directories == {str(tmp_path / "jobs" / f"{job.metadata.name}-{job.metadata.uid[:8]}") for job in jobs}
    ports = {job.status.master_port for job in jobs}
    assert len(ports) == 2
    assert max(ports) < 32768


async def test_a_watcher_that_does_not_read_is_cut() -> None:
    """A watcher that lags by more than the backlog loses its watch, so that the cluster's memory stays bounded."""
    store = Store(lambda: None, backlog=3)
    with store.watching() as slow, store.watching() as quick:
        events = quick.events()
        for capacity in range(5):
            store.put(_node(capacity))
            assert (await anext(events)).kind == "Node"
        with pytest.raises(WatchExpired, match="list again"):
            await anext(slow.events())


def _node(capacity: int) -> Node:
    ready = Condition(type="Ready", status="True")
    return Node(metadata=ObjectMeta(name="n"), status=NodeStatus(accelerators=capacity, conditions=(ready,)))
