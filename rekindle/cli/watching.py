"""Repeats an output until Ctrl-C."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from cyclopts import Parameter

from rekindle.cli.terminal import console

EVERY = 2.0
"""Seconds between two looks."""

Watch = Annotated[bool, Parameter(name=["--watch", "-w"], negative="", help="Look again every two seconds, until Ctrl-C.")]


async def repeated(show: Callable[[], Awaitable[None]], *, watch: bool) -> None:
    """Calls `show`, repeatedly with `watch`. On a terminal each output replaces the previous one; otherwise it follows it."""
    await show()
    while watch:
        await asyncio.sleep(EVERY)
        if console.is_terminal:
            console.clear()
        await show()
