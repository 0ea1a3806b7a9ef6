"""Commands about jobs, nodes and faults of a cluster."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from rekindle.cli.context import cluster_socket, control_plane
from rekindle.cli.output import Format, console, jobs_table, print_json, show_status
from rekindle.cluster_client import ClusterClient
from rekindle.errors import BadInput
from rekindle.model.cluster import Node, condition_of
from rekindle.model.manifest import parse

fault_app = App(name="fault", help="Make a node sub-healthy or lose it, and make it well again.")

Output = Annotated[Format, Parameter(help="text for people, json for machines.")]


@asynccontextmanager
async def _cluster() -> AsyncIterator[ClusterClient]:
    async with ClusterClient(cluster_socket()) as client:
        yield client


async def submit(file: Path, *, output: Output = Format.TEXT) -> None:
    """Start the job that FILE (YAML) describes; - reads standard input.

    Example: rekindle submit job.yaml
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"file: {file} cannot be read: {error}") from error
    job = parse(text)
    async with _cluster() as cluster:
        created = await cluster.submit(job)
    if output is Format.JSON:
        print_json({"name": created.metadata.name, "id": created.metadata.uid})
    else:
        console.print(f"job [bold]{created.metadata.name}[/bold] started, id {created.metadata.uid}")


async def jobs(*, output: Output = Format.TEXT) -> None:
    """List the registered jobs.

    Example: rekindle jobs --output json
    """
    rows = await (await control_plane()).jobs()
    if output is Format.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
    elif rows:
        console.print(jobs_table(rows))
    else:
        console.print("no job is registered; start one with: rekindle submit job.yaml")


async def show(job: str, *, output: Output = Format.TEXT) -> None:
    """Show JOB (name or id): its policy, and its incidents as post-mortems.

    Example: rekindle show gpt
    """
    status = await (await control_plane()).status(job)
    if output is Format.JSON:
        print_json(status.model_dump(mode="json"))
    else:
        show_status(status)


async def logs(
    job: str,
    *,
    pod: Annotated[str, Parameter(help="One pod of the job; without it, all of them.")] = "",
    follow: Annotated[bool, Parameter(negative="", help="Until the pod ends; needs --pod.")] = False,
) -> None:
    """Print what the pods of JOB (name or id) wrote.

    Example: rekindle logs gpt --pod gpt-worker-1 --follow
    """
    if follow and not pod:
        raise BadInput("--follow: needs --pod, one stream at a time")
    async with _cluster() as cluster:
        pods = await cluster.pods((await cluster.job(job)).metadata.uid)
        names = [found.metadata.name for found in pods]
        if pod and pod not in names:
            raise BadInput(f"--pod: {pod} is not a pod of {job}, accepted are {', '.join(names)}")
        for name in [pod] if pod else names:
            if not pod:
                console.print(f"[bold]== {name}[/bold]")
            async for piece in cluster.logs(name, follow=follow):
                sys.stdout.write(piece)
                sys.stdout.flush()


async def delete(job: str) -> None:
    """Delete JOB (name or id) and its pods.

    Example: rekindle delete gpt
    """
    async with _cluster() as cluster:
        deleted = await cluster.delete_job(job)
    console.print(f"job {deleted.metadata.name} is being deleted")


async def nodes(*, output: Output = Format.TEXT) -> None:
    """List the nodes of the local cluster, with their health.

    Example: rekindle nodes
    """
    async with _cluster() as cluster:
        found = await cluster.nodes()
        pods = await cluster.pods()
    on_node = {
        node.metadata.name: [pod.metadata.name for pod in pods if pod.spec.node_name == node.metadata.name] for node in found
    }
    if output is Format.JSON:
        print_json([{"name": n.metadata.name, "health": _health(n), "pods": on_node[n.metadata.name]} for n in found])
        return
    table = Table("node", "health", "accelerators", "pods", box=None, header_style="bold")
    for node in found:
        name = node.metadata.name
        table.add_row(name, _health(node), str(node.status.accelerators), ", ".join(on_node[name]) or "-")
    console.print(table)


def _health(node: Node) -> str:
    ready = condition_of(node.status.conditions, "Ready")
    if ready and ready.status != "True":
        return f"not ready: {ready.message}"
    degraded = condition_of(node.status.conditions, "SubHealthy")
    if degraded and degraded.status == "True":
        return f"sub-healthy: {degraded.reason} {degraded.message}"
    return "healthy"


@fault_app.command
async def inject(
    node: str,
    *,
    down: Annotated[bool, Parameter(negative="", help="The node is lost, instead of sub-healthy.")] = False,
    code: Annotated[str, Parameter(help="Fault code of the sub-health.")] = "80E18005",
    message: str = "NPU link is degraded",
) -> None:
    """Make NODE sub-healthy, or lose it with --down.

    Example: rekindle fault inject node-1
    """
    async with _cluster() as cluster:
        await (cluster.take_down(node, message) if down else cluster.degrade(node, code, message))
    console.print(f"{node} is {'down' if down else f'sub-healthy ({code} {message})'}")


@fault_app.command
async def clear(node: str) -> None:
    """Make NODE healthy and ready again.

    Example: rekindle fault clear node-1
    """
    async with _cluster() as cluster:
        await cluster.heal(node)
        await cluster.bring_up(node)
    console.print(f"{node} is healthy")
