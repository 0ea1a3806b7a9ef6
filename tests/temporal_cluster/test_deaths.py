"""Recoveries on a real Temporal service over PostgreSQL: each of its processes dies in the middle of one."""

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rekindle.cli.stack import Stack
from simulators.kubernetes.binaries import built
from simulators.temporal_cluster.__main__ import MODULE, PROGRAMS, cluster
from simulators.temporal_cluster.configuration import SERVICES

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]

BEGINS = {"hot-switch": "turns sub-healthy", "process-rescheduling": "the pod of rank"}
"""Part of the line by which each demonstration says that the fault is there."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Stack]:
    """Starts the service. PostgreSQL's user must be able to enter its directory, which those of pytest do not allow."""
    with tempfile.TemporaryDirectory(prefix="rk-temporal-") as scratch:
        directory = Path(scratch)
        directory.chmod(0o755)
        (directory / "logs").mkdir()
        binaries = await asyncio.to_thread(built, PROGRAMS, MODULE, print)
        async with cluster(directory, binaries) as stack:
            yield stack


async def demo(service: Stack, *arguments: str) -> Process:
    command = ["-P", "-m", "rekindle", "demo", *arguments, "--output=json", f"--temporal={service.addresses.temporal}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=PIPE, env=environment)


async def until_it_begins(process: Process, name: str) -> None:
    """Reads the progress until the fault is there."""
    assert process.stderr
    while line := (await process.stderr.readline()).decode():
        if BEGINS[name] in line:
            return
    raise AssertionError("the demonstration ended before its fault")


async def result(process: Process) -> dict[str, Any]:
    output, errors = await process.communicate()
    assert process.returncode == 0, (output + errors).decode()
    found: dict[str, Any] = json.loads(output.decode().splitlines()[-1])
    return found


@pytest.mark.parametrize("victim", ["", *SERVICES, "postgres"])
async def test_a_hot_switch_outlives_the_death_of_each_process(service: Stack, victim: str) -> None:
    """The pod moves, no step is lost, and the parameters are those of an undisturbed run."""
    process = await demo(service, "hot-switch")
    await until_it_begins(process, "hot-switch")
    if victim:
        died = service.members[victim].process
        assert died
        died.kill()
    found = await result(process)
    assert (found["verdict"], found["parameters_equal"]) == ("recovered", True)


@pytest.mark.parametrize("victim", ["history", "postgres"])
async def test_a_restart_outlives_the_death_of_each_process(service: Stack, victim: str) -> None:
    """A mode with many steps goes on where it was."""
    process = await demo(service, "process-rescheduling")
    await until_it_begins(process, "process-rescheduling")
    died = service.members[victim].process
    assert died
    died.kill()
    found = await result(process)
    assert (found["verdict"], found["parameters_equal"]) == ("recovered", True)
