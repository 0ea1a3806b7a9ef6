"""Heartbeats for activities whose worker may die. Without them the death would be noticed only after the start-to-close time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

PERIOD = 0.5
"""Seconds between heartbeats; the heartbeat time-outs of `workflows/steps.py` are several times as long."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Sends heartbeats for as long as the block runs."""
    task = asyncio.create_task(_beat())
    try:
        yield
    finally:
        task.cancel()


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(PERIOD)
