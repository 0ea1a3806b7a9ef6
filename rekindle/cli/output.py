"""Output for people and machines: tables and colours on a terminal, one JSON object per command for machines."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from cyclopts import Parameter
from rich.cells import cell_len
from rich.markup import escape
from rich.text import Text

from rekindle.cli.pods import pod_words, waiting
from rekindle.cli.terminal import console
from rekindle.client import RecoveryRow
from rekindle.model.bounds import numbered
from rekindle.model.cluster import Pod
from rekindle.model.incident import Incident
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, JobStatus, Standing
from rekindle.model.stress import Code, Tested
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue.client_identity import doubts
from rekindle.policy.modes import elastic, retries
from rekindle.policy.modes.approvals import to_decide
from rekindle.policy.modes.cases import describe
from rekindle.policy.modes.job_phase import phase
from rekindle.policy.placement import standbys

NO_STEP = "reports 406 no step was completed"
"""Part of the verdict of a hot switch after which no step was completed: our training side rebuilt its communicator after the
order to go on, and no more."""
NOT_REBUILT = (
    "usually the script speaks to other ranks between session() and its loop, where a replacement is alone, or keeps a process "
    "group of its own for which it does not ask again in a function that it gives to training.on_rebuild"
)

COLOURS = {
    Outcome.RECOVERED: "green",
    Outcome.ESCALATE: "yellow",
    Outcome.REFUSED: "yellow",
    Outcome.IGNORED: "yellow",
    Outcome.CANCELLED: "yellow",
    Outcome.GIVEN_UP: "red",
}

CODES = {
    Code.OK: "ok",
    Code.NOT_RUN: "could not be run",
    Code.FAULT: "FAULT",
    Code.TIMED_OUT: "timed out",
    Code.VOLTAGE: "voltage not put back",
}


class Format(StrEnum):
    """Value of `--output`."""

    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, Parameter(name=["--output", "-o"], help="text for people, json for machines.")]


def print_json(value: Any) -> None:
    """Prints one line of JSON to stdout."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def outcome(value: Outcome) -> Text:
    return Text(value.value, style=COLOURS[value])


def print_columns(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints a table without cutting anything, even on a narrow terminal, as users type its content in other commands.

    Each row is one line, whatever its text contains.
    """
    table = [tuple(" ".join(cell.splitlines()) for cell in row) for row in (header, *rows)]
    widths = [max(cell_len(row[column]) for row in table) for column in range(len(header))]
    for number, row in enumerate(table):
        line = "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        console.print(Text(line.rstrip(), style="" if number else "bold"), soft_wrap=True)


def show_status(status: JobStatus, recovery: RecoveryRow | None = None, pods: Sequence[Pod] = ()) -> None:
    """Prints a job's page: policy, stream, pods that do not run, and its incidents as post-mortems.

    Args:
        recovery: the one that runs now.
        pods: those of the job, as far as we can see them.
    """
    state = status.state
    _line(f"[bold]{state.job.name}[/bold] ({state.job.id}): {escape(_doing(status, pods))}")
    _line(f"  {state.job.pods} pods, {state.job.ranks} ranks, training side {state.job.training_side}")
    if recovery:
        _line(f"  because of: {escape(recovery.fault)}")
    if state.job.observe:
        _line("  [yellow]observed[/yellow]: what would be done is shown; nothing is ordered, and no label is written")
    for problem in state.problems:
        _line(f"  [red]cannot be recovered:[/red] {escape(problem)}")
    _show_pods(state, pods)
    _line(f"  stream: {state.attachment.queue if state.attachment else 'not attached'}")
    for doubt in doubts(state.manager_lost, state.unsure_since is not None):
        _line(f"  [yellow]{escape(doubt)}[/yellow]")
    for link in state.links:
        _line(f"  on the backup link: {escape(numbered('rank', link.ranks))}, moved by {escape(link.maintenance or 'a client')}")
    _show_policy(state)
    for one in state.faults:
        _line(f"  {escape(_fault(one))}")
    for incident in state.history:
        console.print()
        show_incident(incident)


def _show_policy(state: JobState) -> None:
    _line(f"  sub-health policy: {state.policy}")
    show_downgrade(state)
    for words in to_decide(state):
        _line(f"  [yellow]{escape(words)}[/yellow]")
    if (left := retries.left(state)) is not None:
        _line(f"  restarts without a known cause: {left} of {state.job.retries} left")


def _show_pods(state: JobState, pods: Sequence[Pod]) -> None:
    for words in pod_words(pods):
        _line(f"  [yellow]{escape(words)}[/yellow]")
    if standing_by := standbys.words(state):
        _line(f"  {escape(standing_by)}")
    if small := size(state):
        _line(f"  [yellow]{escape(small)}[/yellow]")


def size(state: JobState) -> str:
    """Describes the size of a job that trains with fewer pods than it was started with. Empty: it has all of them."""
    return elastic.words(state, state.small.since.astimezone().strftime("%H:%M")) if state.small else ""


def _doing(status: JobStatus, pods: Sequence[Pod]) -> str:
    state = status.state
    if status.running:
        return f"recovering: {status.running}"
    doing = state.ended and f"ended: {state.ended}"
    doing = doing or waiting(pods) or phase(state, status.running)
    return f"{doing}, only observed" if state.job.observe else doing


def show_downgrade(state: JobState) -> None:
    """Prints why sub-healths of the job are ignored, and how that ends."""
    if state.downgrade:
        _line(f"  [yellow]downgraded[/yellow] {when(state.downgrade.since)} to ignore: {escape(state.downgrade.reason)}")
        _line(f"  lift it with: rekindle policy lift {state.job.name}")


def show_incident(incident: Incident) -> None:
    """Prints an incident as a post-mortem of all modes that were tried."""
    line = Text(f"incident {incident.number}: {incident.summary} -> ").append_text(outcome(incident.verdict))
    console.print(line.append(f" in {incident.seconds:.2f} s"), soft_wrap=True)
    for verdict in incident.ladder:
        show_verdict(verdict)


def show_verdict(verdict: Verdict) -> None:
    """Prints one recovery as a post-mortem."""
    line = Text(f"  {verdict.mode}: ").append_text(outcome(verdict.outcome)).append(f", {verdict.reason}")
    console.print(line, soft_wrap=True)
    if words := hint(verdict):
        _line(f"    [yellow]hint:[/yellow] {words}")
    for done in verdict.phases:
        mark = "[yellow]![/yellow]" if done.note else "[green]✓[/green]"
        _line(f"    {mark} {escape(done.name)} [dim]{done.seconds:.3f} s {escape(done.note)}[/dim]")
    if verdict.steps_lost is not None:
        _line(f"    steps lost: {verdict.steps_lost}")
    if verdict.look_at:
        _line(f"    look at: {escape(verdict.look_at)}")


def show_tested(tested: Tested) -> None:
    """Prints the table of a stress test; rows with findings come first."""
    if tested.failed:
        console.print(tested.failed, markup=False, highlight=False, soft_wrap=True)
        return
    rows = [(row.node, row.device, str(row.rank), row.check, _code(row.code), row.result) for row in tested.rows]
    print_columns(("node", "device", "rank", "check", "verdict", "measured"), rows)
    if (more := tested.checks - len(rows)) > 0:
        console.print(f"and {more} more that found nothing")
    for node in tested.findings.isolate:
        console.print(f"{node} is isolated; when it is mended: rekindle nodes release {node}", highlight=False, soft_wrap=True)


def _code(code: str) -> str:
    return CODES[Code(code)] if code in set(Code) else code


def hint(verdict: Verdict) -> str:
    """Returns the usual cause of such a verdict; empty: there is none."""
    stuck = verdict.mode is Mode.HOT_SWITCH and NO_STEP in verdict.reason
    return NOT_REBUILT if stuck and verdict.outcome is Outcome.ESCALATE else ""


def _fault(one: Standing) -> str:
    """Describes a fault of the job, and what was decided about it."""
    return f"{describe(one.fault)} ({one.judged or 'not judged yet'})"


def _line(markup: str) -> None:
    console.print(markup, highlight=False, soft_wrap=True)


def when(time: datetime) -> str:
    """Formats a time in the reader's own time zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(time: timedelta) -> str:
    """Formats a duration as people say it: `40s`, `12m`, `5h`, `3d`."""
    seconds = max(0, int(time.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
