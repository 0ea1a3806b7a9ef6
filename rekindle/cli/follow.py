"""Shows the phases of a requested recovery while it runs, until there is a verdict."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text
from temporalio.client import WorkflowHandle

from rekindle.cli.terminal import console, problems
from rekindle.client import Rekindle
from rekindle.errors import RekindleError
from rekindle.model.job import Job
from rekindle.model.verdict import Verdict

LOOK = 0.3
"""Seconds between two looks at the recovery's page."""

PHASE = re.compile(r"^- \[(?P<mark>.)\] (?P<words>.*)$", re.MULTILINE)
MARKS = {"x": "✓", "!": "!", " ": "…"}

Show = Callable[[list[str]], None]


async def follow(rekindle: Rekindle, handle: WorkflowHandle[object, Verdict], job: Job, title: str, other: str) -> Verdict:
    """Waits for the verdict. If this is cancelled, the request itself continues.

    Args:
        other: workflow id of the recovery that ran before; its phases are not those of the request.
    """
    waiting = asyncio.create_task(rekindle.verdict(handle))
    try:
        with _shown(title) as show:
            while not waiting.done():
                show(await _phases(rekindle, job, other))
                await asyncio.wait({waiting}, timeout=LOOK)
        return await waiting
    finally:
        waiting.cancel()


async def _phases(rekindle: Rekindle, job: Job, other: str) -> list[str]:
    """Returns the phases of the running recovery; none between two recoveries, or without an answer."""
    try:
        recovery = await rekindle.running(job)
        page = await rekindle.details(recovery.workflow_id) if recovery else ""
    except RekindleError:
        return []
    if recovery and recovery.workflow_id == other:
        return []
    return phases(recovery.mode if recovery else "", page)


def phases(mode: str, page: str) -> list[str]:
    """Returns a line for each phase on the page of a recovery, with its mark."""
    return [f"{MARKS.get(line['mark'], '?')} {mode}: {line['words'].replace('**', '')}" for line in PHASE.finditer(page)]


@contextmanager
def _shown(title: str) -> Iterator[Show]:
    """Yields a function that shows the phases.

    On a terminal it updates a list, which the post-mortem replaces. Otherwise it writes a line when a phase begins and one when
    it has ended.
    """
    if console.is_terminal:
        with Live(Spinner("dots", title), console=console, transient=True) as live:
            yield lambda lines: live.update(Group(Spinner("dots", title), *(Text(f"  {line}") for line in lines)))
        return
    said: set[str] = set()

    def say(lines: list[str]) -> None:
        for line in lines:
            if line not in said:
                said.add(line)
                problems.print(Text(line), soft_wrap=True)

    yield say
