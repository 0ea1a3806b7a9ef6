"""Where the commands find the control plane: the environment, or what a running `rekindle dev` left in its state directory."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rekindle.cli.stack import DETAILS, Addresses
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.errors import ClusterUnavailable, Unavailable
from rekindle.settings import read_settings


def find_stack() -> None:
    """Takes the addresses of a running `rekindle dev`, where the environment names none."""
    details = read_settings().state_dir / DETAILS
    if details.exists():
        for name, value in Addresses(**json.loads(details.read_text())).environment().items():
            os.environ.setdefault(name, value)


async def control_plane() -> Rekindle:
    """A connection to the control plane.

    Raises:
        Unavailable: the message says where it was looked for, and how to start one.
    """
    find_stack()
    try:
        return await Rekindle.connect()
    except Unavailable as error:
        raise Unavailable(f"{error}\n{_hint()}") from error


@asynccontextmanager
async def local_cluster() -> AsyncIterator[ClusterClient]:
    """A connection to the local cluster.

    Raises:
        ClusterUnavailable: as above.
    """
    find_stack()
    try:
        async with ClusterClient(read_settings().socket) as client:
            yield client
    except ClusterUnavailable as error:
        raise ClusterUnavailable(f"{error}\n{_hint()}") from error


def _hint() -> str:
    """`rekindle dev` is found by its state directory, which another terminal may not see from where it is."""
    looked = read_settings().state_dir.resolve()
    return f"start one with `rekindle dev`, or name the state directory of one that runs in REKINDLE_STATE_DIR (not {looked})"
