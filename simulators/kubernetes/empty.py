"""A Kubernetes without anything of ours, and a Temporal server: what is there before an installation by the chart.

Used by tests and `benchmarks.first_job`.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rekindle.cli.ports import free_ports
from rekindle.cli.stack import Addresses, ClusterKind, Member, Stack, server_root, temporal_command


@asynccontextmanager
async def empty_cluster(directory: Path, nodes: int, tell: Callable[[str], None] = lambda _: None) -> AsyncIterator[Stack]:
    """Runs Temporal and a Kubernetes with two accelerators on each node, until the block ends.

    Raises:
        Unavailable: a part did not start; the message has the end of its log.
    """
    temporal, ui = free_ports(2)
    addresses = Addresses(
        temporal=f"127.0.0.1:{temporal}",
        ui=f"http://127.0.0.1:{ui}",
        gateway="",
        socket=str(directory / "cluster.sock"),
        state_dir=str(directory),
        cluster=ClusterKind.KUBERNETES.value,
    )
    # Pods inherit this environment. All that they know of an installation comes from the chart.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("REKINDLE_", "TEMPORAL_"))}
    environment = {**own, "TEMPORAL_CONFIG_FILE": os.devnull, "PYTHONPATH": str(server_root()), "PYTHONUNBUFFERED": "1"}
    stack = Stack(addresses, tell)
    state = kubernetes_of(stack)
    command = [sys.executable, "-P", "-m", "simulators.kubernetes", "--empty", f"--state-dir={state}"]
    command += [f"--socket={addresses.socket}", f"--nodes={nodes}", "--accelerators-per-node=2"]
    database = temporal_command(addresses, directory / "temporal.db")
    try:
        await stack.start(Member("temporal", database, environment, directory / "temporal.log", addresses.temporal))
        await stack.start(Member("cluster", command, environment, directory / "cluster.log", restarts=False))
        yield stack
    finally:
        await stack.stop()


def kubernetes_of(stack: Stack) -> Path:
    """Returns the folder of the cluster's data, in which `kubeconfig` is that of an administrator."""
    return Path(stack.addresses.state_dir) / "kubernetes"
