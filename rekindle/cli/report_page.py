"""Page of `rekindle report --output html`: one file with its charts inside, without scripts, for screen and paper."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from rekindle.cli.terminal import ORDERS
from rekindle.model.account import Bucket
from rekindle.policy.account.summary import Cost, Share, Summary, Times

COLOURS = {
    Bucket.TRAINING: "#2e7d32",
    Bucket.START_UP: "#9e9e9e",
    Bucket.LOADING: "#6d4c41",
    Bucket.CHECKPOINT: "#1565c0",
    Bucket.AGAIN: "#8e24aa",
    Bucket.MISSING: "#7c8a00",
    Bucket.DETECTION: "#f9a825",
    Bucket.DECISION: "#ef6c00",
    Bucket.PODS: "#c62828",
    Bucket.REBUILDING: "#00838f",
    Bucket.PERSON: "#ad1457",
    Bucket.NOT_RECOVERED: "#4e0000",
    Bucket.UNKNOWN: "#37474f",
}

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
.goodput { font-size: 2.4rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; }
th { border-bottom: 1px solid #8886; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { display: block; width: 100%; height: 2rem; margin: .8rem 0; } .key { display: inline-block; width: .8rem; height: .8rem; }
section { break-inside: avoid; } .small { color: #888; font-size: .85rem; }
@media print { body { margin: 0; max-width: none; font-size: 11pt; } * { print-color-adjust: exact; } }
"""


def page(found: Sequence[Summary]) -> str:
    """Returns the page for these summaries: the first one in full, then the others."""
    first, *jobs = found
    parts = [_head(first), _whole(first)]
    if jobs:
        cells = [
            (one.name, one.id, f"{one.goodput:.2%}", f"{one.accelerator_hours:.2f}", str(one.incidents.count)) for one in jobs
        ]
        parts += ["<h2>Jobs</h2>", _table(("job", "id", "goodput", "accelerator hours", "incidents"), cells, numbers=3)]
        parts += [f"<section><h2>{escape(one.name)}</h2>{_whole(one)}</section>" for one in jobs]
    return document(f"Goodput of {first.name}", STYLE, "".join(parts))


def document(title: str, style: str, body: str) -> str:
    """Returns a page of one file. It is ASCII, whatever the encoding of standard output.

    Args:
        style: CSS.
        body: HTML, with all texts escaped.
    """
    view = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"{view}<title>{escape(title)}</title><style>{style}</style>"
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
    return page.translate(ORDERS).encode("ascii", "xmlcharrefreplace").decode()


def _head(one: Summary) -> str:
    return f"<h1>Goodput of {escape(one.name)}</h1>"


def _whole(one: Summary) -> str:
    incidents = one.incidents
    facts = [
        f"{_time(one.since)} to {_time(one.until)}",
        f"{one.accelerator_hours:.2f} accelerator hours on {one.ranks} accelerators",
        f"incidents: {incidents.count}, restarts: {incidents.restarts}",
    ]
    if incidents.seconds_between_faults is not None:
        facts.append(f"mean time between faults: {incidents.seconds_between_faults:.1f} s")
    if one.lost_price is not None:
        facts.append(f"price of the time that was not training: {one.lost_price:.2f}")
    if one.complete_since is not None:
        facts.append(f"incidents are known one by one since {_time(one.complete_since)}")
    parts = [f'<p class="goodput">{one.goodput:.2%}</p><p>{"<br>".join(facts)}</p>', _bar(one.buckets), _legend(one.buckets)]
    parts += [_recovery(one), *_costs(one)]
    return "".join(parts)


def _bar(shares: Iterable[Share]) -> str:
    """Returns the chart of the whole time."""
    begins, parts = 0.0, []
    for share in shares:
        title = f"<title>{escape(share.bucket)}: {share.percent:.2f}%</title>"
        place = f'x="{begins:.4f}" width="{share.percent:.4f}" y="0" height="1"'
        parts.append(f'<rect {place} fill="{COLOURS[share.bucket]}">{title}</rect>')
        begins += share.percent
    return f'<svg viewBox="0 0 100 1" preserveAspectRatio="none" role="img">{"".join(parts)}</svg>'


def _legend(shares: Iterable[Share]) -> str:
    rows = "".join(
        f'<tr><td><span class="key" style="background:{COLOURS[share.bucket]}"></span> {escape(share.bucket)}</td>'
        f'<td class="n">{share.seconds:.3f} s</td><td class="n">{share.percent:.2f}%</td></tr>'
        for share in shares
    )
    return f"<table>{rows}</table>"


def _recovery(one: Summary) -> str:
    rows = [("whole", one.incidents.recovery), ("without waiting for people", one.incidents.recovery_without_people)]
    cells = [(name, *_figures(times)) for name, times in rows if times]
    table = _table(("time to recovery", "median", "p95", "worst", "recovered"), cells, numbers=4) if cells else ""
    if (alone := one.restarts_alone) is None:
        return table
    how = f"the median of {alone.measured}" if alone.measured else "its start-up, as it had none"
    words = f"With restarts alone goodput would be {alone.goodput:.2%}. A restart costs {alone.seconds_of_one:.1f} s: {how}."
    return f"{table}<p>{words}</p>"


def _figures(times: Times) -> tuple[str, ...]:
    return f"{times.median:.3f} s", f"{times.p95:.3f} s", f"{times.worst:.3f} s", str(times.count)


def _costs(one: Summary) -> Iterable[str]:
    incidents = one.incidents
    lists = (
        ("cause", incidents.by_cause),
        ("mode", incidents.by_mode),
        ("node", incidents.by_node),
        ("fault code", incidents.by_code),
    )
    for what, costs in lists:
        if costs:
            table = _table((what, "incidents", "seconds lost"), map(_cells, costs), numbers=2)
            yield f"<section><h3>By {what}</h3>{table}</section>"


def _cells(cost: Cost) -> tuple[str, ...]:
    return cost.name, str(cost.incidents), f"{cost.seconds:.3f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> str:
    """Returns a table of which the last columns are numbers."""

    def row(tag: str, cells: Sequence[str]) -> str:
        first = len(cells) - numbers
        return "".join(
            f"<{tag}{' class=n' if column >= first else ''}>{escape(cell)}</{tag}>" for column, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    return f"<table><tr>{row('th', header)}</tr>{body}</table>"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
