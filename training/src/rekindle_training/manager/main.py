"""`rekindle-manager`: listens for the job's ranks, speaks to the control plane, and ends with 0 when training is complete.

Started in a pod of its own, or by `rekindle-train --standalone`. It may be killed and replaced at any time: training goes on.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from rekindle_training import logs, titles, wire
from rekindle_training.environment import EnvironmentIncomplete, ManagerEnvironment
from rekindle_training.injection import Injection, InjectionInvalid
from rekindle_training.manager.coordinator import Coordinator
from rekindle_training.manager.gateway import Gateway
from rekindle_training.manager.hot_switch import Means
from rekindle_training.manager.identity import Identity
from rekindle_training.manager.link_switch import LinkSwitch
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.orders import Orders
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rendezvous_store import Store, open_store
from rekindle_training.manager.reports import Reports
from rekindle_training.manager.service import PodsService, RanksService
from rekindle_training.manager.stress import Stress
from rekindle_wire.training_pb2_grpc import add_PodsServicer_to_server, add_RanksServicer_to_server

log = logging.getLogger(__name__)

LAST_REPORTS_SECONDS = 5.0
"""Seconds that the end of training waits for reports that are not answered yet."""
STOP_SECONDS = 1.0
PORTS_TRIED = 20


def main(argv: Sequence[str] | None = None) -> int:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC need not prepare for forks: the manager makes no process
    arguments = _parser().parse_args(argv)
    logs.configure("rekindle-manager")
    if arguments.standalone:
        titles.show("manager")
    try:
        environment = ManagerEnvironment.read(standalone=arguments.standalone, port=arguments.port)
        injection = Injection.read()
    except (EnvironmentIncomplete, InjectionInvalid) as error:
        logs.say(f"rekindle-manager: {error}")
        return 2
    return asyncio.run(_run(arguments, environment, injection))


async def _run(arguments: argparse.Namespace, environment: ManagerEnvironment, injection: Injection) -> int:
    alone = environment.gateway is None
    ranks_per_pod = arguments.nproc_per_node
    membership, pods = Membership(arguments.nnodes * ranks_per_pod, ranks_per_pod), Pods(decides=not alone)
    reports = Reports(membership.spans)
    store = asyncio.create_task(open_store())
    means = Means(
        membership=membership,
        pods=pods,
        alone=alone,
        ranks_per_pod=ranks_per_pod,
        store=store,
        reports=reports,
        injection=injection,
        rebuild_timeout=environment.rebuild_timeout,
        order_timeout=environment.order_timeout,
        decides_without_orders=environment.decides_without_orders,
        stall_seconds=arguments.stall_seconds,
    )
    coordinator = Coordinator(means)
    server = grpc.aio.server(options=list(wire.SERVER))
    add_RanksServicer_to_server(RanksService(membership), server)
    add_PodsServicer_to_server(PodsService(pods), server)
    await _listen(server, environment, arguments.announce_fd)
    attached = _attach(environment, means, coordinator)
    try:
        await _until_complete(coordinator, store, attached)
        await _last_words(environment, reports)
    finally:
        attached.cancel()
        pods.end_all()
        await server.stop(STOP_SECONDS)
    return 0


async def _listen(server: grpc.aio.Server, environment: ManagerEnvironment, announce_fd: int | None) -> None:
    port = _bind(server, environment.listen_host, environment.listen_port)
    await server.start()
    log.info("manager started", extra={"port": port})
    if announce_fd is not None:
        os.write(announce_fd, f"{port}\n".encode())
        os.close(announce_fd)


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Binds the server to a port and returns the port.

    If any port is accepted, it is taken outside the range that the system uses for connections. A manager that follows this
    one listens on the same port, so no connection may take it meanwhile.
    """
    if port:
        return server.add_insecure_port(f"{host}:{port}")
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(PORTS_TRIED):
        with contextlib.suppress(RuntimeError):  # it is taken
            return server.add_insecure_port(f"{host}:{random.randrange(first // 2, first)}")
    return server.add_insecure_port(f"{host}:0")


def _attach(environment: ManagerEnvironment, means: Means, coordinator: Coordinator) -> asyncio.Task[None]:
    if environment.gateway is None:
        return asyncio.create_task(_alone())
    notices: dict[str, Callable[[Any], None]] = {
        "SubscribeNotifySwitch": lambda order: coordinator.carry_out(LinkSwitch(order, means)),
        "SubscribeNotifyExecStressTest": lambda order: coordinator.carry_out(Stress(order, means, environment.stress_seconds)),
    }
    identity = Identity(environment.job_id, environment.token_file)
    gateway = Gateway(environment.gateway, identity, means.reports, Orders(coordinator).obey, notices)
    return asyncio.create_task(gateway.run())


async def _alone() -> None:
    """Replaces the gateway in a job without a control plane. Never returns."""
    await asyncio.get_running_loop().create_future()


async def _until_complete(coordinator: Coordinator, store: asyncio.Task[Store], attached: asyncio.Task[None]) -> None:
    """Waits until training is complete.

    The store and the gateway's loop never end; if one of them fails, so does the manager.
    """
    training = asyncio.create_task(coordinator.run())
    pending: set[asyncio.Task[Any]] = {training, store, attached}
    while not training.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _last_words(environment: ManagerEnvironment, reports: Reports) -> None:
    if environment.gateway is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_REPORTS_SECONDS):
                await reports.all_told()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rekindle-manager", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nnodes", type=int, required=True, help="pods of the job")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", type=int, required=True, help="ranks in each pod")
    parser.add_argument("--standalone", action="store_true", help="without a control plane, on any free port of this machine")
    parser.add_argument(
        "--stall-seconds",
        type=float,
        default=300,
        help="a rank for which the others wait longer is lost; 0: never (default: 300)",
    )
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--announce-fd", type=int, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
