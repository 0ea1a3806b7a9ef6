"""A real Temporal service on this machine: `python -P -m simulators.temporal_cluster --state-dir DIR`.

The four services of the server run as processes over PostgreSQL. One that ends is started again. Says `ready temporal ADDRESS`
when the namespace `default` can be used. The first run of a machine builds the server from source, which takes some minutes. The
data stays in the directory, and a later run goes on with it.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import yaml
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from rekindle.cli.ports import ensure_free, free_ports
from rekindle.cli.stack import Addresses, Member, Stack
from rekindle.errors import RekindleError, Unavailable
from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from simulators.kubernetes.binaries import built
from simulators.temporal_cluster.configuration import (
    DATABASES,
    PLUGIN,
    SERVICES,
    Places,
    configuration,
    dynamic_settings,
)
from simulators.temporal_cluster.postgres import USER, Postgres, programs
from workers.process import ready, stop_requested

MODULE = Path(__file__).parents[2] / "deploy" / "temporal-server"
SERVER, SCHEMA = "temporal-server", "temporal-sql-tool"
PROGRAMS = {SCHEMA: "go.temporal.io/server/cmd/tools/sql", SERVER: "go.temporal.io/server/cmd/server"}

NAMESPACE = "default"
RETENTION = timedelta(days=7)
USABLE = 60.0
"""Seconds in which a new namespace must be usable. Each service reads the list of namespaces anew every ten seconds."""

logger = logging.getLogger("temporal-cluster")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m simulators.temporal_cluster", description=__doc__, allow_abbrev=False)
    parser.add_argument("--state-dir", type=Path, required=True, help="databases, configuration and logs")
    parser.add_argument("--port", type=int, default=0, help="port of the frontend; 0 means any free one")
    parser.add_argument("--shards", type=int, default=16, help="history shards of a new database; cannot be changed later")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> None:
    """Serves until a signal stops the process."""
    directory = options.state_dir.resolve()
    if options.port:
        ensure_free(options.port, "--port", "another Temporal server")
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    binaries = await asyncio.to_thread(built, PROGRAMS, MODULE, _progress)
    stop = stop_requested()
    async with cluster(directory, binaries, options.port, options.shards) as stack:
        ready(f"temporal {stack.addresses.temporal}")
        await stop.wait()
    logger.info("Temporal cluster stopped")


@asynccontextmanager
async def cluster(directory: Path, binaries: Path, port: int = 0, shards: int = 16) -> AsyncIterator[Stack]:
    """Runs PostgreSQL and the four services until the block ends, and yields their processes.

    Raises:
        Unavailable: a part did not start; the message has the end of its log.
    """
    places = _places(port)
    postgres = Postgres(programs(), directory / "postgres", places.postgres)
    is_new = not (directory / "postgres" / "PG_VERSION").is_file()
    await asyncio.to_thread(postgres.create)
    stack = Stack(Addresses(places.frontend, "", "", "", str(directory)), _progress, _warn)
    try:
        await stack.start(_member("postgres", postgres.command(), directory, places.postgres))
        if is_new:
            await _create_schemas(binaries / SCHEMA, places)
        for name, port_of in places.rpc.items():
            command = [str(binaries / SERVER), "--config-file", str(_written(directory, places, shards)), "--allow-no-auth"]
            await stack.start(_member(name, [*command, "start", "--service", name], directory, port_of))
        await _ensure_namespace(places)
        yield stack
    finally:
        await stack.stop()


def _places(port: int) -> Places:
    postgres, *ports = free_ports(1 + 2 * len(SERVICES))
    rpc = dict(zip(SERVICES, ports, strict=False))
    return Places(
        postgres, {**rpc, **({"frontend": port} if port else {})}, dict(zip(SERVICES, ports[len(SERVICES) :], strict=True))
    )


def _member(name: str, command: list[str], directory: Path, port: int) -> Member:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "TEMPORAL_"))}
    return Member(name, command, environment, directory / "logs" / f"{name}.log", answers_at=f"127.0.0.1:{port}")


def _written(directory: Path, places: Places, shards: int) -> Path:
    settings, path = directory / "settings.yaml", directory / "server.yaml"
    settings.write_text(yaml.safe_dump(dynamic_settings()))
    path.write_text(yaml.safe_dump(configuration(places, shards, str(settings))))
    return path


async def _create_schemas(tool: Path, places: Places) -> None:
    for database, schema in DATABASES.items():
        _progress(f"creating the database {database}")
        to = [
            "--plugin",
            PLUGIN,
            "--endpoint",
            "127.0.0.1",
            "--port",
            str(places.postgres),
            "--user",
            USER,
            "--database",
            database,
        ]
        for words in (["create"], ["setup-schema", "--version", "0.0"], ["update-schema", "--schema-name", schema]):
            await _done(tool, [*to, *words])


async def _done(tool: Path, arguments: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        str(tool), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode:
        words = "\n  ".join(output.decode(errors="replace").strip().splitlines()[-5:])
        raise Unavailable(f"{tool.name} {' '.join(arguments)} failed:\n  {words}")


async def _ensure_namespace(places: Places) -> None:
    """Registers the namespace, and waits until each service knows it."""
    async with asyncio.timeout(USABLE):
        client = await _connected(places.frontend)
        wanted = RegisterNamespaceRequest(namespace=NAMESPACE)
        wanted.workflow_execution_retention_period.FromTimedelta(RETENTION)
        while True:
            try:
                await client.workflow_service.register_namespace(wanted)
            except RPCError as error:
                if error.status is RPCStatusCode.ALREADY_EXISTS:
                    break
            await asyncio.sleep(0.2)
        while True:
            try:
                await client.workflow_service.list_workflow_executions(ListWorkflowExecutionsRequest(namespace=NAMESPACE))
            except RPCError:
                await asyncio.sleep(0.2)
            else:
                return


async def _connected(address: str) -> Client:
    while True:
        try:
            return await Client.connect(address)
        except RuntimeError:
            await asyncio.sleep(0.2)


def _progress(text: str) -> None:
    sys.stdout.write(f"progress {text}\n")
    sys.stdout.flush()


def _warn(text: str) -> None:
    logger.warning("Temporal cluster disturbed", extra={"reason": text})


if __name__ == "__main__":
    options = parse()
    configure_logging("temporal-cluster", read_settings())
    try:
        asyncio.run(main(options))
    except RekindleError as error:
        sys.exit(f"error: {error}")
