"""Commands about jobs, nodes and faults of a cluster."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from rekindle.cli.context import control_plane, local_cluster
from rekindle.cli.explain import mark, say_doubts, show_all
from rekindle.cli.output import Format, Output, age, print_columns, print_json, show_incident, show_status, when
from rekindle.cli.pods import running, waiting
from rekindle.cli.terminal import console
from rekindle.cli.values import Said
from rekindle.cli.views import link, of_job
from rekindle.cli.watching import Watch, repeated
from rekindle.client import JobRow, Rekindle
from rekindle.errors import BadInput, ClusterUnavailable, NotFound, Refused, RekindleError
from rekindle.model.cluster import Node, Pod, condition_of
from rekindle.model.keys import HEALTH, ISOLATED, NODE_HEALTHY
from rekindle.model.manifest import parse_all
from rekindle.model.rule_file import rules_of
from rekindle.policy.detection import isolation
from rekindle.policy.detection.rule_breaker import among
from rekindle.policy.modes.job_phase import RECOVERING
from rekindle.settings import read_settings

nodes_app = App(name="nodes")
fault_app = App(name="fault")


MOST_ASKED = 50
"""Maximum number of jobs in a list that are asked for their step."""

PATIENCE = 2.0
"""Seconds to wait for their answers."""


async def submit(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True, help="YAML; - reads standard input.")],
    *,
    output: Output = Format.TEXT,
) -> None:
    """Start the jobs that FILE describes, one in each document.

    Example: rekindle submit job.yaml
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"file: {file} cannot be read: {error}") from error
    described = parse_all(text)
    started: list[dict[str, str]] = []
    try:
        async with local_cluster() as cluster:
            for job in described:
                created = await cluster.submit(job)
                started.append({"name": created.metadata.name, "id": created.metadata.uid})
                if output is Format.TEXT:
                    console.print(f"job [bold]{created.metadata.name}[/bold] started, id {created.metadata.uid}")
    finally:
        if output is Format.JSON and started:
            print_json(started if len(described) > 1 else started[0])


async def jobs(
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Also jobs that have ended.")] = False,
    watch: Watch = False,
    output: Output = Format.TEXT,
) -> None:
    """List the registered jobs. STEP is one that training has told of, when it began or came back; it is further by now.

    Example: rekindle jobs -o json
    """
    rekindle = await control_plane()

    async def list_them() -> None:
        _show_jobs(await _listed(rekindle, ended=all_), ended=all_, output=output)

    await repeated(list_them, watch=watch)


class Listed(JobRow):
    """Job of a list, with its pods and the progress of its training."""

    pods: str = ""
    """Number of running pods and of all pods, such as `2/2`; empty: they are not visible from here."""

    step: int | None = None
    """First step that training completed since it began or came back; None: unknown."""


async def _listed(rekindle: Rekindle, *, ended: bool) -> list[Listed]:
    pods = await _visible_pods()
    rows = await rekindle.jobs(ended=ended)
    steps = await asyncio.gather(*(_step(rekindle, row) for row in rows[:MOST_ASKED]))
    found = []
    for row, step in zip_longest(rows, steps):
        own = [pod for pod in pods if pod.metadata.owner_uid == row.id]
        seen = {"pods": running(own), "step": step}
        found.append(Listed.model_validate({**_as_its_pods_are(row, own).model_dump(), **seen}))
    return found


async def _step(rekindle: Rekindle, row: JobRow) -> int | None:
    """Returns the last known step of a job that has not ended; None also without an answer in time."""
    if row.until:
        return None
    try:
        async with asyncio.timeout(PATIENCE):
            progress = (await rekindle.status(row.id)).state.progress
    except (RekindleError, TimeoutError):
        return None
    return progress.step if progress else None


def _show_jobs(rows: Sequence[Listed], *, ended: bool, output: Format) -> None:
    if output is Format.JSON:
        print_json([row.model_dump(mode="json") for row in rows])
    elif rows:
        header = ("job", "id", "state", "pods", "step", "last verdict", "age", "since", *(("until",) if ended else ()))
        print_columns(header, [_cells(row)[: len(header)] for row in rows])
    else:
        console.print("no job is registered; start one with: rekindle submit job.yaml")


def _cells(row: Listed) -> tuple[str, ...]:
    step = "-" if row.step is None else str(row.step)
    lasted = age((row.until or datetime.now(UTC)) - row.since)
    until = when(row.until) if row.until else "-"
    return (row.name, row.id, row.phase, row.pods or "-", step, row.last_verdict or "-", lasted, when(row.since), until)


def _as_its_pods_are(row: JobRow, pods: list[Pod]) -> JobRow:
    """Returns the row with its phase corrected: a job whose pods wait for nodes does not train, whatever its workflow knows."""
    waits = waiting(pods)
    return row.model_copy(update={"phase": waits}) if waits and row.until is None and row.phase != RECOVERING else row


async def _visible_pods(job_id: str | None = None) -> list[Pod]:
    """Returns pods of the local cluster; empty for other clusters, whose pods are not visible from here."""
    try:
        async with local_cluster() as cluster:
            return await cluster.pods(job_id)
    except (ClusterUnavailable, NotFound):
        return []


async def show(job: str, *, watch: Watch = False, output: Output = Format.TEXT) -> None:
    """Show JOB (name or id): its policy, and its incidents as post-mortems.

    Example: rekindle show gpt
    """
    rekindle = await control_plane()

    async def show_it() -> None:
        status = await rekindle.status(job)
        if output is Format.JSON:
            print_json(status.model_dump(mode="json"))
            return
        recovery = await rekindle.running(status.state.job) if status.running else None
        show_status(status, recovery, await _visible_pods(status.state.job.id))
        if ui := read_settings().temporal_ui:
            found = link(ui, of_job(status.state.job.name), rekindle.temporal.namespace)
            console.print(f"in the Temporal UI: {found}", soft_wrap=True, markup=False, highlight=False)

    await repeated(show_it, watch=watch)


async def history(job: str, *, output: Output = Format.TEXT) -> None:
    """Show the incidents of JOB (name or id) as post-mortems, also when it has ended: the newest job of its name.

    Example: rekindle history gpt
    """
    state = (await (await control_plane()).status(job, ended=True)).state
    if output is Format.JSON:
        print_json([incident.model_dump(mode="json") for incident in state.history])
        return
    console.print(f"{state.job.name} ({state.job.id})" + (f": ended, {state.ended}" if state.ended else ""), highlight=False)
    for incident in state.history:
        show_incident(incident)
    if not state.history:
        console.print("no incidents")


async def delete(job: str) -> None:
    """Delete JOB (name or id) and its pods.

    Example: rekindle delete gpt
    """
    async with local_cluster() as cluster:
        deleted = await cluster.delete_job(job)
    console.print(f"job {deleted.metadata.name} is being deleted")


@nodes_app.default
async def nodes(*, output: Output = Format.TEXT) -> None:
    """List the nodes of the local cluster, with their health, and the links of those that have any, with the bytes they sent. On
    Kubernetes: those of which there is something to say, and the rule that says it.

    Example: rekindle nodes
    """
    if read_settings().cluster == "kubernetes":
        await show_all(output)
        return
    async with local_cluster() as cluster:
        found = await cluster.nodes()
        pods = await cluster.pods()
    on_node = {
        node.metadata.name: [pod.metadata.name for pod in pods if pod.spec.node_name == node.metadata.name] for node in found
    }
    if output is Format.JSON:
        print_json([_node_json(node, on_node[node.metadata.name]) for node in found])
        return
    with_links = any(node.status.links for node in found)
    rows = [
        (
            node.metadata.name,
            health(node),
            str(node.status.accelerators),
            *([_links(node)] if with_links else []),
            ", ".join(on_node[node.metadata.name]) or "-",
        )
        for node in found
    ]
    print_columns(("node", "health", "accelerators", *(["links, bytes sent"] if with_links else []), "pods"), rows)
    say_doubts(among(found, rules_of(read_settings().rules)))


def _node_json(node: Node, pods: Sequence[str]) -> dict[str, Any]:
    links = [link.model_dump() for link in node.status.links]
    return {
        "name": node.metadata.name,
        "health": health(node),
        "isolated": _isolated(node),
        "pods": pods,
        "links": links,
    }


def _links(node: Node) -> str:
    return ", ".join(f"{link.name} {'up' if link.up else 'DOWN'} {link.sent}" for link in node.status.links)


def health(node: Node) -> str:
    """Describes the health of a node by its conditions and its marks."""
    ready = condition_of(node.status.conditions, "Ready")
    if ready and ready.status != "True":
        return f"not ready: {ready.message}"
    degraded = condition_of(node.status.conditions, "SubHealthy")
    slow = f"sub-healthy: {degraded.reason} {degraded.message}" if degraded and degraded.status == "True" else ""
    said = node.metadata.annotations.get(HEALTH, "")
    words = (slow, said and f"a person says: {said}", _isolated(node), "cordoned" if node.spec.unschedulable else "")
    return "; ".join(filter(None, words)) or "healthy"


def _isolated(node: Node) -> str:
    """Returns why no new pod goes to the node; empty: they may."""
    marks = node.metadata.annotations
    if not isolation.is_isolated(marks):
        return ""
    return f"isolated: {marks.get(ISOLATED) or f'its annotation {NODE_HEALTHY} says so'}"


nodes_app.command(mark)


@nodes_app.command
async def release(node: str) -> None:
    """Release NODE, which a stress test or its incidents have isolated: new pods may go there again.

    On Kubernetes: kubectl annotate node NODE rekindle.io/isolated- NodeHealthyStatus-

    Example: rekindle nodes release node-1
    """
    async with local_cluster() as cluster:
        marks = (await cluster.node(node)).metadata.annotations
        if refused := isolation.refusal(node, marks):
            raise Refused(refused)
        await cluster.annotate_node(node, isolation.release(marks))
    console.print(f"{node} is released", highlight=False)


@fault_app.command
async def inject(
    node: str,
    *,
    down: Annotated[bool, Parameter(negative="", help="The node is lost, instead of sub-healthy.")] = False,
    link: Annotated[Said, Parameter(help="Pull the cable of this link instead, such as eth1 (`rekindle dev --links`).")] = "",
    code: Annotated[Said, Parameter(help="Fault code of the sub-health.")] = "80E18005",
    message: str = "NPU link is degraded",
) -> None:
    """Make NODE sub-healthy, or lose it with --down, or a link of it with --link.

    Example: rekindle fault inject node-1
    """
    if link and down:
        raise BadInput("--down, --link: use one of them, a node that is lost has no links")
    async with local_cluster() as cluster:
        if link:
            await cluster.set_link(node, link, up=False)
            console.print(f"link {link} of {node} is down", markup=False)
            return
        await (cluster.take_down(node, message) if down else cluster.degrade(node, code, message))
    console.print(f"{node} is {'down' if down else f'sub-healthy ({code} {message})'}", markup=False)


@fault_app.command
async def clear(node: str) -> None:
    """Make NODE healthy and ready again, with all of its links.

    Example: rekindle fault clear node-1
    """
    async with local_cluster() as cluster:
        await cluster.heal(node)
        found = await cluster.bring_up(node)
        for link in found.status.links:
            await cluster.set_link(node, link.name, up=True)
    console.print(f"{node} is healthy")
