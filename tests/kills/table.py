"""The table of all kills, as it is committed in `docs/kills.md`."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kills.calls import DECIDED, DONE, POLL_ACTIVITY, POLL_WORKFLOW, UPDATE, Side
from tests.kills.events import Place

PAGE = Path(__file__).parents[2] / "docs" / "kills.md"

HEAD = """# Kills

Written by `make kills`. Each cell is one hot switch, with real processes on one machine, during which a process was killed
with SIGKILL while a proxy held the call open that is named; it was started again at once. The delay is what the hot switch took
longer, from the fault to the verdict in the job's history, than an undisturbed one ({seconds:.2f} s). In brackets: of this, until
the new process asked for work, where it had to be waited for. Numbers are ids of events, in the history of the job's workflow
from the fault on and of the recovery's.

Of our training side, in every cell: one backup pod was created, the old pod was deleted once, each order was carried out once,
and each report was consumed once."""

OURS = "## Our training side"
MINDIO = """## A training side that gives a report up (MindIO)

It sends a report four times within milliseconds and never again. Where the report of the pause is lost with the gateway, the rule
is job rescheduling once `pause` is over, here 12 s instead of 15 minutes. Where the status is lost with it, the rule is job
rescheduling after `statusLost`, here 2 s instead of a minute: nothing shows that the manager is the same process. Median and
worst are of those that recovered without the fallback."""

DOES = {
    (POLL_WORKFLOW, Side.AFTER): "workflow task is handed out",
    (POLL_ACTIVITY, Side.AFTER): "{} is handed out",
    (DECIDED, Side.BEFORE): "decided, not yet stored: {}",
    (DECIDED, Side.AFTER): "stored: {}",
    (DONE, Side.BEFORE): "carried out, not yet completed: {}",
    (DONE, Side.AFTER): "completed: {}",
    (UPDATE, Side.BEFORE): "received, not yet accepted: {}",
    (UPDATE, Side.AFTER): "accepted, not yet acknowledged: {}",
}


@dataclass(frozen=True)
class Row:
    """What one kill came to."""

    place: Place
    victims: tuple[str, ...]
    side: str
    outcome: str
    added: float
    """Seconds that it took longer than an undisturbed run."""
    start: float
    """Of these, seconds until the slowest of the killed processes asked for work again; 0: nothing waited for it."""


@dataclass
class Table:
    """All kills of one run of the tests."""

    undisturbed: float = 0.0
    load: float = 0.0
    """Load average of the machine over the last quarter of an hour."""
    rows: list[Row] = field(default_factory=list)

    def write(self) -> None:
        self.load = os.getloadavg()[2]
        PAGE.write_text("\n".join([*self._head(), *self._body(), ""]))

    def _head(self) -> list[str]:
        ours = [row for row in self.rows if row.side == "rekindle"]
        recovered = sum(row.outcome == "recovered" for row in ours)
        waited = [row for row in ours if row.start]
        starts, on_top = _spread([row.start for row in waited]), _spread([row.added - row.start for row in waited])
        return [
            HEAD.format(seconds=self.undisturbed),
            "",
            f"**{recovered} of {len(ours)} recovered; added delay: {_spread([row.added for row in ours])}.**",
            "",
            f"Where it had to be waited for, the killed process asked for work again after {starts}; on top of",
            f"that came {on_top}. The machine had {os.cpu_count()} cores and did other work besides: its load average",
            f"was {self.load:.1f}.",
            "",
        ]

    def _body(self) -> list[str]:
        lines: list[str] = []
        for side, title in (("rekindle", OURS), ("mindio", MINDIO)):
            rows = [row for row in self.rows if row.side == side]
            if rows:
                lines += [title, "", *self._lines(rows), ""]
        return lines

    def _lines(self, rows: Sequence[Row]) -> list[str]:
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
        added: dict[tuple[str, ...], list[float]] = {
            v: [row.added for row in rows if row.victims == v and row.outcome == "recovered"] for v in whom
        }
        lines.append(f"| | **median** | {' | '.join(f'**{statistics.median(added[v]):+.2f}**' for v in whom)} |")
        lines.append(f"| | **worst** | {' | '.join(f'**{max(added[v]):+.2f}**' for v in whom)} |")
        return lines


def _spread(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s" if seconds else "nothing"


def where(place: Place) -> str:
    """The events that a kill meets, or those between which it falls."""
    workflow = place.point.call.workflow
    if not place.events:
        return f"{workflow}, after {place.earlier}"
    ids = [event.id for event in place.events]
    span = f"{ids[0]}-{ids[-1]}" if len(ids) > 1 else str(ids[0])
    return f"{workflow} {span}: {', '.join(event.name for event in place.events)}"


def does(place: Place) -> str:
    return DOES[place.point.call.method, place.point.side].format(place.words)
