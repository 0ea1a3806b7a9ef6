"""`rekindle dev` talks to what it started itself: what somebody else runs on its ports or in its directory is left alone."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.cli.stack import Addresses, Member, Stack, free_ports, temporal_command
from rekindle.errors import Unavailable

REKINDLE = str(Path(sys.executable).parent / "rekindle")


async def dev(directory: Path, *changed: str, **environment: str) -> asyncio.subprocess.Process:
    """`rekindle dev` on any free ports, but for those that are given."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("TEMPORAL_", "REKINDLE_"))}
    ports = [f"--{name}-port=0" for name in ("temporal", "ui", "gateway") if f"--{name}-port" not in changed]
    return await asyncio.create_subprocess_exec(
        *(REKINDLE, "dev", *ports, *changed),
        cwd=directory,
        env={**plain, **environment, "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("name", ["temporal", "ui", "gateway"])
async def test_a_port_that_a_foreign_server_has_is_refused(temporal: WorkflowEnvironment, tmp_path: Path, name: str) -> None:
    """A Temporal server of somebody else is never adopted: the port, its process and the option are named, and nothing starts."""
    port = temporal.client.service_client.config.target_host.rsplit(":", 1)[1]
    refused = await dev(tmp_path, f"--{name}-port", port)
    output, errors = await refused.communicate()
    words = errors.decode()
    assert refused.returncode == 4, words
    for part in (f"port {port}", "temporal", f"--{name}-port"):
        assert part in words
    assert b"running" not in output
    assert not (tmp_path / ".rekindle" / "temporal.db").exists()


async def test_a_server_counts_as_ready_only_when_it_listens_itself(temporal: WorkflowEnvironment, tmp_path: Path) -> None:
    """A port that is taken between the look at it and the start of the server is not mistaken for the server's own."""
    foreign = temporal.client.service_client.config.target_host
    (ui,) = free_ports(1)
    addresses = Addresses(
        temporal=foreign, ui=f"http://127.0.0.1:{ui}", gateway="127.0.0.1:1", socket="", state_dir=str(tmp_path)
    )
    command = temporal_command(addresses, tmp_path / "temporal.db")
    stack = Stack(addresses, print)
    with pytest.raises(Unavailable, match="temporal ended with code"):
        await stack.start(Member("temporal", command, dict(os.environ), tmp_path / "log", answers_at=foreign))
    await stack.stop()


async def test_a_state_directory_has_one_stack(tmp_path: Path) -> None:
    """A second `rekindle dev` in the same directory is refused and leaves the first one's details; another installation that the
    environment names is not asked by any process of the stack."""
    first = await dev(tmp_path, TEMPORAL_NAMESPACE="elsewhere", TEMPORAL_API_KEY="secret")
    assert first.stdout is not None
    try:
        assert b"rekindle is running" in await first.stdout.readline()
        second = await dev(tmp_path)
        _, errors = await second.communicate()
        assert second.returncode == 4, errors.decode()
        assert "--state-dir" in errors.decode()
        assert (tmp_path / ".rekindle" / "dev.json").exists()
    finally:
        first.send_signal(signal.SIGINT)
        await first.communicate()
    assert first.returncode == 0
