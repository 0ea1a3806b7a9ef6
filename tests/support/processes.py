"""Control plane as real processes, each behind its own proxy, and restarted when it is killed."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client

from rekindle.cli.ports import free_ports
from rekindle.cli.stack import Addresses, Member, Stack, server_root, temporal_command
from rekindle.cluster_client import ClusterClient
from rekindle.worker_plugin import plugin
from tests.fakes.proxy import Proxy, Watcher

PYTHON = (sys.executable, "-P", "-m")
NODES = 4

CONTROL, GATEWAY, SERVER = "control", "gateway", "temporal"
MODULES = {CONTROL: "tests.support.short_runs", GATEWAY: "workers.gateway"}


@dataclass
class Processes:
    """Running processes, with clients of them that bypass the proxies."""

    stack: Stack
    client: Client
    cluster: ClusterClient

    @property
    def gateway(self) -> str:
        return self.stack.addresses.gateway

    async def kill(self, victims: Iterable[str]) -> None:
        """Sends SIGKILL to all of them and waits until they are dead; the stack restarts them."""
        doomed = [process for name in victims if (process := self.stack.members[name].process)]
        for process in doomed:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in doomed))


@asynccontextmanager
async def processes(directory: Path, watcher: Watcher) -> AsyncIterator[Processes]:
    """Runs a Temporal server on a database file, control worker, gateway and local cluster, until the block ends."""
    temporal, ui, gateway = free_ports(3)
    addresses = Addresses(
        temporal=f"127.0.0.1:{temporal}",
        ui=f"http://127.0.0.1:{ui}",
        gateway=f"127.0.0.1:{gateway}",
        socket=str(directory / "cluster.sock"),
        state_dir=str(directory),
    )
    stack = Stack(addresses, print)
    async with AsyncExitStack() as ends:
        ends.push_async_callback(stack.stop)
        proxies = {name: await ends.enter_async_context(Proxy(name, addresses.temporal, watcher)) for name in (CONTROL, GATEWAY)}
        database = temporal_command(addresses, directory / "temporal.db")
        await stack.start(_member(SERVER, database, addresses, addresses.temporal, answers_at=addresses.temporal))
        cluster = ["simulators.local_cluster", f"--socket={addresses.socket}", f"--state-dir={directory}", f"--nodes={NODES}"]
        await asyncio.gather(
            stack.start(_member("cluster", [*PYTHON, *cluster], addresses, addresses.temporal)),
            *(stack.start(_member(name, [*PYTHON, MODULES[name]], addresses, proxy.address)) for name, proxy in proxies.items()),
        )
        client = await Client.connect(addresses.temporal, plugins=[plugin()])
        async with ClusterClient(Path(addresses.socket)) as pods:
            yield Processes(stack, client, pods)


def _member(name: str, command: list[str], addresses: Addresses, temporal: str, answers_at: str = "") -> Member:
    environment = {
        **os.environ,
        **addresses.environment(),
        "TEMPORAL_ADDRESS": temporal,
        "PYTHONPATH": str(server_root()),
        "PYTHONUNBUFFERED": "1",
    }
    log = Path(addresses.state_dir) / f"{name}.log"
    log.touch()
    return Member(name, command, environment, log, answers_at, restarts=name != "cluster")
