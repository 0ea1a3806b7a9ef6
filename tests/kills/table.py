"""The table of all kills, as it is committed in `docs/evidence/kills.md`."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rekindle.model.mode import Mode
from rekindle.model.training_side import TrainingSide
from tests.kills.calls import DECIDED, DONE, FAILED, POLL_ACTIVITY, POLL_WORKFLOW, UPDATE, Side
from tests.kills.events import Place
from tests.kills.modes import SECTIONS, Struck

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "kills.md"

HEAD = """# Kills

Written by `make kills`. Each cell is one recovery, with real processes on one machine. A proxy held the named call open, and a
process was killed with SIGKILL meanwhile. It was started again at once. The delay is the additional time compared with an
undisturbed recovery, from the fault to the verdict in the job's history. The figure in brackets is the part of it until the new
process asked for work, if the recovery waited for that. Numbers are ids of events. These events are in the history of the job's
workflow from the fault on, and in the history of the recovery's workflow. If an incident has two recoveries, the second one has
a history of its own. Together they are all events of an undisturbed incident.

These processes were killed:

- the control worker and the gateway, at every event and at every call between two events;
- both together, at each call of the gateway;
- the Temporal server, at every event;
- the manager, at every event of the recovery.

The manager is a scripted one that behaves as ours does. Its successor is there at once, and meets the ranks for 2 s before it
carries out an order. A restart of the job replaces it: it ends when the new pods run, and another one reports their first step. A
real manager is tested with real processes (`tests/training`).

With our training side, all of this is true in every cell:

- The mode recovered the job by itself. In an incident of two modes, these two did.
- Each new pod was created once, each pod that it replaces was deleted once, and no other pods were.
- Each order was carried out once by each manager, under one uuid.
- Each report that was acknowledged was consumed once.
- Nothing was left behind."""

MINDIO = """### A training side that gives a report up (MindIO)

It sends a report four times within milliseconds and never again. {rule} Median and worst are of those that recovered without the
fallback."""

RULES = {
    Mode.HOT_SWITCH: """If the report of the pause is lost with the gateway, the job is
rescheduled once `pause` is over. That is 12 s here, instead of 15 minutes. If the status is lost with the gateway, training is
asked after `statusLost`. That is 2 s here, instead of three minutes. Training stops, receives that no rank is faulty, and
repeats a step.""",
    Mode.ONLINE_RETRY: """If a report of the opening is lost with the gateway, the recovery
goes on after `reportLost`. That is 1 s here, instead of 3. Training has stopped by then, and its offer is assumed to be
`recover`, so the next mode goes on. If the status is lost with the gateway, training is asked after `statusLost`. That is 2 s
here, instead of three minutes. Training stops, receives that no rank is faulty, and repeats a step.""",
    Mode.IN_PLACE: """If a report of the opening is lost with the gateway, the recovery goes on
after `reportLost`. That is 1 s here, instead of 3. Training has stopped by then, and its offer is assumed to be `recover`. If
the status is lost with the gateway, training is asked at the end of `repair`. That is 6 s here, instead of 15 minutes. Training
stops, receives that no rank is faulty, and repeats a step.""",
}

DOES = {
    (POLL_WORKFLOW, Side.AFTER): "workflow task is handed out",
    (POLL_ACTIVITY, Side.AFTER): "{} is handed out",
    (DECIDED, Side.BEFORE): "decided, not yet stored: {}",
    (DECIDED, Side.AFTER): "stored: {}",
    (DONE, Side.BEFORE): "carried out, not yet completed: {}",
    (DONE, Side.AFTER): "completed: {}",
    (FAILED, Side.BEFORE): "failed, not yet stored: {}",
    (FAILED, Side.AFTER): "failed: {}",
    (UPDATE, Side.BEFORE): "received, not yet accepted: {}",
    (UPDATE, Side.AFTER): "accepted, not yet acknowledged: {}",
}


@dataclass(frozen=True)
class Row:
    """Result of one kill."""

    struck: Struck
    side: TrainingSide
    place: Place
    victims: tuple[str, ...]
    outcome: str
    added: float
    """Additional seconds compared with an undisturbed run."""
    start: float
    """Part of the additional seconds until the slowest killed process requested work again; 0: nothing waited for it."""
    undisturbed: float
    """Seconds of an undisturbed run."""


@dataclass
class Table:
    """All kills of one run of the tests."""

    rows: list[Row] = field(default_factory=list)


def write(table: Table) -> None:
    """Writes the page. The sections of modes that were not run stay as they are."""
    sections = _sections(PAGE.read_text()) | {
        _title(mode): _section(mode, [row for row in table.rows if row.struck is mode])
        for mode in SECTIONS
        if any(row.struck is mode for row in table.rows)
    }
    known = [sections[_title(mode)] for mode in SECTIONS if _title(mode) in sections]
    PAGE.write_text("\n\n".join([HEAD, *known]) + "\n")


def _sections(page: str) -> dict[str, str]:
    """Returns the sections of the page by title."""
    found = (f"## {section}".strip() for section in page.split("\n## ")[1:])
    return {section.splitlines()[0]: section for section in found}


def _title(struck: Struck) -> str:
    return f"## {struck.title.capitalize()}"


def _section(struck: Struck, rows: Sequence[Row]) -> str:
    ours = [row for row in rows if row.side is TrainingSide.REKINDLE]
    mindio = [row for row in rows if row.side is TrainingSide.MINDIO]
    lines = [_title(struck), "", f"{struck.strikes[0].upper()}{struck.strikes[1:]}."]
    if ours:
        lines += ["", *_summary(ours), "", *_lines(ours)]
    if mindio:
        lines += ["", MINDIO.format(rule=RULES[struck.mode]), "", *_lines(mindio)]
    return "\n".join(lines)


def _summary(rows: Sequence[Row]) -> list[str]:
    recovered = sum(row.outcome == "recovered" for row in rows)
    waited = [row for row in rows if row.start]
    starts, on_top = _spread([row.start for row in waited]), _spread([row.added - row.start for row in waited])
    added = _spread([row.added for row in rows])
    return [
        f"**{recovered} of {len(rows)} recovered; undisturbed {rows[0].undisturbed:.2f} s, added delay: {added}.**",
        "",
        f"If a recovery waited for the killed process, that process asked for work again after {starts}.",
        f"The remaining delay was {on_top}. The machine had {os.cpu_count()} cores and did other work besides.",
        f"Its load average was {os.getloadavg()[2]:.1f}.",
    ]


def _lines(rows: Sequence[Row]) -> list[str]:
    whom = list(dict.fromkeys(row.victims for row in rows))
    cells: dict[Place, dict[tuple[str, ...], str]] = {}
    for row in rows:
        outcome = "" if row.outcome == "recovered" else f" {row.outcome}"
        start = f" ({row.start:.2f})" if row.start else ""
        cells.setdefault(row.place, {})[row.victims] = f"{row.added:+.2f}{start}{outcome}"
    names = [" and ".join(victims) for victims in whom]
    lines = [f"| event | at | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for place, found in cells.items():
        lines.append(f"| {where(place)} | {does(place)} | {' | '.join(found.get(victims, '') for victims in whom)} |")
    added = {v: [row.added for row in rows if row.victims == v and row.outcome == "recovered"] for v in whom}
    for name, of in (("median", statistics.median), ("worst", max)):
        lines.append(f"| | **{name}** | {' | '.join(f'**{of(added[v]):+.2f}**' if added[v] else '' for v in whom)} |")
    return lines


def _spread(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s" if seconds else "nothing"


def where(place: Place) -> str:
    """Returns the events that a kill meets, or those between which it falls."""
    workflow = place.point.call.workflow
    if not place.events:
        return f"{workflow}, after {place.earlier}"
    ids = [event.id for event in place.events]
    span = f"{ids[0]}-{ids[-1]}" if len(ids) > 1 else str(ids[0])
    return f"{workflow} {span}: {', '.join(event.name for event in place.events)}"


def does(place: Place) -> str:
    return DOES[place.point.call.method, place.point.side].format(place.words)
