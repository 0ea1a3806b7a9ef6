"""Finds the control plane for the commands: from the environment, or from the state directory of a running `rekindle dev`."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from rekindle.cli.stack import DETAILS, Addresses
from rekindle.cli.terminal import problems
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.errors import ClusterUnavailable, Unavailable
from rekindle.settings import read_settings
from rekindle.temporal import connect, version_problem


def find_stack() -> str:
    """Sets the addresses of a running `rekindle dev` in the environment, where they are not set already.

    Returns:
        The address of its Temporal server; empty: there is none, or the environment names another one.
    """
    named = os.environ.get("TEMPORAL_ADDRESS", "")
    stack = running_stack()
    if stack is None:
        return ""
    for name, value in stack.environment().items():
        os.environ.setdefault(name, value)
    return "" if named else stack.temporal


def running_stack() -> Addresses | None:
    """Returns the addresses of a running `rekindle dev`; None: there is none in this state directory.

    Raises:
        Unavailable: the file with them cannot be read.
    """
    details = read_settings().state_dir / DETAILS
    try:
        return Addresses(**json.loads(details.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise Unavailable(f"{details} does not say where `rekindle dev` is ({error}): stop it, and start it again") from error


async def control_plane() -> Rekindle:
    """Connects to the control plane.

    Raises:
        BadInput: what the environment says of Temporal cannot be used. Unavailable: the message says where it was looked for, and
            how to start one.
    """
    address = find_stack()
    _quiet_core()
    try:
        client = await connect(address, started_here=bool(address))
    except Unavailable as error:
        raise Unavailable(f"{error}\n{_hint()}") from error
    if problem := await version_problem(client):
        problems.print(f"warning: {problem}", markup=False, soft_wrap=True)
    return Rekindle(client)


@cache
def _quiet_core() -> None:
    """Keeps the core of Temporal's client from writing to the terminal. It repeats messages that a command prints once."""
    logging = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logging)), error_if_already_set=False)


@asynccontextmanager
async def local_cluster() -> AsyncIterator[ClusterClient]:
    """Yields a connection to the local cluster.

    Raises:
        ClusterUnavailable: there is none; the message says how to start one.
    """
    find_stack()
    try:
        async with ClusterClient(read_settings().socket) as client:
            yield client
    except ClusterUnavailable as error:
        raise ClusterUnavailable(f"{error}\n{_no_local_cluster()}") from error


def _no_local_cluster() -> str:
    if read_settings().cluster == "kubernetes" and not running_stack():
        return "this command is for a cluster of `rekindle dev`: on any other use kubectl"
    return _hint()


def _hint() -> str:
    """Returns a hint on how `rekindle dev` is found: by its state directory, which depends on the directory of the command."""
    looked = read_settings().state_dir.resolve()
    return f"start one with `rekindle dev`, or name the state directory of one that runs in REKINDLE_STATE_DIR (not {looked})"
