"""Picture of an incident as a page: one file with its chart inside, without scripts, for screen and paper."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from rich.cells import cell_len, set_cell_size

from rekindle.cli.incident_text import milliseconds
from rekindle.cli.report_page import document
from rekindle.model.mode import Outcome
from rekindle.model.picture import Item, Lane, Part, Picture
from rekindle.policy.incidents.axis import Axis, Segment
from rekindle.policy.incidents.chronicle import Entry, entries, marks_of

WIDTH = 1000
NAMES = 120
"""Width of the names of lanes."""
EDGE = 14
"""Width before and after the incident."""
SPACE = 12
"""Width between two numbers of the axis."""
ROW = 20
TOP = 34
"""Height of the numbers of the axis."""
LETTER = 15
"""Width that an item needs for its letter."""
CHARACTER = 5.6
"""Mean width of a character of a bar's text."""
APART = 90
"""Width for each tick of the axis."""

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #5f6770; --line: #d5d9de; --page: #fff; --quiet: #eef0f2;
  --cluster: #bcd4f2; --decision: #d3d7dc; --mode: #d9c8f0; --phase: #b9e0d9; --order: #f8d3a8; --wait: #e6e8eb;
  --manager: #f5c3d5; --trains: #8fd19e; --stands: #fff3c4; --bad: #c62828; --good: #1b7f3b; }
@media (prefers-color-scheme: dark) { :root {
  --text: #e6e8ea; --soft: #9aa3ad; --line: #3a4148; --page: #14171a; --quiet: #22272c;
  --cluster: #27476e; --decision: #434a52; --mode: #4d3a70; --phase: #1f5a51; --order: #75491a; --wait: #333a41;
  --manager: #6e2c46; --trains: #276b38; --stands: #574a12; --bad: #ff7b72; --good: #6fdd8b; } }
@media print { :root { color-scheme: light; --text: #000; --soft: #444; --line: #bbb; --page: #fff; --quiet: #eee;
  --cluster: #bcd4f2; --decision: #d3d7dc; --mode: #d9c8f0; --phase: #b9e0d9; --order: #f8d3a8; --wait: #e6e8eb;
  --manager: #f5c3d5; --trains: #8fd19e; --stands: #fff3c4; --bad: #b00; --good: #060; } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 1.5rem auto; padding: 0 1rem; color: var(--text);
  background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } p { margin: .2rem 0; } .soft { color: var(--soft); }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2.4rem; margin: 1rem 0; } dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.good { color: var(--good); } .bad { color: var(--bad); }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; } svg text { fill: var(--text); }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); } svg .quiet { fill: var(--quiet); }
svg .failed { stroke: var(--bad); stroke-width: 1.5; } svg .running { stroke: var(--text); stroke-dasharray: 3 2; }
table { border-collapse: collapse; width: 100%; margin-top: 1rem; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .15rem .7rem .15rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: normal; } td.n, th.n { text-align: right; white-space: nowrap; }
td.n { font-variant-numeric: tabular-nums; } td:nth-child(4) { white-space: nowrap; }
@page { size: A4 landscape; margin: 12mm; }
@media print { body { margin: 0; max-width: none; font-size: 9.5pt; } * { print-color-adjust: exact; }
  tr, svg { break-inside: avoid; } thead { display: table-header-group; } }
"""


def page(picture: Picture) -> str:
    """Returns the page."""
    listed = entries(picture)
    missing = "".join(f'<p class="soft">{escape(one)}</p>' for one in picture.missing)
    body = (_head(picture), _Chart(picture, listed).svg(), missing, _table(picture, listed))
    return document(f"Incident {picture.number} of {picture.job}", STYLE, "".join(body))


def _head(picture: Picture) -> str:
    began = datetime.fromtimestamp(picture.began, UTC)
    facts = [("incident", f"{picture.seconds:.3f} s")]
    if pause := picture.pause:
        facts.append(("training stood", f"{milliseconds(pause.seconds)} ms"))
        if pause.again:
            facts.append(("did steps again for", f"{milliseconds(pause.again)} ms"))
        facts.append((f"price, on {pause.ranks} ranks", f"{pause.accelerator_seconds:.3f} accelerator seconds"))
    if picture.steps_lost is not None:
        facts.append(("steps done again", str(picture.steps_lost)))
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    outcome = f"<span class={'good' if picture.outcome is Outcome.RECOVERED else 'bad'}>{picture.outcome or 'is running'}</span>"
    title = f"<h1>Incident {picture.number} of <bdi>{escape(picture.job)}</bdi>: {outcome}</h1><p>{escape(picture.summary)}</p>"
    source = f"; the time in which training stood is that of {escape(picture.pause.source)}" if picture.pause else ""
    return f'{title}<p class="soft">0 ms is {began:%Y-%m-%d %H:%M:%S.%f} UTC{source}</p><dl>{shown}</dl>'


class _Chart:
    def __init__(self, picture: Picture, listed: list[Entry]) -> None:
        self._picture, self._marks, self._axis = picture, marks_of(listed), Axis(picture)
        self._texts = {item: entry.text for entry in listed for item in entry.items}

    def svg(self) -> str:
        drawn, top, part = [], TOP, Part.CLUSTER
        for lane in self._picture.lanes:
            if lane.part is Part.CONTROL and part is not Part.CONTROL:
                drawn.append(f'<text class="soft" x="0" y="{top + 10}">{Part.CONTROL}</text>')
                top += ROW - 5
            part = lane.part
            rows = [list(lane.items)] if lane.part is Part.RANKS else self._rows(lane)
            drawn.append(self._lane(lane, rows, top))
            top += len(rows) * ROW + 6
        grid = "".join(map(self._quiet, self._axis.shortened)) + self._ticks(top)
        title = f"<title>Lanes of incident {self._picture.number}</title>"
        return f'<svg viewBox="0 0 {WIDTH} {top}" role="img">{title}{grid.replace("BOTTOM", str(top))}{"".join(drawn)}</svg>'

    def _at(self, time: float) -> float:
        return NAMES + EDGE + self._axis.place(time) * (WIDTH - NAMES - 2 * EDGE)

    def _quiet(self, one: Segment) -> str:
        begins, ends = self._at(one.since), self._at(one.until)
        words = (
            f'<text class="soft" x="{(begins + ends) / 2:.1f}" y="12" text-anchor="middle">{one.until - one.since:.1f} s</text>'
        )
        place = f'x="{begins:.1f}" width="{ends - begins:.1f}" y="16" height="BOTTOM"'
        return f'{words}<rect class="quiet" {place}><title>shortened</title></rect>'

    def _ticks(self, bottom: int) -> str:
        drawn, free = [], 0.0
        for tick in self._axis.ticks((WIDTH - NAMES) // APART):
            x = NAMES + EDGE + tick.place * (WIDTH - NAMES - 2 * EDGE)
            drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}"/>')
            words = f"{milliseconds(tick.seconds)} ms"
            half = len(words) * CHARACTER / 2
            middle = min(x, WIDTH - half)
            if middle - half >= free:
                drawn.append(f'<text class="soft" x="{middle:.1f}" y="{TOP - 10}" text-anchor="middle">{words}</text>')
                free = middle + half + SPACE
        return "".join(drawn)

    def _rows(self, lane: Lane) -> list[list[Item]]:
        rows: list[list[Item]] = []
        ends: list[float] = []
        for item in lane.items:
            begins = self._at(item.since)
            row = next((number for number, end in enumerate(ends) if end <= begins), len(rows))
            if row == len(rows):
                rows.append([])
                ends.append(0.0)
            rows[row].append(item)
            ends[row] = max(self._at(item.until), begins + LETTER)
        return rows

    def _lane(self, lane: Lane, rows: Sequence[Sequence[Item]], top: int) -> str:
        title, left = f"<title>{escape(lane.name)}</title>", 10 if lane.part is Part.CONTROL else 0
        name = f'<text class="soft" x="{left}" y="{top + 13}">{escape(_short(lane.name))}{title}</text>'
        trains = ""
        if lane.part is Part.RANKS:
            place = f'x="{NAMES}" width="{WIDTH - NAMES}" y="{top}" height="{ROW - 3}"'
            trains = f'<rect {place} rx="2" fill="var(--trains)"><title>trains</title></rect>'
        bars = [self._bar(lane, item, top + number * ROW) for number, row in enumerate(rows) for item in row]
        return f"{name}{trains}{''.join(bars)}"

    def _bar(self, lane: Lane, item: Item, top: int) -> str:
        begins, width = self._at(item.since), max(self._at(item.until) - self._at(item.since), 2.0)
        colour = "stands" if lane.part is Part.RANKS else "cluster" if lane.part is Part.CLUSTER else lane.name
        state = " failed" if item.failed else " running" if item.running else ""
        place = f'x="{begins:.1f}" width="{width:.1f}" y="{top}" height="{ROW - 3}"'
        title = f"<title>{escape(self._texts[item])}</title>"
        room = int((width - LETTER) / CHARACTER)
        text = _fitting(self._texts[item], room)
        words = f"{self._marks[lane.name, item]} {escape(text)}"
        bar = f'<rect class="item{state}" {place} rx="2" fill="var(--{colour})">{title}</rect>'
        return f'{bar}<text x="{begins + 4:.1f}" y="{top + 12}">{words}</text>'


def _table(picture: Picture, listed: Iterable[Entry]) -> str:
    rows = []
    for entry in listed:
        lasted = milliseconds(entry.seconds) if entry.seconds else ""
        cells = (entry.mark, milliseconds(entry.first.since - picture.began), lasted, entry.who, entry.text)
        numbers = "".join(
            f"<td{' class=n' if column in (1, 2) else ''}>{escape(cell)}</td>" for column, cell in enumerate(cells[:-1])
        )
        rows.append(f"<tr>{numbers}<td{' class=bad' if entry.first.failed else ''}>{escape(cells[-1])}</td></tr>")
    head = "<tr><th></th><th class=n>at ms</th><th class=n>for ms</th><th>lane</th><th>what</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _fitting(text: str, room: int) -> str:
    """Returns the part of a text that fits into so many characters; empty if that is too little. Wide ones count twice."""
    if cell_len(text) <= room:
        return text
    return f"{set_cell_size(text, room - 1).rstrip()}…" if room > LETTER else ""


def _short(name: str) -> str:
    return name if len(name) <= LETTER + 3 else f"{name[: LETTER + 2]}…"
