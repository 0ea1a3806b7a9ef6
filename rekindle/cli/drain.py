"""Command that drains a node: the ranks on it leave by the policy of their jobs, and training loses no step."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from rekindle.cli.context import control_plane
from rekindle.cli.exits import Exit
from rekindle.cli.follow import phases
from rekindle.cli.output import Format, Output, print_columns, print_json
from rekindle.cli.terminal import console, problems
from rekindle.client import Rekindle
from rekindle.drains import Drains
from rekindle.errors import BadInput, Refused, RekindleError, Unavailable
from rekindle.model.draining import SETTLED, Draining, Where
from rekindle.model.explained import PodThere

LOOK = 0.5
"""Seconds between two looks at the jobs on a node that is being drained."""

PATIENCE = 30.0
"""Seconds without an answer until the command gives up. Processes of the control plane may be replaced meanwhile."""

DryRun = Annotated[bool, Parameter(negative="", help="Only say what becomes of each pod; nothing is touched.")]
Wait = Annotated[bool, Parameter(negative="", help="Go on until pods that wait for a free node have left, too.")]
Undo = Annotated[bool, Parameter(negative="", help="Let pods be put there again; those that have left do not come back.")]


async def drain(
    node: str, *, dry_run: DryRun = False, undo: Undo = False, wait: Wait = False, output: Output = Format.TEXT
) -> int:
    """Drain NODE: it is cordoned, and the ranks on it move to other nodes while training pauses for a moment.

    It ends when all have left (exit code 0), or when those that are left wait or stay (1). Where no node is free the job's
    annotation rekindle.io/drain decides. Pods without a rank are left to kubectl drain.

    Example: rekindle drain node-1 --dry-run
    """
    if undo and (wait or dry_run):
        raise BadInput("--undo: use it alone, it takes back the cordon and waits for nothing")
    if dry_run and wait:
        raise BadInput("--dry-run, --wait: use one of them, a dry run waits for nothing")
    rekindle = await control_plane()
    drains = Drains(rekindle)
    if undo:
        return _undone(node, was_cordoned=await drains.undo(node), output=output)
    if dry_run:
        return _forecast(await drains.forecast(node), output)
    try:
        with _asked_for(node):
            await drains.begin(node)
    except Refused:
        if output is not Format.JSON:
            raise
        print_json((await drains.forecast(node)).model_dump(mode="json"))
        return Exit.REFUSED
    with _going_on(node):
        now = await _followed(rekindle, drains, node, wait=wait)
    return _end(now, output)


def _undone(node: str, *, was_cordoned: bool, output: Format) -> int:
    if output is Format.JSON:
        print_json({"node": node, "was_cordoned": was_cordoned})
    else:
        _say(f"{node} takes pods again" if was_cordoned else f"nothing to undo: {node} is not cordoned")
    return Exit.DONE


def _forecast(would: Draining, output: Format) -> int:
    if output is Format.JSON:
        print_json(would.model_dump(mode="json"))
        return Exit.REFUSED if would.refused else Exit.DONE
    _show(would)
    if would.refused:
        raise Refused("\n".join(["would be refused:", *would.refused]))
    _say(f"would be accepted: {would.node} {'is cordoned already' if would.cordoned else 'would be cordoned'}")
    return Exit.DONE


@contextmanager
def _asked_for(node: str) -> Iterator[None]:
    """Warns that the node may be cordoned if the command is interrupted before it has an answer."""
    try:
        yield
    except asyncio.CancelledError:
        problems.print(Text(f"{node} may be cordoned by now. {_look(node)}"), soft_wrap=True)
        raise


@contextmanager
def _going_on(node: str) -> Iterator[None]:
    """Prints that the drain continues if the command ends by Ctrl-C or because the control plane does not answer."""
    words = f"{node} stays cordoned, and its ranks go on to leave it. {_look(node)}"
    try:
        yield
    except asyncio.CancelledError:
        problems.print(Text(words), soft_wrap=True)
        raise
    except Unavailable as error:
        raise Unavailable(f"{error}\n{words}") from error


def _look(node: str) -> str:
    return f"Look at it with: rekindle drain {node} --dry-run; take it back with: rekindle drain {node} --undo"


async def _followed(rekindle: Rekindle, drains: Drains, node: str, *, wait: bool) -> Draining:
    """Follows the drain and returns its last state.

    Prints a line for each change of a pod, and one for each phase of a recovery that moves it.
    """
    said: set[str] = set()
    answered = time.monotonic()
    enough = SETTLED if wait else (*SETTLED, Where.WAITS)
    while True:
        try:
            now = await drains.look(node)
        except Unavailable:
            if time.monotonic() - answered > PATIENCE:
                raise
        else:
            answered = time.monotonic()
            await _tell_news(rekindle, now, said)
            stuck = any(row.where in (Where.STAYS, Where.WAITS) for row in now.rows)
            if now.drained or not now.cordoned or (stuck and all(row.where in enough for row in now.rows)):
                return now
        await asyncio.sleep(LOOK)


async def _tell_news(rekindle: Rekindle, now: Draining, said: set[str]) -> None:
    """Writes each new line about the drain to standard error once. Standard output contains only the result."""
    lines = [f"{row.job}: {row.pod.name} {row.where}{f': {row.why}' if row.why else ''}" for row in now.rows]
    for one in now.moving:
        with suppress(RekindleError):  # it has just ended
            lines += [f"{one.job}: {line}" for line in phases(one.mode, await rekindle.details(one.workflow_id))]
    for line in lines:
        if line not in said:
            said.add(line)
            problems.print(Text(line), soft_wrap=True)


def _end(now: Draining, output: Format) -> int:
    if output is Format.JSON:
        print_json(now.model_dump(mode="json"))
        return Exit.DONE if now.drained else Exit.OTHERWISE
    _show(now)
    node = now.node
    if now.drained:
        _say(f"{node} is drained: no rank is there any more. What has no rank leaves it by: kubectl drain {node}")
    elif not now.cordoned:
        _say(f"{node} is not cordoned any more: a person has taken the drain back, and ranks are there still")
        return Exit.OTHERWISE
    else:
        waits = any(row.where is Where.WAITS for row in now.rows)
        more = f"Follow them with: rekindle drain {node} --wait" if waits else f"kubectl drain {node} ends those that stay"
        _say(f"{node} is cordoned, and ranks are there still. {more}")
    _say(f"let pods be put there again with: rekindle drain {node} --undo")
    return Exit.DONE if now.drained else Exit.OTHERWISE


def _show(now: Draining) -> None:
    if not now.rows:
        _say(f"{now.node}: no pod of a registered job is there")
        return
    rows = [(row.job, row.pod.name, _rank(row.pod), row.where, row.why) for row in now.rows]
    print_columns(("job", "pod", "pod rank", "what becomes of it", "why"), rows)


def _rank(pod: PodThere) -> str:
    return "-" if pod.pod_rank is None else str(pod.pod_rank)


def _say(words: str) -> None:
    console.print(words, markup=False, highlight=False, soft_wrap=True)
