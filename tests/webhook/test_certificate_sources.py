"""The webhook looks for new certificates, whatever the API server answers."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes.scripted_api import scripted_api
from workers.webhook.certificate_sources import SharedSecret, keep
from workers.webhook.tls import ServerTls

SECRET = "/api/v1/namespaces/mindx-dl/secrets/rekindle-webhook"


@pytest.mark.parametrize("body", [[], None, {}, {"metadata": None}, {"metadata": {}, "data": {"ca.crt": 5}}], ids=str)
async def test_an_answer_of_another_service_ends_no_webhook(
    body: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy between the webhook and the API server answers what it likes. The certificate before stays in use."""
    async with scripted_api(tmp_path) as (scripted, api):
        scripted.answers["GET", SECRET] = 200, body  # type: ignore[assignment]
        looking = asyncio.create_task(keep(SharedSecret(api, "mindx-dl", ServerTls()), pause=0.0))
        asked = asyncio.create_task(scripted.until_asked("GET", SECRET, times=3))
        await asyncio.wait({looking, asked}, return_when=asyncio.FIRST_COMPLETED)
        assert not looking.done(), looking.exception()
        looking.cancel()
    assert "certificate not renewed, retrying" in {record.message for record in caplog.records}
