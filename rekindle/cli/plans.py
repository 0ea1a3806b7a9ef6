"""Commands about upgrades of switches: check a plan, start it, look at it, and control it."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from rekindle.cli.context import control_plane
from rekindle.cli.exits import Exit
from rekindle.cli.output import Format, Output, print_columns, print_json, when
from rekindle.cli.recover import DryRun, user
from rekindle.cli.terminal import console, problems
from rekindle.cli.values import Said
from rekindle.errors import BadInput, Refused
from rekindle.model.plan import ENDS, Forecast, Stage, SwitchPlan, Upgrade, Where, Word
from rekindle.model.plan_file import parse
from rekindle.plans import ENDED_BY_FORCE, Plans
from rekindle.policy.operations import switch_upgrade as policy
from rekindle.temporal import Attributes

plan_app = App(name="plan")

LOOK = 0.5
"""Seconds between two looks at an upgrade that is being followed."""

File = Annotated[Path, Parameter(allow_leading_hyphen=True, help="YAML; - reads standard input.")]
Wait = Annotated[bool, Parameter(negative="", help="Show each job, until a person has to do something.")]
Leaf = Annotated[Said, Parameter(help="The leaf that is upgraded: refused if another one is free by now.")]
Check = Annotated[Said, Parameter(help="Command that is run while a leaf is free; if it succeeds, the leaf is switched back.")]


@plan_app.command
async def check(file: File) -> None:
    """Check FILE by itself: what it says, whether the leaves cover the switch. No service is asked.

    Example: rekindle plan check plan.yaml
    """
    plan = _read(file)
    console.print(
        f"{plan.switch}: leaves: {len(plan.leaves)}, links: {_links(plan)}; see what it would do with --dry-run", soft_wrap=True
    )


@plan_app.command
async def start(
    file: File, *, dry_run: DryRun = False, wait: Wait = False, check: Check = "", output: Output = Format.TEXT
) -> int:
    """Begin the upgrade that FILE describes: its first leaf is failed over on all jobs.

    Example: rekindle plan start plan.yaml --dry-run
    """
    plan = _read(file)
    plans = Plans(await control_plane())
    if dry_run:
        return _show_forecast(plan, await plans.forecast(plan), output)
    with _going_on(plan.switch):
        forecast = await plans.start(plan, requested_by=user())
    if wait or check:
        return await _follow(plans, plan.switch, check, output)
    if output is Format.JSON:
        print_json(forecast.model_dump(mode="json"))
    else:
        jobs = len({row.job for row in forecast.rows})
        console.print(f"the upgrade of {plan.switch} has begun, {len(plan.leaves)} leaves, {jobs} jobs", soft_wrap=True)
        console.print(f"look at it with: rekindle plan show {plan.switch}", soft_wrap=True)
    return Exit.DONE


@plan_app.command
async def run(name: str, *, check: Check = "", output: Output = Format.TEXT) -> int:
    """Follow the upgrade of switch NAME until a person has to do something, or with --check to its end.

    The command is run on this machine, by a shell, with REKINDLE_SWITCH and REKINDLE_LEAF. Where it fails the upgrade stands.

    Example: rekindle plan run tor-7 --check ./leaf-is-up.sh
    """
    return await _follow(Plans(await control_plane()), name, check, output)


@plan_app.command
async def show(name: str = "", *, output: Output = Format.TEXT) -> None:
    """Show the upgrade of switch NAME, or list all.

    Example: rekindle plan show tor-7
    """
    plans = Plans(await control_plane())
    if name:
        _show(await plans.status(name), output)
        return
    rows = [(switch, run) async for switch, run in plans.list()]
    if output is Format.JSON:
        print_json(
            [
                {"switch": switch, "running": _runs(run.status), "state": _state(run), "since": run.start_time}
                for switch, run in rows
            ]
        )
    elif rows:
        print_columns(("switch", "state", "since"), [(name, _state(run), when(run.start_time)) for name, run in rows])
    else:
        console.print("no switch is being upgraded; begin with: rekindle plan start plan.yaml --dry-run", soft_wrap=True)


def _runs(status: WorkflowExecutionStatus | None) -> bool:
    return status is WorkflowExecutionStatus.RUNNING


def _state(run: WorkflowExecution) -> str:
    if run.status is WorkflowExecutionStatus.FAILED:
        return Stage.REFUSED
    if run.status in ENDED_BY_FORCE:
        return Stage.TERMINATED
    return run.typed_search_attributes.get(Attributes.PHASE) or ""


@plan_app.command
async def proceed(name: str, *, leaf: Leaf = "") -> None:
    """The free leaf of switch NAME is upgraded: its jobs are switched back, and the next leaf follows."""
    await _tell(name, Word.PROCEED, leaf)


@plan_app.command
async def stop(name: str) -> None:
    """Begin nothing more on switch NAME. Movements that run are finished."""
    await _tell(name, Word.STOP)


@plan_app.command
async def resume(name: str) -> None:
    """Go on with the upgrade of switch NAME where it was stopped."""
    await _tell(name, Word.RESUME)


@plan_app.command
async def rollback(name: str) -> None:
    """Switch everything back that is failed over for the upgrade of switch NAME, the last one first, and end it."""
    await _tell(name, Word.ROLLBACK)


@plan_app.command
async def retry(name: str) -> None:
    """Try again to move the jobs that stand in the way of the upgrade of switch NAME."""
    await _tell(name, Word.RETRY)


@plan_app.command
async def skip(name: str) -> None:
    """Leave the jobs that stand in the way of the upgrade of switch NAME where they are."""
    await _tell(name, Word.SKIP)


async def _tell(name: str, word: Word, leaf: str = "") -> None:
    info = await Plans(await control_plane()).tell(name, word, leaf=leaf, requested_by=user())
    console.print(f"{name}: {info}", markup=False, highlight=False, soft_wrap=True)


# ---- what a file says


def _read(file: Path) -> SwitchPlan:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"file: {file} cannot be read: {error}") from error
    plan = parse(text)
    if wrong := policy.problems(plan):
        raise BadInput("\n".join(wrong))
    return plan


def _links(plan: SwitchPlan) -> int:
    return sum(len(one.devices) for one in plan.carries)


# ---- what is shown


def _show_forecast(plan: SwitchPlan, forecast: Forecast, output: Format) -> int:
    if output is Format.JSON:
        print_json(forecast.model_dump(mode="json"))
        return Exit.REFUSED if forecast.refused else Exit.DONE
    for leaf in forecast.leaves:
        rows = [row for row in forecast.rows if row.leaf == leaf]
        _say(f"leaf {leaf}, jobs: {len(rows)}")
        for row in rows:
            words = row.problem and f"cannot be moved: {row.problem}"
            words = words or (f"to the backup link: {row.devices} ({row.ranks})" if row.devices else "nothing to move")
            _say(f"  {row.job}: {words}{f' ({row.info})' if row.info else ''}")
    if forecast.more:
        _say(f"and {forecast.more} more")
    if forecast.refused:
        raise Refused("\n".join(["would be refused:", *forecast.refused]))
    _say(f"would be accepted: {len(plan.leaves)} leaves, one after the other, at most {plan.at_once} jobs at once")
    return Exit.DONE


def _show(known: Upgrade, output: Format) -> None:
    if output is Format.JSON:
        print_json({**known.model_dump(mode="json"), "now": policy.now(known)})
        return
    _say(f"{known.switch}: {policy.now(known)}")
    for leaf in known.done:
        left = f", {leaf.skipped} left on it, {leaf.left} left on their backup links" if leaf.skipped or leaf.left else ""
        _say(f"  leaf {leaf.name}: done, {leaf.returned} jobs moved and back{left}")
    for move in known.moves:
        _say(f"  {move.job}: {move.where}, {move.what}{f': {move.reason}' if move.reason else ''}")
    for note in reversed(known.notes):
        _say(f"  {when(note.at)} {note.what}")


async def _follow(plans: Plans, switch: str, command: str, output: Format) -> int:
    """Follows the upgrade, and prints a line for each change of a job. The upgrade continues if this is interrupted.

    Returns:
        0 where it has come to its end, or waits for `proceed`; 1 where it was rolled back, waits for a decision or is stopped.
    """
    said: set[str] = set()
    with _going_on(switch):
        while True:
            known = await plans.status(switch)
            _tell_news(known, said)
            if known.stage is Stage.FREE and command and not policy.stands(known):
                if await _run(command, known):
                    return _end(known, output, f"{command} failed: proceed or roll back by hand")
                by = f"{user()}, by the success of a check"
                await plans.tell(switch, Word.PROCEED, leaf=known.leaf_name, requested_by=by)
            elif known.stage in (*ENDS, Stage.FREE) or policy.stands(known):
                return _end(known, output)
            await asyncio.sleep(LOOK)


@contextmanager
def _going_on(switch: str) -> Iterator[None]:
    """Prints that the upgrade continues if the command is interrupted."""
    try:
        yield
    except asyncio.CancelledError:
        problems.print(Text(f"what has begun goes on. Look at it with: rekindle plan show {switch}"), soft_wrap=True)
        raise


def _tell_news(known: Upgrade, said: set[str]) -> None:
    """Writes each new line about the upgrade to standard error once. Standard output contains only the result."""
    lines = [f"leaf {known.leaves[move.leaf]}: {move.job}: {move.where}" for move in known.moves]
    if known.done:
        lines.append(f"leaf {known.done[-1].name}: done")
    for line in lines:
        if line not in said:
            said.add(line)
            problems.print(Text(line), soft_wrap=True)


async def _run(command: str, known: Upgrade) -> int:
    """Runs a check and returns its exit code. Its output goes to that of this command."""
    environment = {**os.environ, "REKINDLE_SWITCH": known.switch, "REKINDLE_LEAF": known.leaf_name}
    problems.print(Text(f"leaf {known.leaf_name}: runs {command}"), soft_wrap=True)
    process = await asyncio.create_subprocess_shell(command, env=environment, stdout=sys.stderr)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()


def _end(known: Upgrade, output: Format, problem: str = "") -> int:
    _show(known, output)
    if problem:
        problems.print(Text(problem), soft_wrap=True)
    well = known.stage in (Stage.DONE, Stage.FREE) and not policy.stands(known) and not problem
    return Exit.DONE if well and all(move.where is not Where.LEFT for move in known.moves) else Exit.OTHERWISE


def _say(words: str) -> None:
    console.print(words, markup=False, highlight=False, soft_wrap=True)
