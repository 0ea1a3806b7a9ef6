"""A process that starts the processes of a stack may be killed as well."""

import asyncio
import os
import sys

import pytest

from rekindle.cli.stack import dying_with_parent

CHILD = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
STARTER = f"""
import subprocess, sys
from rekindle.cli.stack import dying_with_parent
subprocess.run(dying_with_parent([sys.executable, "-c", {CHILD!r}]))
"""

pytestmark = pytest.mark.kills


async def test_a_process_of_the_stack_does_not_outlive_its_killed_starter() -> None:
    """SIGKILL to the starter ends the processes that it started."""
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", STARTER, stdout=asyncio.subprocess.PIPE)
    assert starter.stdout is not None
    child = os.pidfd_open(int(await starter.stdout.readline()))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(child, ended.set)
    starter.kill()
    await starter.wait()
    try:
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        asyncio.get_running_loop().remove_reader(child)
        os.close(child)


async def test_a_process_whose_starter_is_gone_already_does_not_begin() -> None:
    """A process whose starter died before the request to die with it does not run."""
    command = dying_with_parent([sys.executable, "-c", "print('runs')"])
    command[command.index(str(os.getpid()))] = "1"
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert (process.returncode, output) == (1, b"")
