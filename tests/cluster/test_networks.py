"""Nodes with networks of their own: real namespaces, real traffic, and links that are really taken down."""

import asyncio
import json
import socket as sockets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from rekindle.cli import jobs
from rekindle.cli.output import Format
from rekindle.cli.ports import free_ports
from rekindle.cluster_client import ClusterClient
from rekindle.errors import Invalid
from rekindle.model.cluster import Link, Pod
from tests.support.cluster import WAIT_LIMIT, cluster_process, job_object, shared_cluster, until, until_running, until_said

FIRST, BACKUP = "eth1", "eth2"
HUB = "10.77.0.1"

NOISE = 2000
"""Bytes that the ends of a link may exchange for address resolution."""

TORCH_LIMIT = 300.0
"""Seconds in which two pods of low priority import torch."""

TELLS = ("sh", "-c", "env; exec sleep 1000")

LOOKS = """
import fcntl, socket, struct, time
probe, before = socket.socket(), None
while True:
    flags, = struct.unpack_from("H", fcntl.ioctl(probe, 0x8913, struct.pack("256s", b"eth1")), 16)
    if (runs := bool(flags & 0x40)) is not before:
        print("eth1 runs" if runs else "eth1 has no cable", flush=True)
    before = runs
    time.sleep(0.01)
"""

CALLS = """
import os, socket
gateway = socket.create_connection((os.environ["MINDX_SERVER_IP"], int(os.environ["REKINDLE_GATEWAY_PORT"])))
gateway.sendall(b"hello from " + os.environ["REKINDLE_POD_NAME"].encode())
print(gateway.recv(100).decode(), flush=True)
gateway.recv(1)
"""

EXCHANGES = """
import os, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
folder, rank = Path(os.environ["REKINDLE_JOB_DIR"]), int(os.environ["REKINDLE_POD_RANK"])
dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
numbers = torch.full((500_000,), rank + 1.0)
dist.all_reduce(numbers)
print("together", numbers[0].item(), flush=True)
while not (folder / "again").exists():
    time.sleep(0.01)
try:
    dist.all_reduce(numbers, async_op=True).wait(timedelta(seconds=2))
    print("together again", flush=True)
except RuntimeError:
    print("cut off", flush=True)
"""


def script(text: str) -> tuple[str, ...]:
    return ("python", "-c", text)


@pytest.fixture(scope="module")
def gateway_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory, gateway_port: int) -> Iterator[Path]:
    """Runs a cluster whose nodes have networks, for this module."""
    state = tmp_path_factory.mktemp("state")
    with shared_cluster(state, nodes=3, accelerators_per_node=2, gateway_port=gateway_port, links=True) as path:
        yield path


async def links_of(client: ClusterClient, node: str) -> dict[str, Link]:
    return {link.name: link for link in (await client.node(node)).status.links}


# ---- what a pod finds


async def test_a_pod_is_on_the_network_of_its_node(client: ClusterClient) -> None:
    """Workers have an address on their node and two links; the manager has the same address wherever it is, and no link."""
    await client.submit(job_object(command=TELLS, pods=2, accelerators=2, manager=TELLS))
    pods = await until_running(client, "demo-worker-0", "demo-worker-1", "demo-manager-0")
    for pod, address in zip(pods, ("10.77.0.2", "10.77.0.3", HUB), strict=True):
        await until_said(client, pod.metadata.name, f"\nPOD_IP={address}\n")
        await until_said(client, pod.metadata.name, f"\nMASTER_ADDR={HUB}\n")
        await until_said(client, pod.metadata.name, f"\nMINDX_SERVER_IP={HUB}\n")
    await until_said(client, "demo-worker-1", f"\nREKINDLE_LINKS={FIRST},{BACKUP}\n")
    assert "\nREKINDLE_LINKS=" not in "".join([piece async for piece in client.logs("demo-manager-0")])


async def test_without_a_manager_rank_zero_is_the_master(client: ClusterClient) -> None:
    """All pods of the job find the node of that pod, where its own manager listens."""
    await client.submit(job_object(command=TELLS, pods=2, accelerators=2))
    await until_running(client, "demo-worker-0", "demo-worker-1")
    for pod in ("demo-worker-0", "demo-worker-1"):
        await until_said(client, pod, "\nMASTER_ADDR=10.77.0.2\n")


async def test_pods_reach_the_gateway_from_their_networks(client: ClusterClient, gateway_port: int) -> None:
    """Pods reach the gateway from their networks, though it listens on the machine's loopback. A gateway that restarts is reached
    again."""
    for name in ("first", "second"):
        async with answering(gateway_port) as heard:
            await client.submit(job_object(name, command=script(CALLS), manager=script(CALLS)))
            pods = (f"{name}-worker-0", f"{name}-manager-0")
            for pod in pods:
                await until_said(client, pod, "welcome")
            assert sorted(heard) == sorted(f"hello from {pod}" for pod in pods)


@asynccontextmanager
async def answering(port: int) -> AsyncIterator[list[str]]:
    """Yields what callers send to a port of the machine."""
    heard: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await reader.read(100)).decode())
        writer.write(b"welcome")
        kept.append(writer)

    kept: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield heard
        for writer in kept:
            writer.close()


# ---- links


@pytest.mark.timeout(600)
async def test_traffic_of_ranks_leaves_by_the_first_link_and_ends_with_it(client: ClusterClient) -> None:
    """Two nodes reduce a tensor: the first links count its bytes, the backups none. Without the link they cannot."""
    job = await client.submit(job_object(command=script(EXCHANGES), pods=2, accelerators=2))
    pods = await until_running(client, "demo-worker-0", "demo-worker-1")
    before = {pod.spec.node_name: await links_of(client, pod.spec.node_name) for pod in pods}
    for pod in pods:
        await until_said(client, pod.metadata.name, "together 3.0", TORCH_LIMIT)
    for node, then in before.items():
        now = await links_of(client, node)
        assert min(now[FIRST].sent - then[FIRST].sent, now[FIRST].received - then[FIRST].received) > 1_900_000
        assert max(now[BACKUP].sent - then[BACKUP].sent, now[BACKUP].received - then[BACKUP].received) < NOISE
    await client.set_link(pods[0].spec.node_name, FIRST, up=False)
    Path(job.status.directory, "again").touch()
    for pod in pods:
        await until_said(client, pod.metadata.name, "cut off")


async def test_a_link_that_is_down_has_no_cable(client: ClusterClient) -> None:
    """A link that is down has no carrier, and its node's pods see that as on a real one. The node's status, events and the watch
    report it, and no other link changes."""
    await client.submit(job_object(command=script(LOOKS)))
    (pod,) = await until_running(client, "demo-worker-0")
    node = pod.spec.node_name
    known = len(await client.events(node))
    await until_said(client, "demo-worker-0", "eth1 runs\n")
    patched = await client.set_link(node, FIRST, up=False)
    await until_said(client, "demo-worker-0", "eth1 runs\neth1 has no cable\n")
    assert [(link.name, link.up) for link in patched.status.links] == [(FIRST, False), (BACKUP, True)]
    assert {link.up for other in await client.nodes() if other.metadata.name != node for link in other.status.links} == {True}
    assert [event.message for event in (await client.events(node))[known:]] == ["link eth1 is down"]
    await until(client, lambda view: not view.nodes[node].status.links[0].up)
    await client.set_link(node, FIRST, up=True)
    await until_said(client, "demo-worker-0", "eth1 runs\neth1 has no cable\neth1 runs\n")


async def test_links_are_seen_and_pulled_on_the_command_line(
    client: ClusterClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fault inject --link` takes a link down, `nodes` shows it, `fault clear` brings it up again."""
    monkeypatch.setenv("REKINDLE_CLUSTER_SOCKET", str(client.socket))
    await jobs.inject("node-2", link=FIRST)
    await jobs.nodes()
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("node-2")]
    assert f"{FIRST} DOWN" in row
    assert f"{BACKUP} up" in row
    await jobs.clear("node-2")
    await jobs.nodes(output=Format.JSON)
    (_, _, node) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(link["name"], link["up"]) for link in node["links"]] == [(FIRST, True), (BACKUP, True)]


async def test_a_leaf_takes_the_links_of_all_nodes_with_it(client: ClusterClient) -> None:
    """A leaf takes the links of all nodes down, and up again."""
    for up in (False, True):
        await client.set_leaf(BACKUP, up=up)
        nodes = await client.nodes()
        assert [[(link.name, link.up) for link in node.status.links] for node in nodes] == 3 * [[(FIRST, True), (BACKUP, up)]]


async def test_a_link_that_a_node_does_not_have_is_named(client: ClusterClient) -> None:
    """A link that a node does not have is refused with the field and the existing links."""
    with pytest.raises(Invalid, match=r"links\.0\.name: 'eth7' is no link of node-1 \(accepted: eth1, eth2\)"):
        await client.set_link("node-1", "eth7", up=False)
    assert all(link.up for link in (await client.node("node-1")).status.links)


# ---- what is left


async def test_nothing_is_left_of_a_cluster_that_is_killed(tmp_path: Path) -> None:
    """None of its processes, and thus none of its networks, is left. Those of the machine were never touched."""
    interfaces, here = sockets.if_nameindex(), network_of(psutil.Process().pid)
    async with cluster_process(tmp_path, nodes=2, accelerators_per_node=1, links=True) as running:
        await running.client.submit(job_object(pods=2, command=("sh", "-c", "setsid sleep 1000 & sleep 1000"), manager=TELLS))
        pods = await until_running(running.client, "demo-worker-0", "demo-worker-1", "demo-manager-0")
        networks = {network_of(running.process.pid), *(network_of(pid_of(pod)) for pod in pods)}
        assert len(networks - {here}) == 3
        children = psutil.Process(running.process.pid).children(recursive=True)
        assert sockets.if_nameindex() == interfaces
        await running.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=60)
        assert not alive
    assert not networks & {network_of(pid) for pid in psutil.pids()}
    assert sockets.if_nameindex() == interfaces


async def test_a_cluster_without_its_way_to_the_gateway_ends(tmp_path: Path) -> None:
    """A cluster without its relay to the gateway ends, as a lost machine does, because its pods cannot be reached."""
    async with cluster_process(tmp_path, nodes=1, links=True) as running:
        (relay,) = [one for one in psutil.Process(running.process.pid).children() if "relay.py" in " ".join(one.cmdline())]
        relay.kill()
        async with asyncio.timeout(WAIT_LIMIT):
            assert await running.process.wait() == 0


def pid_of(pod: Pod) -> int:
    assert pod.status.pid
    return pod.status.pid


def network_of(pid: int) -> int:
    """Returns the network namespace of a process; 0 where it is gone, or is not ours."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return 0
