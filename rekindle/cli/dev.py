"""`rekindle dev`: the whole product in one terminal."""

import asyncio
import shlex
from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from rekindle.cli.disk import watched
from rekindle.cli.interrupts import interruptible, on_interrupt
from rekindle.cli.stack import KUBERNETES, Addresses, ClusterKind, Machine, Ports, running
from rekindle.cli.terminal import console
from rekindle.cli.values import Whole, whole
from rekindle.cli.views import NOW, link
from rekindle.errors import Unavailable

LOCAL = ClusterKind.LOCAL
STATE_DIR = Path(".rekindle")
PORT = Number(gte=0, lte=65_535)
Port = Annotated[Whole, Parameter(validator=PORT)]


async def dev(
    *,
    state_dir: Annotated[Path, Parameter(env_var="REKINDLE_STATE_DIR", help="Database, jobs and logs.")] = STATE_DIR,
    nodes: Annotated[Whole, Parameter(validator=Number(gte=1, lte=1000), help="Nodes of the cluster.")] = 3,
    accelerators: Annotated[Whole, Parameter(validator=Number(gte=0, lte=1024), help="Accelerators of each node.")] = 2,
    cluster: Annotated[
        ClusterKind, Parameter(help="kubernetes: a real control plane, with kubelets that run processes.")
    ] = LOCAL,
    links: Annotated[
        bool, Parameter(negative="", help="Each node is a network namespace with two links, eth1 and eth2.")
    ] = False,
    temporal: Annotated[
        str, Parameter(help="host:port of a Temporal service to use, without TLS, instead of a server of its own.")
    ] = "",
    temporal_port: Annotated[Port, Parameter(help="0: any free port.")] = 7233,
    ui_port: Port = 8233,
    gateway_port: Port = 8899,
    metrics_port: Annotated[
        int | None,
        Parameter(
            converter=whole,
            validator=PORT,
            help="First of the ports of metrics for Prometheus; 0: any free ports. Without it there are none.",
        ),
    ] = None,
) -> None:
    """Start Temporal, control worker, gateway, watcher and a cluster, until Ctrl-C.

    Example: rekindle dev --nodes 5
    """
    ports = Ports(temporal_port, ui_port, gateway_port, metrics_port)
    stop = asyncio.Event()
    status = console.status("starting ...")
    status.start()
    machine = Machine(nodes, accelerators, cluster, links)
    try:
        with interruptible():
            directory = state_dir.resolve()
            async with (
                running(directory, machine, ports=ports, temporal=temporal, tell=status.update, warn=_warn) as started,
                watched(directory, _warn),
            ):
                on_interrupt(stop.set)
                status.stop()
                _print_addresses(started.addresses, nodes, accelerators)
                await _until_either(stop, started.broken)
                if started.broken.is_set():
                    raise Unavailable(f"a part of the stack has died, see the logs in {state_dir / 'logs'}")
                console.print("stopping ...")
    finally:
        status.stop()


def _warn(words: str) -> None:
    line = Text(f"{datetime.now().astimezone():%H:%M:%S} ").append("warning: ", style="yellow").append(words)
    console.print(line, soft_wrap=True, highlight=False)


async def _until_either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (one, other)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _print_addresses(addresses: Addresses, nodes: int, accelerators: int) -> None:
    console.print("[bold green]rekindle is running[/bold green]; Ctrl-C stops it")
    if addresses.ui:
        console.print(f"  Temporal UI   {addresses.ui}")
        console.print(f"  look here     {link(addresses.ui, NOW)}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"  Temporal      {addresses.temporal}")
    console.print(f"  gateway       {addresses.gateway}")
    for name, url in addresses.metrics.items():
        console.print(f"  metrics       {url} ({name})")
    cluster = f"{addresses.cluster}, {nodes} nodes with {accelerators} accelerators each, {addresses.socket}"
    console.print(f"  cluster       {cluster}", soft_wrap=True)
    if addresses.cluster == ClusterKind.KUBERNETES:
        console.print(f"  kubeconfig    {addresses.state_dir}/{KUBERNETES}/kubeconfig", soft_wrap=True)
    console.print(f"  logs          {addresses.state_dir}/logs", soft_wrap=True)
    elsewhere = f"export REKINDLE_STATE_DIR={shlex.quote(addresses.state_dir)}"
    found = addresses.state_dir == str(STATE_DIR.resolve())
    where = f"in this directory, or behind {elsewhere}" if found else f"behind {elsewhere}"
    words = f"In another terminal, {where}: rekindle submit job.yaml, rekindle jobs, rekindle nodes"
    console.print(words, soft_wrap=True, markup=False, highlight=False)
