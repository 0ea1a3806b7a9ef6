"""Where the commands find the control plane: the environment, or what a running `rekindle dev` left in its state directory."""

import json
import os
from pathlib import Path

from rekindle.cli.stack import DETAILS, Addresses
from rekindle.client import Rekindle
from rekindle.errors import Unavailable
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
        raise Unavailable(f"{error}\nstart one with `rekindle dev`") from error


def cluster_socket() -> Path:
    find_stack()
    return read_settings().socket
