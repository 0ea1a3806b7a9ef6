"""Command `rekindle report`: goodput of jobs, and what faults cost."""

import asyncio
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from rekindle.cli import report_page
from rekindle.cli.context import control_plane
from rekindle.cli.output import print_columns, print_json, when
from rekindle.cli.terminal import console, problems
from rekindle.client import Accounted, JobRow, Rekindle
from rekindle.errors import BadInput, NotFound, RekindleError, Unavailable
from rekindle.policy.account import summary
from rekindle.policy.account.summary import Cost, Incidents, Summary, Times

AT_ONCE = 20
"""Number of jobs that are queried at the same time."""

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
TIMES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])")

HIGHEST = 1e9
"""Highest price."""

BAR = 20
"""Width of the longest bar in characters."""


class Shape(StrEnum):
    """Value of `--output`."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


async def report(
    job: str | None = None,
    /,
    *,
    since: Annotated[str | None, Parameter(help="Only this time before now, such as 7d, 12h or 30m.")] = None,
    price: Annotated[float | None, Parameter(help="Price of one accelerator for an hour, in any currency.")] = None,
    output: Annotated[
        Shape, Parameter(name=["--output", "-o"], help="text for people, json for machines, html: a page.")
    ] = Shape.TEXT,
) -> None:
    """Report what the time of JOB (name or id) was spent on, and what faults have cost; without JOB, of all jobs.

    Jobs that have ended are included as long as Temporal keeps their last run.

    Example: rekindle report gpt --since 7d --output html > report.html
    """
    if price is not None and not 0 <= price <= HIGHEST:
        raise BadInput(f"--price: {price} is not accepted: a number from 0 to {HIGHEST:.0f}")
    now = datetime.now(UTC).timestamp()
    begins = 0.0 if since is None else max(now - _seconds(since), 0.0)
    rekindle = await control_plane()
    accounts = [await rekindle.account(job)] if job is not None else await _of_all_jobs(rekindle, begins)
    found = [summary.of_job(one.name, one.id, one.account, since=begins, price=price) for one in accounts]
    if job is not None and found[0].until < begins:
        raise BadInput(f"--since: {since} is not accepted: {found[0].name} has ended before that, at {_at(found[0].until)}")
    if job is None:
        whole = summary.of_all([(one.name, one.account) for one in accounts], since=begins, price=price)
        found = [whole, *found]
    _print(found, output)


def _seconds(text: str) -> float:
    """Returns the seconds that a text such as `7d` or `1h30m` says."""
    parts = TIMES.findall(text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not seconds or "".join(map("".join, parts)) != text:
        raise BadInput(f"--since: {text!r} is not accepted: a time before now, such as 7d, 12h or 30m")
    return seconds


async def _of_all_jobs(rekindle: Rekindle, begins: float) -> list[Accounted]:
    """Returns the accounts of all jobs that lived in this time. Jobs that do not answer are named on stderr.

    Raises:
        NotFound: there is none. Unavailable: none of them has answered.
    """
    rows = [row for row in await rekindle.jobs(ended=True) if row.until is None or row.until.timestamp() > begins]
    turn = asyncio.Semaphore(AT_ONCE)

    async def ask(row: JobRow) -> Accounted | RekindleError:
        async with turn:
            try:
                return await rekindle.account(row.id, row.run)
            except RekindleError as error:
                return error

    if not rows:
        raise NotFound("no job has lived in this time, also none that has ended and is still kept: rekindle jobs --all")
    answers = await asyncio.gather(*map(ask, rows))
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, RekindleError):
            problems.print(Text(f"{row.name} ({row.id}) is not counted: {answer}"), soft_wrap=True)
    counted = [answer for answer in answers if not isinstance(answer, RekindleError)]
    if not counted:
        raise Unavailable("no job has answered, so that there is nothing to report")
    return counted


def _print(found: Sequence[Summary], output: Shape) -> None:
    match output:
        case Shape.JSON:
            print_json([one.model_dump(mode="json") for one in found])
        case Shape.HTML:
            sys.stdout.write(report_page.page(found))
        case Shape.TEXT:
            _show(found[0])
            if len(found) > 1:
                _show_jobs(found[1:])


def _show(one: Summary) -> None:
    between = f"{_at(one.since)} to {_at(one.until)}"
    _line(f"{one.name}: goodput {one.goodput:.2%}", style="bold")
    _line(f"{between}, {one.accelerator_hours:.2f} accelerator hours on {one.ranks} accelerators")
    if one.lost_price is not None:
        _line(f"price of the time that was not training: {one.lost_price:.2f}")
    if one.complete_since is not None:
        _line(f"incidents are known one by one since {_at(one.complete_since)}")
    console.print()
    most = max((share.percent for share in one.buckets), default=0.0)
    shares = [
        (
            share.bucket.value,
            f"{share.seconds:.3f} s",
            f"{share.percent:.2f}%",
            "#" * round(BAR * share.percent / most if most else 0),
        )
        for share in one.buckets
    ]
    print_columns(("time", "seconds", "share", ""), shares)
    console.print()
    _show_incidents(one)


def _at(seconds: float) -> str:
    return when(datetime.fromtimestamp(seconds, UTC))


def _show_incidents(one: Summary) -> None:
    incidents = one.incidents
    mean = "-" if incidents.seconds_between_faults is None else f"{incidents.seconds_between_faults:.1f} s"
    _line(f"incidents: {incidents.count}, restarts: {incidents.restarts}, mean time between faults: {mean}")
    _line(f"time to recovery: {_times(incidents.recovery)}")
    if incidents.recovery != incidents.recovery_without_people:
        _line(f"  without waiting for people: {_times(incidents.recovery_without_people)}")
    if (alone := one.restarts_alone) is not None:
        how = f"the median of {alone.measured}" if alone.measured else "its start-up, as it had none"
        _line(f"with restarts alone goodput would be {alone.goodput:.2%}: a restart costs {alone.seconds_of_one:.1f} s, {how}")
    for what, costs in by(incidents):
        if costs:
            console.print()
            print_columns((what, "incidents", "seconds lost"), [_cells(cost) for cost in costs])


def by(incidents: Incidents) -> Sequence[tuple[str, Sequence[Cost]]]:
    """Returns the costs of incidents, by what they have in common."""
    return (
        ("by cause", incidents.by_cause),
        ("by mode", incidents.by_mode),
        ("by node", incidents.by_node),
        ("by fault code", incidents.by_code),
    )


def _show_jobs(jobs: Sequence[Summary]) -> None:
    console.print()
    rows = [
        (
            one.name,
            one.id,
            f"{one.goodput:.2%}",
            f"{one.accelerator_hours:.2f}",
            str(one.incidents.count),
            str(one.incidents.restarts),
        )
        for one in jobs
    ]
    print_columns(("job", "id", "goodput", "accelerator hours", "incidents", "restarts"), rows)


def _cells(cost: Cost) -> tuple[str, ...]:
    return cost.name, str(cost.incidents), f"{cost.seconds:.3f}"


def _times(times: Times | None) -> str:
    if times is None:
        return "-"
    return f"median {times.median:.3f} s, p95 {times.p95:.3f} s, worst {times.worst:.3f} s, of {times.count}"


def _line(text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
