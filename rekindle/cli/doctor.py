"""The command that examines an installation."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from rekindle.cli.context import control_plane, running_stack
from rekindle.cli.exits import Exit
from rekindle.cli.on_kubernetes import EXTRA, is_installed, kubeconfig_of, namespace_of, started, usual_kubeconfig
from rekindle.cli.output import Format, Output, print_json
from rekindle.cli.terminal import console
from rekindle.cli.values import Said
from rekindle.doctor import examine
from rekindle.errors import Unavailable
from rekindle.model.examined import Health, Link, failed, unknown
from rekindle.settings import read_settings

STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "red", Health.UNKNOWN: "yellow"}

NAME = "Kubernetes"

TOKEN_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


async def doctor(
    *,
    kubeconfig: Annotated[
        Path | None, Parameter(help="By default the account of the pod, or KUBECONFIG, or ~/.kube/config.")
    ] = None,
    namespace: Annotated[Said, Parameter(help="Namespace of the installation; by default REKINDLE_NAMESPACE.")] = "",
    output: Output = Format.TEXT,
) -> Exit:
    """Examine the installation link by link, and say how to mend what is broken.

    Links to Temporal come first, then those on Kubernetes, if there is a kubeconfig or an account of a pod. The exit code is 1 if
    a link is broken, and 3 if Temporal does not answer.

    Example: rekindle doctor
    """
    links: list[Link] = []
    unanswered: Unavailable | None = None

    def add(link: Link) -> None:
        links.append(link)
        if output is Format.TEXT:
            _show(link)

    try:
        async for link in examine(await control_plane()):
            add(link)
    except Unavailable as error:  # what is on Kubernetes may be the reason
        unanswered = error
        links.append(failed("Temporal", str(error), "look at the Temporal service, and at TEMPORAL_ADDRESS"))
    async for link in on_kubernetes(kubeconfig, namespace):
        add(link)
    if output is Format.JSON:
        print_json([link.model_dump(mode="json") for link in links])
    if unanswered:
        raise unanswered
    return Exit.OTHERWISE if any(link.health is Health.FAILED for link in links) else Exit.DONE


async def on_kubernetes(kubeconfig: Path | None, namespace: str) -> AsyncIterator[Link]:
    """Yields the links on Kubernetes. Without a cluster that can be seen it is one link, with the reason.

    Raises:
        BadInput: the kubeconfig that was given is not a file, or no namespace has this name.
    """
    settings = {"REKINDLE_NAMESPACE": namespace_of(namespace)}
    if not is_installed():
        yield unknown(NAME, f"not examined, because {EXTRA}")
        return
    if kubeconfig:
        settings["REKINDLE_KUBECONFIG"] = kubeconfig_of(kubeconfig, "a user who may read the installation")
    elif running_stack():
        yield unknown(NAME, "not examined, because `rekindle dev` runs the processes here", "examine one with --kubeconfig")
        return
    elif not (read_settings().kubeconfig or (_is_of_kubernetes() and TOKEN_OF_POD.is_file())):
        if not (usual := usual_kubeconfig()):
            yield unknown(NAME, "not examined, because there is no kubeconfig", "name one: --kubeconfig, or KUBECONFIG")
            return
        settings["REKINDLE_KUBECONFIG"] = usual
    async for link in _examined(settings):
        yield link


def _is_of_kubernetes() -> bool:
    return read_settings().cluster == "kubernetes"


async def _examined(settings: dict[str, str]) -> AsyncIterator[Link]:
    process = await started("workers.examination", settings, stdout=PIPE, stderr=PIPE)
    assert process.stdout
    assert process.stderr
    errors = asyncio.create_task(process.stderr.read())  # a process that nobody reads waits for ever
    try:
        async for line in process.stdout:
            try:
                yield Link.model_validate(json.loads(line))
            except ValueError:
                yield unknown(NAME, line.decode(errors="replace").strip())
        lines = (await errors).decode(errors="replace").splitlines()
        if await process.wait():
            said = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "no reason")
            yield failed(NAME, f"not examined: {said.removeprefix('error: ')}", "look at the kubeconfig, and at REKINDLE_*")
    finally:
        errors.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _show(link: Link) -> None:
    console.print(
        Text(f"{link.health.value:8}", style=STYLES[link.health]).append(f"{link.name}: {link.words}", style="default"),
        soft_wrap=True,
    )
    if link.mend:
        console.print(Text(f"{'':8}mend: {link.mend}"), soft_wrap=True)
