"""The command that removes what an installation has written on the objects of others."""

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rekindle.cli.exits import Exit
from rekindle.cli.on_kubernetes import EXTRA, is_installed, kubeconfig_of, namespace_of, started
from rekindle.cli.output import Format, Output
from rekindle.cli.values import Said
from rekindle.errors import Unavailable


async def uninstall(
    *,
    check: Annotated[bool, Parameter(negative="", help="List what is left, and change nothing.")] = False,
    kubeconfig: Annotated[Path | None, Parameter(help="By default KUBECONFIG, or ~/.kube/config.")] = None,
    namespace: Annotated[Said, Parameter(help="Namespace of the installation; by default REKINDLE_NAMESPACE.")] = "",
    output: Output = Format.TEXT,
) -> Exit:
    """Remove what an installation has left on jobs, pods and nodes of a Kubernetes cluster. Jobs train on.

    Remove the installation itself first. Standbys and backup pods that have taken over nothing are deleted, jobs that a restart
    has suspended are resumed, and marks, budgets and Leases are removed. The exit code is 1 if something is left, 3 if the API
    server does not answer or does not let us look, and 4 if the installation is running.

    Example: rekindle uninstall --check
    """
    if not is_installed():
        raise Unavailable(EXTRA)
    whose = "a user who may change jobs, pods and nodes"
    settings = {"REKINDLE_KUBECONFIG": kubeconfig_of(kubeconfig, whose), "REKINDLE_NAMESPACE": namespace_of(namespace)}
    process = await started("workers.removal", settings, f"--output={output.value}", *(["--check"] if check else []))
    try:
        code = await process.wait()
    except asyncio.CancelledError:  # Ctrl-C reached it too
        await process.wait()
        raise
    return Exit(code) if code in set(Exit) else Exit.BUG
