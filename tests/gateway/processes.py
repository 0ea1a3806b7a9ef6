"""One process of the control plane, started as its image starts it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.support.cluster import environment

START_LIMIT = 60.0


async def probe(port: int, path: str) -> tuple[int, str]:
    """Returns status and text as soon as the port accepts connections."""
    async with asyncio.timeout(START_LIMIT), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                    return answer.status, (await answer.text()).strip()
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def started(name: str, directory: Path, **variables: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """One process of the control plane, with an instance name and a state directory of its own."""
    own = {"REKINDLE_STATE_DIR": str(directory), "REKINDLE_GATEWAY_PORT": "0", "REKINDLE_GATEWAY_INSTANCE": directory.name}
    env = {**environment(), **own, **{key: str(value) for key, value in variables.items()}}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", f"workers.{name}"), env=env, stdout=pipe, stderr=pipe
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def says_ready(process: asyncio.subprocess.Process) -> str:
    """Returns the text that the process prints after `ready`."""
    assert process.stdout
    async with asyncio.timeout(START_LIMIT):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("ready "), line
    return line.removeprefix("ready ").strip()
