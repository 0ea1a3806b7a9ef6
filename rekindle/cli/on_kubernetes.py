"""Processes of ours that a command starts to look at a Kubernetes cluster: its client takes seconds and 190 MB to load."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rekindle.cli.stack import server_root
from rekindle.errors import BadInput
from rekindle.settings import read_settings

USUAL = "~/.kube/config"

NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

EXTRA = 'the client of Kubernetes is not installed: pip install "rekindle-recovery[kubernetes]"'


def is_installed() -> bool:
    """Returns whether the client of Kubernetes is installed."""
    return find_spec("kubernetes") is not None


def usual_kubeconfig() -> str:
    """Returns the paths of the kubeconfigs that kubectl would use, of which several are merged. Empty: there is none."""
    return _files(os.environ.get("KUBECONFIG") or USUAL)


def kubeconfig_of(said: Path | None, whose: str) -> str:
    """Returns the path of the kubeconfig that a user has given, or of the usual one.

    Args:
        whose: user whose credentials are needed.

    Raises:
        BadInput: it is not a file.
    """
    found = _files(str(said)) if said else usual_kubeconfig()
    if not found:
        looked = said or os.environ.get("KUBECONFIG") or USUAL
        raise BadInput(f"--kubeconfig: {looked} is not a file (accepted: a kubeconfig of {whose})")
    return found


def namespace_of(said: str) -> str:
    """Returns the namespace of the installation, by default that of the settings.

    Raises:
        BadInput: no namespace has such a name.
    """
    if said and not NAMESPACE.fullmatch(said):
        raise BadInput(f"--namespace: {said!r} is not accepted (accepted: at most 63 small letters, digits and hyphens)")
    return said or read_settings().namespace


def _files(paths: str) -> str:
    found = [str(path) for one in paths.split(os.pathsep) if (path := Path(one).expanduser()).is_file()]
    return os.pathsep.join(found)


async def started(module: str, settings: Mapping[str, str], *arguments: str, **streams: Any) -> Process:
    """Starts a process of the server packages with these settings."""
    environment = {**os.environ, "REKINDLE_CLUSTER": "kubernetes", "PYTHONPATH": str(server_root()), **settings}
    return await asyncio.create_subprocess_exec(sys.executable, "-P", "-m", module, *arguments, env=environment, **streams)
