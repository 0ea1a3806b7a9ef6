"""The trial's Temporal, started by the command of its container."""

import asyncio
import re
from pathlib import Path

import pytest
from temporalio.client import Client

from simulators.local_cluster.environment import LOOPBACK, free_port
from tests.kubernetes.world.manifests import container, named
from tests.support.charts import given, objects
from tests.support.temporal import BINARY

pytestmark = pytest.mark.timeout(180)


async def connected(address: str) -> Client:
    while True:
        try:
            return await Client.connect(address)
        except RuntimeError:
            await asyncio.sleep(0.1)  # it starts


async def test_the_command_of_the_trial_starts_a_temporal(tmp_path: Path) -> None:
    """The real server accepts each of its flags, has the namespace of the values, and keeps its database in the volume."""
    trial = named(
        objects(given(temporal={"trial": {"enabled": True, "image": "temporal:1"}})), "StatefulSet", "rekindle-temporal"
    )
    _, *arguments = container(trial)["command"]
    port = free_port(())
    here = {
        "--ip=0.0.0.0": f"--ip={LOOPBACK}",
        "--port=7233": f"--port={port}",
        "--ui-port=8233": f"--ui-port={free_port((port,))}",
    }
    arguments = [re.sub("=/data/", f"={tmp_path}/", here.get(one, one)) for one in arguments]
    with (tmp_path / "log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(BINARY, *arguments, stdout=log, stderr=log)
        try:
            client = await connected(f"{LOOPBACK}:{port}")
            assert [one async for one in client.list_workflows()] == []
        finally:
            server.terminate()
            await server.wait()
    assert (tmp_path / "temporal.db").stat().st_size > 0
