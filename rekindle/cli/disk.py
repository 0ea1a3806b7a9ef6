"""Checks whether the state directory of `rekindle dev` can be written. If not, Temporal stores nothing, and recoveries wait."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

LOOK = 5.0
"""Seconds between two checks."""

PROBE = 64 * 1024
"""Bytes that each check writes and removes again."""

LOW = 256 * 1024 * 1024
"""Bytes of free space below which a warning is given."""


def problem(directory: Path) -> str:
    """Returns why nothing can be stored there, or soon cannot; empty: it can."""
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(PROBE))
            probe.flush()
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return f"{directory} cannot be written ({error.strerror}): nothing is stored until it can, and recoveries wait"
    return f"the disk of {directory} is almost full: less than {LOW // 1024**2} MiB are free" if free < LOW else ""


@asynccontextmanager
async def watched(directory: Path, warn: Callable[[str], None], look: float = LOOK) -> AsyncIterator[None]:
    """Warns each time that the result of the check changes, until the block ends."""
    watch = asyncio.create_task(_watch(directory, warn, look))
    try:
        yield
    finally:
        watch.cancel()


async def _watch(directory: Path, warn: Callable[[str], None], look: float) -> None:
    said = ""
    while True:
        now = await asyncio.to_thread(problem, directory)
        if now != said:
            warn(now or f"{directory} can be written again")
        said = now
        await asyncio.sleep(look)
