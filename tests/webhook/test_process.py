"""The process of the admission webhook, with certificates from files: it needs no API server then."""

import json
from pathlib import Path

import aiohttp
import pytest

from rekindle.cli.ports import free_ports
from tests.gateway.processes import probe, says_ready, started
from tests.support.admission import SERVICE, Clock, review, trusting
from workers.webhook.own_certificates import Certificates, renewed


@pytest.mark.costly
async def test_it_serves_with_the_files_of_a_folder(tmp_path: Path) -> None:
    """Probes report that it is ready, reviews are answered over TLS, and SIGTERM ends it."""
    own, (health,) = renewed(Certificates(), SERVICE, Clock()()), free_ports(1)
    (tmp_path / "tls.crt").write_bytes(own.certificate)
    (tmp_path / "tls.key").write_bytes(own.key)
    settings = {"REKINDLE_WEBHOOK_CERTIFICATES": tmp_path, "REKINDLE_WEBHOOK_PORT": 0, "REKINDLE_HEALTH_PORT": health}
    async with started("webhook", tmp_path, **settings) as process:
        name, _, address = (await says_ready(process)).partition(" ")
        assert name == "webhook"
        assert await probe(health, "readyz") == (200, "ok")
        connector = aiohttp.TCPConnector(ssl=trusting(own.authorities))
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.post(
                f"https://{address}/validate", data=json.dumps(review("retry, recover")), server_hostname=SERVICE
            ) as answer,
        ):
            assert (await answer.json())["response"]["allowed"] is False
        process.terminate()
        assert await process.wait() == 0


@pytest.mark.costly
async def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    """The process ends with one sentence, which names the setting."""
    async with started("webhook", tmp_path, REKINDLE_WEBHOOK_CERTIFICATES=tmp_path) as process:
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert "error: REKINDLE_WEBHOOK_CERTIFICATES:" in errors.decode()
