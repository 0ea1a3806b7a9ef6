"""The local cluster: nodes and pods of this machine. `python -P -m simulators.local_cluster --socket PATH --state-dir DIR ...`.

The parent of all its pods; it ends them when it ends, and when it is killed its guardian does.
"""

import asyncio
import logging
import signal
import socket
import sys

from aiohttp import web

from rekindle.cluster_client import checked_socket
from rekindle.errors import BadInput, Unavailable
from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from simulators.local_cluster.api import application
from simulators.local_cluster.machine import Machine
from simulators.local_cluster.networks import Networks
from simulators.local_cluster.options import Options, parse
from workers.process import ready

logger = logging.getLogger("cluster")


async def main(options: Options, networks: Networks | None) -> None:
    """Serves until a signal stops the process; a second signal stops it at once.

    Raises:
        BadInput: the socket's path is too long.
        Unavailable: a cluster is alive at this socket.
    """
    stop, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _told, stop, at_once)
    _claim(options)
    machine = Machine(options, networks)
    if networks:
        networks.when_cut_off(stop.set)
    runner = web.AppRunner(application(machine), shutdown_timeout=1, access_log=None, handler_cancellation=True)
    await runner.setup()
    machine.start()
    await web.UnixSite(runner, str(options.socket)).start()
    options.socket.chmod(0o600)
    ready(f"cluster {options.socket}")
    await stop.wait()
    logger.info("local cluster stopping, pods ended")
    await machine.stop(at_once)
    await runner.cleanup()
    options.socket.unlink(missing_ok=True)
    logger.info("local cluster stopped")


def _told(stop: asyncio.Event, at_once: asyncio.Event) -> None:
    (at_once if stop.is_set() else stop).set()


def _claim(options: Options) -> None:
    """Creates the directories, and removes a socket without a server, which a cluster left that died."""
    checked_socket(options.socket)
    for directory in (options.state_dir, options.socket.parent):
        directory.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(options.socket))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            options.socket.unlink()
            return
    raise Unavailable(f"a local cluster is alive at {options.socket}: stop it, or choose another --socket")


if __name__ == "__main__":
    arguments = parse()
    try:
        configure_logging("cluster", read_settings())
        asyncio.run(main(arguments, Networks(arguments) if arguments.links else None))
    except (BadInput, Unavailable) as error:
        sys.exit(f"error: {error}")
