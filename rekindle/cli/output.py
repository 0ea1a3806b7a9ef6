"""What people and machines read: tables and colours on a terminal, one JSON object a command for machines."""

import json
import sys
from datetime import datetime
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rekindle.client import JobRow
from rekindle.model.recovery import Incident, Outcome, Verdict
from rekindle.model.state import JobStatus

console = Console()
problems = Console(stderr=True)

COLOURS = {
    Outcome.RECOVERED: "green",
    Outcome.ESCALATE: "yellow",
    Outcome.REFUSED: "yellow",
    Outcome.IGNORED: "yellow",
    Outcome.CANCELLED: "yellow",
    Outcome.GIVEN_UP: "red",
}


class Format(StrEnum):
    """Value of `--output`."""

    TEXT = "text"
    JSON = "json"


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def outcome(value: Outcome) -> Text:
    return Text(value.value, style=COLOURS[value])


def jobs_table(rows: list[JobRow]) -> Table:
    table = Table("job", "id", "state", "last verdict", "since", box=None, header_style="bold")
    for row in rows:
        table.add_row(row.name, row.id, row.phase, row.last_verdict or "-", _when(row.since))
    return table


def show_status(status: JobStatus) -> None:
    """A job's page: policy, stream, and its incidents as post-mortems."""
    state = status.state
    idle = "training, only observed" if state.job.observe else "training"
    doing = f"recovering: {status.running}" if status.running else idle
    console.print(f"[bold]{state.job.name}[/bold] ({state.job.id}): {doing}")
    console.print(f"  {state.job.pods} pods, {state.job.ranks} ranks, training side {state.job.training_side}")
    if state.job.observe:
        console.print("  [yellow]observed[/yellow]: what would be done is shown; nothing is ordered, and no label is written")
    for problem in state.problems:
        console.print(Text("  cannot be recovered: ", style="red").append(problem, style="default"))
    console.print(f"  stream: {state.attachment.queue if state.attachment else 'not attached'}")
    console.print(f"  sub-health policy: {state.policy}")
    if state.downgrade:
        console.print(f"  [yellow]downgraded[/yellow] {_when(state.downgrade.since)}: {state.downgrade.reason}")
        console.print(f"  lift it with: rekindle policy lift {state.job.name}")
    for pod in state.sub_healthy:
        console.print(f"  sub-healthy: pod rank {pod.pod_rank} on {pod.fault.node} ({pod.judged or 'not judged yet'})")
    for incident in state.history:
        show_incident(incident)


def show_incident(incident: Incident) -> None:
    console.print()
    line = Text(f"incident {incident.number}: {incident.summary} -> ").append_text(outcome(incident.verdict))
    console.print(line.append(f" in {incident.seconds:.2f} s"))
    for verdict in incident.ladder:
        show_verdict(verdict)


def show_verdict(verdict: Verdict) -> None:
    """One recovery as a post-mortem."""
    console.print(Text(f"  {verdict.mode}: ").append_text(outcome(verdict.outcome)).append(f", {verdict.reason}"))
    for phase in verdict.phases:
        mark = "[yellow]![/yellow]" if phase.note else "[green]✓[/green]"
        console.print(f"    {mark} {phase.name} [dim]{phase.seconds:.3f} s {phase.note}[/dim]")
    if verdict.steps_lost is not None:
        console.print(f"    steps lost: {verdict.steps_lost}")
    if verdict.look_at:
        console.print(f"    look at: {verdict.look_at}")


def _when(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
