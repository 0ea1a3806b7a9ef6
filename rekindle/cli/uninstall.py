"""The command that removes what an installation has written on the objects of others."""

import asyncio
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rekindle.cli.exits import Exit
from rekindle.cli.output import Format, Output
from rekindle.cli.stack import server_root
from rekindle.errors import BadInput, Unavailable

USUAL = "~/.kube/config"


async def uninstall(
    *,
    check: Annotated[bool, Parameter(negative="", help="List what is left, and change nothing.")] = False,
    kubeconfig: Annotated[Path | None, Parameter(help="By default KUBECONFIG, or ~/.kube/config.")] = None,
    namespace: Annotated[str, Parameter(help="Namespace of the installation.")] = "mindx-dl",
    output: Output = Format.TEXT,
) -> Exit:
    """Remove what an installation has left on jobs, pods and nodes of a Kubernetes cluster. Jobs train on.

    Remove the installation itself first. Standbys and backup pods that have taken over nothing are deleted, jobs that a restart
    has suspended are resumed, and marks, budgets and Leases are removed. The exit code is 1 if something is left.

    Example: rekindle uninstall --check
    """
    if find_spec("kubernetes") is None:
        raise Unavailable('the client of Kubernetes is not installed: pip install "rekindle-recovery[kubernetes]"')
    settings = {
        "REKINDLE_CLUSTER": "kubernetes",
        "REKINDLE_KUBECONFIG": _kubeconfig(kubeconfig),
        "REKINDLE_NAMESPACE": namespace,
        "PYTHONPATH": str(server_root()),
    }
    command = ["-P", "-m", "workers.removal", f"--output={output.value}", *(["--check"] if check else [])]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env={**os.environ, **settings})
    try:
        code = await process.wait()
    except asyncio.CancelledError:  # Ctrl-C reached it too
        await process.wait()
        raise
    return Exit.DONE if code == 0 else Exit.OTHERWISE


def _kubeconfig(said: Path | None) -> str:
    """Returns the path of the kubeconfig; several, as kubectl accepts them in KUBECONFIG, are merged."""
    paths = str(said) if said else os.environ.get("KUBECONFIG") or USUAL
    found = [str(path) for one in paths.split(os.pathsep) if (path := Path(one).expanduser()).is_file()]
    if not found:
        words = "accepted: a kubeconfig of a user who may change jobs, pods and nodes"
        raise BadInput(f"--kubeconfig: {paths} is not a file ({words})")
    return os.pathsep.join(found)
