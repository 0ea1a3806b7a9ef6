"""Command `rekindle top`: all jobs at a glance, refreshed until Ctrl-C."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from cyclopts import Parameter
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rekindle.cli.context import control_plane
from rekindle.cli.output import Format, Output, age, print_json, size, when
from rekindle.cli.terminal import complain, console
from rekindle.cli.watching import EVERY
from rekindle.client import JobRow, Rekindle, RunningRecovery
from rekindle.errors import BadInput, RekindleError, Unavailable
from rekindle.model.base import Value
from rekindle.model.state import JobState, JobStatus
from rekindle.policy.account import standing, summary
from rekindle.policy.modes.job_phase import TRAINING

MOST = 100
"""Maximum number of jobs that are queried and shown. Jobs that do not train come first."""

AT_ONCE = 20
"""Number of jobs that are queried at the same time."""

BESIDE = 4
"""Number of lines of a terminal that jobs do not take: the header, the number of further jobs, the time, and the cursor's."""

HOUR = 3600.0
LONGEST = 20
"""Maximum width of a column, in characters."""


class Sort(StrEnum):
    """Value of `--sort`."""

    STATE = "state"
    NAME = "name"
    GOODPUT = "goodput"
    STEP_TIME = "step-time"


class Line(Value):
    """Job in the live view."""

    name: str
    id: str
    state: str
    step: int | None = None
    """Last completed step. Between two reports it is estimated from the step time. None: unknown."""
    step_seconds: float | None = None
    """Mean time of a step since training went on last, without checkpoints. None: unknown."""
    goodput: float | None = None
    """Share of training in the last hour, from 0 to 1. None: unknown."""
    recovery: str = ""
    """Running mode, its phase, and the time since its start. Empty: none is running."""
    standbys: str = ""
    """Standbys that wait, of those that are wanted, such as `1/1`. Empty: the job has none."""
    note: str = ""
    """Replicas that are missing, downgrade of its policy, or a reason why it cannot be recovered."""


async def top(
    *,
    sort: Annotated[
        Sort, Parameter(help="Jobs that need attention first, or by name, lowest goodput or longest step.")
    ] = Sort.STATE,
    once: Annotated[bool, Parameter(negative="", help="Print once, instead of every two seconds until Ctrl-C.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Show all jobs at a glance: state, step, step time, goodput of the last hour, recoveries, standbys and downgrades.

    With more than 100 jobs, those that need attention are shown, and then the newest. Until Ctrl-C as many are shown as the
    terminal has lines for.

    Example: rekindle top --sort goodput
    """
    if output is Format.JSON and not once:
        raise BadInput("--output: json needs --once, as the live view is for people")
    rekindle = await control_plane()
    if once:
        lines, hidden = await _look(rekindle, sort)
        if output is Format.JSON:
            print_json([line.model_dump(mode="json") for line in lines])
        else:
            _show(lines, hidden)
        return
    while True:
        try:
            lines, hidden = await _look(rekindle, sort)
        except RekindleError as error:
            complain(error)
        else:
            if console.is_terminal:
                console.clear()
            _show(lines, hidden, _room())
            _print(f"as of {when(datetime.now(UTC))}", style="dim")
        await asyncio.sleep(EVERY)


async def _look(rekindle: Rekindle, sort: Sort) -> tuple[list[Line], int]:
    """Returns a line for each job that is shown, and the number of further jobs."""
    rows = sorted(await rekindle.jobs(), key=lambda row: row.phase == TRAINING)
    running = {one.job_id: one for one in await rekindle.recoveries()}
    turn, now = asyncio.Semaphore(AT_ONCE), datetime.now(UTC)

    async def line(row: JobRow) -> Line:
        async with turn:
            try:
                status = await rekindle.status(row.id)
            except Unavailable:
                return Line(name=row.name, id=row.id, state=row.phase, note="no control worker answered")
            except RekindleError:
                return Line(name=row.name, id=row.id, state="ended")
        return _line(row, status, running.get(row.id), now)

    lines = await asyncio.gather(*(line(row) for row in rows[:MOST]))
    return _sorted(lines, sort), max(len(rows) - MOST, 0)


def _line(row: JobRow, status: JobStatus, recovery: RunningRecovery | None, now: datetime) -> Line:
    state, seconds = status.state, now.timestamp()
    account = standing.account_of(state, seconds)
    current, paced, trains = account.current, account.paced, not status.running and standing.stands_since(state) is None
    step = state.account.step or (state.progress.step if state.progress else None)
    step_seconds = paced.step_seconds if paced else None
    if step and step_seconds and trains and not account.final and current:
        step += int(max(seconds - current.ended, 0.0) / step_seconds)
    hour = summary.of_job(row.name, row.id, account, since=seconds - HOUR)
    wanted = state.job.standbys
    ready = sum(not one.wrong for one in state.standbys)
    return Line(
        name=row.name,
        id=row.id,
        state=row.phase,
        step=step,
        step_seconds=step_seconds,
        goodput=hour.goodput if hour.seconds else None,
        recovery=f"{recovery.mode}: {recovery.phase}, {age(now - recovery.since)}" if recovery else "",
        standbys=f"{min(ready, wanted)}/{wanted}" if wanted else "",
        note=_note(state),
    )


def _note(state: JobState) -> str:
    ignored = f"sub-health ignored: {state.downgrade.reason}" if state.downgrade else ""
    return "; ".join(filter(None, (size(state), ignored or next(iter(state.problems), ""))))


def _sorted(lines: Sequence[Line], sort: Sort) -> list[Line]:
    """Returns the lines in order. Jobs of which the value is unknown come last."""
    match sort:
        case Sort.NAME:
            return sorted(lines, key=lambda line: line.name)
        case Sort.GOODPUT:
            return sorted(lines, key=lambda line: math.inf if line.goodput is None else line.goodput)
        case Sort.STEP_TIME:
            return sorted(lines, key=lambda line: -(line.step_seconds or 0.0))
        case Sort.STATE:
            return list(lines)


def _show(lines: Sequence[Line], hidden: int, room: float = math.inf) -> None:
    """Prints a line for each job, and a second one with its recovery or note.

    Args:
        room: number of lines for jobs. Those of jobs that do not fit would move the first ones out of sight.
    """
    table = [("job", "state", "step", "step time", "goodput 1h", "standbys"), *map(_cells, lines)]
    widths = [min(max(cell_len(row[column]) for row in table), LONGEST) for column in range(len(table[0]))]
    notes = _notes(lines)
    for number, row in enumerate(table):
        note = notes[number - 1] if number else ""
        room -= (1 + bool(note)) if number else 0
        if room < 0:
            hidden += len(table) - number
            break
        cells = "  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        _print(cells, style="" if number else "bold")
        if note:
            _print(f"    {note}", style="yellow")
    if not lines:
        console.print("no job is registered")
    if hidden:
        console.print(f"{hidden} further jobs are not shown")


def _room() -> float:
    """Returns the number of lines for jobs: those of the terminal, where each look replaces the one before."""
    return console.height - BESIDE if console.is_terminal and not console.is_dumb_terminal else math.inf


def _notes(lines: Sequence[Line]) -> list[str]:
    """Returns the second line of each job: its id, if others have its name, and its recovery or note."""
    names = Counter(line.name for line in lines)
    parts = [(f"id {line.id}" if names[line.name] > 1 else "", _one(line.recovery or line.note)) for line in lines]
    return [", ".join(filter(None, one)) for one in parts]


def _one(text: str) -> str:
    """Returns the text in one line."""
    return " ".join(text.splitlines())


def _print(text: str, style: str) -> None:
    console.print(Text(text, style=style), overflow="ellipsis", no_wrap=True)


def _cells(line: Line) -> tuple[str, ...]:
    return (
        _one(line.name),
        line.state,
        "-" if line.step is None else str(line.step),
        "-" if line.step_seconds is None else f"{line.step_seconds * 1000:.0f} ms",
        "-" if line.goodput is None else f"{line.goodput:.1%}",
        line.standbys or "-",
    )
