"""A real Kubernetes on this machine. `python -P -m simulators.kubernetes --state-dir DIR --nodes 3 --accelerators-per-node 2`.

Real API server, scheduler and controllers; the nodes' kubelets are played, and run pods as processes. Says
`ready kubernetes PATH`, the kubeconfig of an administrator; those of our own accounts lie beside it, unless the cluster is empty.
Everything is thrown away at its end.
"""

import argparse
import asyncio
import contextlib
import logging
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from activities.clusters.api_server import Api, check_version
from rekindle.errors import RekindleError
from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from simulators.kubernetes.binaries import control_plane_binaries
from simulators.kubernetes.console import ACCELERATOR, application
from simulators.kubernetes.installation import install
from simulators.kubernetes.kubelet import Kubelet
from simulators.kubernetes.servers import NODE_GRACE, USUAL_NODE_GRACE, Servers
from workers.process import ready, stop_requested

logger = logging.getLogger("kubernetes")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True, help="database, certificates, kubeconfig and logs")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--accelerators-per-node", type=int, default=2, help=f"of the resource {ACCELERATOR}")
    parser.add_argument("--oldest", action="store_true", help="behave as the oldest version that the programs can emulate")
    parser.add_argument("--empty", action="store_true", help="install nothing of ours: a chart does")
    parser.add_argument("--socket", type=Path, help="serve the local cluster's API on this Unix socket too")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> None:
    """Serves until a signal stops the process."""
    directory = options.state_dir.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    binaries = await asyncio.to_thread(control_plane_binaries, _progress)
    stop = stop_requested()  # a build before it ends at once, with this process
    grace = USUAL_NODE_GRACE if options.empty else NODE_GRACE
    servers = Servers(binaries, directory, oldest=options.oldest, node_grace=grace)
    try:
        await servers.start()
        async with Api(servers.kubeconfig) as api:
            await check_version(api)
            if not options.empty:
                await install(api, servers.endpoint, directory)
            async with _console(api, options):
                await _serve(api, options, stop, servers)
    finally:
        await servers.stop()
    logger.info("Kubernetes simulator stopped")


def _progress(text: str) -> None:
    sys.stdout.write(f"progress {text}\n")
    sys.stdout.flush()


@contextlib.asynccontextmanager
async def _console(api: Api, options: argparse.Namespace) -> AsyncIterator[None]:
    if options.socket is None:
        yield
        return
    state_dir = options.state_dir.resolve()
    runner = web.AppRunner(application(api, state_dir.parent, state_dir / "pods"), shutdown_timeout=1, access_log=None)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(options.socket)).start()
        options.socket.chmod(0o600)
        yield
    finally:
        await runner.cleanup()


async def _serve(api: Api, options: argparse.Namespace, stop: asyncio.Event, servers: Servers) -> None:
    kubelet = Kubelet(api, servers.endpoint, servers.kubeconfig.parent / "pods", uuid.uuid4().hex)
    names = [f"node-{number}" for number in range(options.nodes)]
    registered = asyncio.Event()
    running = asyncio.create_task(kubelet.run(names, {ACCELERATOR: str(options.accelerators_per_node)}, registered))
    waits = [asyncio.create_task(event.wait()) for event in (registered, stop)]
    await asyncio.wait({running, *waits}, return_when=asyncio.FIRST_COMPLETED)
    if registered.is_set():
        ready(f"kubernetes {servers.kubeconfig}")
        await asyncio.wait({running, waits[1]}, return_when=asyncio.FIRST_COMPLETED)
    for task in (running, *waits):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    arguments = parse()
    try:
        configure_logging("kubernetes", read_settings())
        asyncio.run(main(arguments))
    except RekindleError as error:
        sys.exit(f"error: {error}")
