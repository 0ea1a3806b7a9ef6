"""Answers of a process to probes, and the end of a process that cannot start."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import aiohttp
import pytest
import yaml
from temporalio.testing import WorkflowEnvironment

from rekindle.cli.ports import free_ports
from rekindle.errors import Unavailable
from rekindle.settings import Settings
from tests.gateway.processes import START_LIMIT, probe, says_ready, started
from workers import connections, exposition
from workers.process import Process


async def test_a_process_is_ready_from_its_word_on_until_it_is_told_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    """Readiness is 503 with the reason before it, after it, and while the check of the process fails. Liveness is 200 also
    then."""
    (port,) = free_ports(1)
    problem = ""

    async def check() -> str:
        return problem

    async with Process(Settings(health_port=port)) as process:
        assert await probe(port, "readyz") == (503, "it starts")
        process.ready("test", check)
        assert capsys.readouterr().out == "ready test\n"
        assert await probe(port, "readyz") == (200, "ok")
        problem = "the world is away"
        assert await probe(port, "readyz") == (503, "the world is away")
        os.kill(os.getpid(), signal.SIGTERM)
        await process.stop.wait()
        assert await probe(port, "readyz") == (503, "it was told to stop")
        assert await probe(port, "healthz") == (200, "ok")


async def test_probes_are_answered_on_the_family_of_the_pods_address() -> None:
    """A pod that has an IPv6 address only is asked there."""
    (port,) = free_ports(1)
    async with (
        Process(Settings(POD_IP="fd00::7", health_port=port)),
        aiohttp.ClientSession() as session,
        session.get(f"http://[::1]:{port}/healthz") as answer,
    ):
        assert answer.status == 200


async def test_probes_are_answered_on_the_address_that_is_set() -> None:
    """Metrics with the names of jobs are no matter of a laptop's network."""
    (port,) = free_ports(1)
    process, session = Process(Settings(health_host="127.0.0.2", health_port=port), has_temporal=False), aiohttp.ClientSession()
    async with process, session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.1:{port}/healthz")
        async with session.get(f"http://127.0.0.2:{port}/healthz") as answer:
            assert answer.status == 200


async def test_callers_that_send_nothing_keep_no_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest connection without a request ends for a new one."""
    (port,) = free_ports(1)
    monkeypatch.setattr(connections, "MOST", 2)
    async with Process(Settings(health_port=port), has_temporal=False):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert await probe(port, "healthz") == (200, "ok")
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()


async def test_metrics_of_ours_are_exposed_without_those_of_the_sdk() -> None:
    """The SDK's own port may be gone, or answer with garbage."""
    (port,) = free_ports(1)
    async with Process(Settings(health_port=port), has_temporal=False) as process:
        assert process._exposition is not None
        process._exposition._sdk = f"http://127.0.0.1:{free_ports(1)[0]}/metrics"
        status, text = await probe(port, "metrics")
    assert status == 200
    assert "rekindle_build_info" in text


async def test_a_port_that_is_taken_meanwhile_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK listens on a port of its own, which is chosen before it does. Another one is chosen then."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], *free_ports(1)])
        monkeypatch.setattr(exposition, "_free_port", lambda: next(ports))
        assert exposition._measured_sdk().endswith("/metrics")
        monkeypatch.setattr(exposition, "_free_port", lambda: taken.getsockname()[1])
        with pytest.raises(Unavailable, match="the Temporal SDK cannot expose its metrics on"):
            exposition._measured_sdk()


async def test_without_a_port_nothing_listens() -> None:
    """0 means no probes, and two such processes bear one another."""
    async with Process(Settings()), Process(Settings()) as process:
        assert process._runner is None


@pytest.mark.parametrize("name", ["control", "gateway", "watcher"])
async def test_a_port_for_probes_that_is_taken_ends_the_process(short_path: Path, name: str) -> None:
    """The process ends with exit code 1 and one sentence that names the port and its setting."""
    server = await asyncio.start_server(lambda *_: None, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, started(name, short_path, REKINDLE_HEALTH_PORT=port) as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    last = errors.decode().splitlines()[-1]
    assert last.startswith(
        f"error: probes cannot be answered on 0.0.0.0 (REKINDLE_HEALTH_HOST), port {port} (REKINDLE_HEALTH_PORT): "
    )


async def test_a_watcher_without_temporal_lives_and_says_what_it_waits_for(short_path: Path) -> None:
    """A watcher that does not reach Temporal is alive but not ready, so that it is not restarted."""
    port, nobody = free_ports(2)
    address = f"127.0.0.1:{nobody}"
    async with started("watcher", short_path, REKINDLE_HEALTH_PORT=port, TEMPORAL_ADDRESS=address) as process:
        await says_ready(process)
        assert await probe(port, "healthz") == (200, "ok")
        status, text = await probe(port, "readyz")
        assert status == 503
        assert text.startswith("Temporal does not answer")
        process.terminate()
        assert await process.wait() == 0


async def test_a_watcher_is_ready_when_temporal_answers(temporal: WorkflowEnvironment, short_path: Path) -> None:
    """The watcher connects to Temporal when it first needs it, which may be for a probe."""
    (port,) = free_ports(1)
    address = temporal.client.service_client.config.target_host
    async with started("watcher", short_path, REKINDLE_HEALTH_PORT=port, TEMPORAL_ADDRESS=address) as process:
        await says_ready(process)
        assert await probe(port, "readyz") == (200, "ok")
        process.terminate()
        assert await process.wait() == 0


async def test_a_gateway_is_ready_and_ends_well(temporal: WorkflowEnvironment, short_path: Path) -> None:
    """A gateway that receives SIGTERM ends with code 0 and reports no error."""
    (port,) = free_ports(1)
    address = temporal.client.service_client.config.target_host
    async with started("gateway", short_path, REKINDLE_HEALTH_PORT=port, TEMPORAL_ADDRESS=address) as process:
        await says_ready(process)
        assert await probe(port, "readyz") == (200, "ok")
        process.terminate()
        _, errors = await process.communicate()
    assert process.returncode == 0
    assert "Traceback" not in errors.decode()


async def test_a_process_that_cannot_start_says_why_in_one_sentence(short_path: Path) -> None:
    """A control worker without Temporal ends with exit code 1. It names the address and its setting, and prints no traceback."""
    (nobody,) = free_ports(1)
    async with started("control", short_path, TEMPORAL_ADDRESS=f"127.0.0.1:{nobody}") as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"error: Temporal does not answer at 127.0.0.1:{nobody} (set TEMPORAL_ADDRESS)" in errors.decode()
    assert "Traceback" not in errors.decode()


async def test_settings_that_mean_nothing_are_named_each_with_what_is_accepted(short_path: Path) -> None:
    """All invalid settings are reported at once, under their names in the environment. The process ends with exit code 1."""
    variables = {"REKINDLE_GATEWAY_PORT": "http", "REKINDLE_CLUSTER": "docker"}
    async with started("gateway", short_path, **variables) as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().splitlines() == [
        "error: REKINDLE_GATEWAY_PORT: input should be a valid integer, unable to parse string as an integer (got 'http')",
        "REKINDLE_CLUSTER: input should be 'local' or 'kubernetes' (got 'docker')",
    ]


async def test_a_process_that_waits_for_its_api_server_lives_and_ends_when_told(short_path: Path) -> None:
    """A process that waits for its API server retries; it is alive and not ready. SIGTERM ends it at once, with code 0."""
    port, nobody = free_ports(2)
    config = {
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{nobody}"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
        "current-context": "here",
    }
    (short_path / "config").write_text(yaml.safe_dump(config))
    cluster = {"REKINDLE_CLUSTER": "kubernetes", "REKINDLE_KUBECONFIG": short_path / "config"}
    async with started("control", short_path, REKINDLE_HEALTH_PORT=port, **cluster) as process:
        assert process.stderr
        async with asyncio.timeout(START_LIMIT):
            while b"API server not reached, retrying" not in (line := await process.stderr.readline()):
                assert line, "it ended"
        assert await probe(port, "healthz") == (200, "ok")
        assert await probe(port, "readyz") == (503, "it starts")
        process.terminate()
        _, errors = await process.communicate()
    assert process.returncode == 0
    assert "Traceback" not in errors.decode()
