"""HTTP servers of tests on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

ROUNDS_TO_ACCEPT = 10
"""Rounds of the event loop in which every connection of clients that have left is accepted. Three are enough."""


@asynccontextmanager
async def served(application: web.Application) -> AsyncIterator[str]:
    """Serves an application on a free port, and yields its address. The clients leave first."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        # Python 3.11 leaks a connection that was accepted, and not set up, when its server closes (CPython issue 109564).
        for _ in range(ROUNDS_TO_ACCEPT):
            await asyncio.sleep(0)
        await runner.cleanup()
