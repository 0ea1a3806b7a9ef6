"""Commands about links: fail devices over to their backup links, switch them back, and list them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import ValidationError
from rich.markup import escape
from rich.text import Text
from temporalio.client import WorkflowExecutionStatus

from rekindle.cli import exits
from rekindle.cli.context import control_plane
from rekindle.cli.exits import Exit
from rekindle.cli.output import Format, Output, print_columns, print_json, when
from rekindle.cli.recover import DryRun, user
from rekindle.cli.terminal import console
from rekindle.cli.terminal import problems as said
from rekindle.client import JobRow, Rekindle
from rekindle.errors import BadInput, NotMoved, Refused, RekindleError
from rekindle.ids import LINK_FAILOVER
from rekindle.maintenances import Maintenances
from rekindle.model.links import NodeLinks, describe, named
from rekindle.model.maintenance import Maintenance, Move, Stage
from rekindle.model.mode import Outcome
from rekindle.model.problems import problems
from rekindle.temporal import Attributes

Thing = TypeVar("Thing")

LEAVES = {1: "0,8,2,10,4,12,6,14", 2: "1,9,3,11,5,13,7,15"}
"""Devices of a node with 16 of them whose first links go to the same leaf switch.

Source: the batches of MindCluster's link failover.
"""

AT_ONCE = 8
"""Number of jobs that are moved at the same time."""

Nodes = Annotated[list[str], Parameter(name="--node", help="Node of these devices; may be given several times.", negative="")]
Devices = Annotated[str, Parameter(help="Ids of devices of each node, separated by commas, such as 0,8.")]
Leaf = Annotated[
    int | None, Parameter(help="All devices of one leaf of a node of 16, for --devices: 1 (even ids) or 2 (odd ids).")
]
Selector = Annotated[str, Parameter(help="All jobs with these labels, such as team=vision, in place of JOB.")]
Wait = Annotated[bool, Parameter(help="Until the links are moved; otherwise until their jobs begin.")]


async def failover(
    job: str = "",
    *,
    node: Nodes,
    devices: Devices = "",
    leaf: Leaf = None,
    selector: Selector = "",
    wait: Wait = True,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> int:
    """Move devices of JOB (name or id) to their backup links for a maintenance; training pauses for a moment.

    `rekindle switchback` moves them back. A fault in between is recovered as always.

    Example: rekindle failover gpt --node node-1 --devices 0,8
    """
    links = _links(node, devices, leaf, backup=True)
    rekindle = await control_plane()
    chosen = await _jobs(rekindle, job, selector)
    if dry_run:
        return await _judge(rekindle, chosen, links, output)
    maintenances = Maintenances(rekindle)

    async def move(job_id: str) -> Maintenance:
        begun = await maintenances.fail_over(job_id, links, requested_by=user())
        return await (maintenances.settled if wait else maintenances.status)(begun)

    return await _each(chosen, move, output)


async def switchback(
    name: Annotated[str, Parameter(name="maintenance", help="A job (name or id), or the id of a maintenance.")] = "",
    *,
    node: Nodes | None = None,
    devices: Devices = "",
    leaf: Leaf = None,
    selector: Selector = "",
    wait: Wait = True,
    output: Output = Format.TEXT,
) -> int:
    """Move devices that were failed over back to their first links: those of a job, or of one MAINTENANCE.

    Example: rekindle switchback gpt
    """
    links = _links(node, devices, leaf, backup=False) if node else ()
    if (devices or leaf) and not links:
        raise BadInput("--node: missing, the devices are those of a node")
    rekindle = await control_plane()
    maintenances = Maintenances(rekindle)
    is_one = bool(name and not selector) and (name.startswith(LINK_FAILOVER) or await maintenances.run(name) is not None)
    chosen = {name: name} if is_one else await _jobs(rekindle, name, selector)

    async def move(job_or_maintenance: str) -> Maintenance:
        try:
            found = await maintenances.find(job_or_maintenance)
        except BadInput:
            if not links or not await _is_on_backup(rekindle, job_or_maintenance):
                raise
            return await _moved_by_nobody(rekindle, job_or_maintenance, links)
        await maintenances.switch_back(found, links, requested_by=user(), wait=wait)
        return await maintenances.status(found)

    return await _each(chosen, move, output)


async def _is_on_backup(rekindle: Rekindle, job: str) -> bool:
    """Returns whether links of the job are on their backup without a running maintenance: it was ended, or a client moved
    them and left them there."""
    return bool((await rekindle.status(job)).state.links)


async def _moved_by_nobody(rekindle: Rekindle, job: str, links: tuple[NodeLinks, ...]) -> Maintenance:
    verdict = await rekindle.move_links(job, links, requested_by=user())
    if verdict.outcome is not Outcome.RECOVERED:
        raise NotMoved(f"{verdict.mode} {verdict.outcome}: {verdict.reason}")
    move = Move(at=datetime.now(UTC), what=describe(links), outcome=verdict.outcome, reason=verdict.reason)
    return Maintenance(job=job, stage=Stage.OVER, moves=(move,))


async def maintenances(
    job: str = "",
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Also those that are over.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """List maintenances of links: which devices of which job are on their backup links, and since when.

    Example: rekindle maintenances gpt
    """
    rekindle = await control_plane()
    known = (await rekindle.status(job)).state.job.name if job else ""
    runs = [run for run in await Maintenances(rekindle).list(known) if all_ or run.status is WorkflowExecutionStatus.RUNNING]
    if output is Format.JSON:
        print_json([{"id": run.id, "state": _state(run), "since": run.start_time, "until": run.close_time} for run in runs])
    elif runs:
        rows = [(run.id, _state(run), when(run.start_time), when(run.close_time) if run.close_time else "-") for run in runs]
        print_columns(("maintenance", "state", "since", "until"), rows)
    else:
        console.print(
            "no device is on its backup link by a maintenance; begin one with: rekindle failover JOB --node N --devices 0",
            soft_wrap=True,
        )


def _state(run: Any) -> str:
    if run.status is WorkflowExecutionStatus.FAILED:
        return "failed"
    return run.typed_search_attributes.get(Attributes.PHASE) or ""


# ---- which devices of which jobs


def _links(nodes: Sequence[str], devices: str, leaf: int | None, *, backup: bool) -> tuple[NodeLinks, ...]:
    ids = _devices(devices, leaf)
    try:
        return tuple(NodeLinks(node=node, devices=ids, backup=backup) for node in nodes)
    except ValidationError as error:
        raise BadInput("; ".join(f"--{problem}" for problem in problems(error, NodeLinks))) from error


def _devices(devices: str, leaf: int | None) -> tuple[str, ...]:
    if bool(devices) == (leaf is not None):
        raise BadInput("--devices: either devices, such as 0,8, or --leaf 1 or 2")
    if leaf is not None and leaf not in LEAVES:
        raise BadInput(f"--leaf: {leaf} is not a leaf, accepted are {', '.join(map(str, LEAVES))}")
    return tuple(name.strip() for name in (devices or LEAVES[leaf or 1]).split(","))


async def _jobs(rekindle: Rekindle, job: str, selector: str) -> dict[str, str]:
    """Returns the ids of the jobs, each with the name under which it is shown."""
    if bool(job) == bool(selector):
        raise BadInput("job: either a job, by its name or id, or --selector")
    if job:
        return {await rekindle.find(job): job}
    wanted = dict(_pair(part) for part in selector.split(","))
    found: dict[str, str] = {}

    async def look(row: JobRow) -> None:
        """Adds a job if it matches the selector. A job that cannot be queried does not affect the others."""
        try:
            labels = (await rekindle.status(row.id)).state.job.labels
        except RekindleError as error:
            said.print(Text(f"{row.name}: not asked for its labels: {error}"), soft_wrap=True)
        else:
            found.update({row.id: row.name} if wanted.items() <= labels.items() else {})

    await _in_turn(await rekindle.jobs(), look)
    if not found:
        raise BadInput(f"--selector: no job has the labels {selector}")
    return found


def _pair(part: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not (key and equals):
        raise BadInput(f"--selector: {part!r} is not accepted, use labels such as team=vision,stage=prod")
    return key.strip(), value.strip()


async def _in_turn(things: Iterable[Thing], work: Callable[[Thing], Awaitable[None]]) -> None:
    """Runs the work for each of them, `AT_ONCE` at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(thing: Thing) -> None:
        async with places:
            await work(thing)

    async with asyncio.TaskGroup() as group:
        for thing in things:
            group.create_task(one(thing))


# ---- movements, and what is printed


async def _each(jobs: dict[str, str], move: Callable[[str], Awaitable[Maintenance]], output: Format) -> int:
    """Moves the links of each job, and prints a line as soon as one is done. A job that fails does not affect the others."""
    if len(jobs) == 1 and output is Format.TEXT:
        (job_id,) = jobs
        with _going_on():
            known = await move(job_id)
        _say(jobs[job_id], known)
        return Exit.DONE
    answers: dict[str, Any] = {}
    codes: set[Exit] = set()

    async def one(job_id: str) -> None:
        try:
            known = await move(job_id)
        except RekindleError as error:
            codes.add(exits.of(error))
            answers[job_id] = {"job": jobs[job_id], "moved": False, "reason": str(error), "refused": isinstance(error, Refused)}
            if output is Format.TEXT:
                console.print(Text(f"{jobs[job_id]}: ").append("not moved", style="red").append(f", {error}"), soft_wrap=True)
        else:
            codes.add(Exit.DONE)
            answers[job_id] = {"job": jobs[job_id], "moved": True, **known.model_dump(mode="json")}
            if output is Format.TEXT:
                _say(jobs[job_id], known)

    with _going_on():
        await _in_turn(list(jobs), one)
    if output is Format.JSON:
        print_json([answers[job_id] for job_id in jobs])
    return _of_all(codes)


def _of_all(codes: set[Exit]) -> Exit:
    """Returns the exit code for several jobs. If they ended differently, something was done and something was not."""
    return codes.pop() if len(codes) == 1 else Exit.OTHERWISE


@contextmanager
def _going_on() -> Iterator[None]:
    """Prints that the movement continues if the command is interrupted."""
    try:
        yield
    except asyncio.CancelledError:
        said.print(Text("what has begun goes on. Look at it with: rekindle maintenances"), soft_wrap=True)
        raise


def _say(job: str, known: Maintenance) -> None:
    where = "; ".join(map(named, known.on_backup)) or "all devices on their first links"
    console.print(f"{escape(job)}: [green]{known.stage}[/green], {escape(where)}", highlight=False, soft_wrap=True)
    if known.moves and (reason := known.moves[-1].reason):
        console.print(f"  {escape(reason)}", highlight=False, soft_wrap=True)
    if known.on_backup:
        console.print(f"  move them back with: rekindle switchback {escape(job)}", highlight=False, soft_wrap=True)


async def _judge(rekindle: Rekindle, jobs: dict[str, str], links: tuple[NodeLinks, ...], output: Format) -> int:
    """Shows whether the request would be accepted for each job. Changes nothing."""
    refusals: dict[str, str] = {}
    codes: set[Exit] = set()

    async def one(job_id: str) -> None:
        try:
            await Maintenances(rekindle).check(job_id, links)
        except RekindleError as error:
            codes.add(exits.of(error))
            refusals[job_id] = str(error)
        else:
            codes.add(Exit.DONE)
            refusals[job_id] = ""

    await _in_turn(list(jobs), one)
    if output is Format.JSON:
        print_json([{"job": jobs[job_id], "accepted": not why, "reason": why} for job_id, why in refusals.items()])
    for job_id, why in sorted(refusals.items()) if output is Format.TEXT else ():
        words = f"would be refused: {why}" if why else f"would be accepted: {describe(links)}"
        console.print(f"{jobs[job_id]}: {words}", highlight=False, soft_wrap=True, markup=False)
    return _of_all(codes)
