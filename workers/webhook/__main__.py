"""Entry point of the admission webhook: `python -P -m workers.webhook`. Any number may run; they share their certificates.

A webhook keeps no state, and answers each request by itself. An object that it cannot read is admitted, with a warning.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext

from rekindle.settings import Settings, read_settings
from rekindle.telemetry import configure_logging
from workers.own_workload import OwnWorkload, check_of, own_workload
from workers.process import Process, patiently, run
from workers.webhook.certificate_sources import certificates_of, keep
from workers.webhook.server import Webhook
from workers.webhook.tls import ServerTls

logger = logging.getLogger("webhook")


async def main() -> None:
    settings = read_settings()
    configure_logging("webhook", settings)
    async with Process(settings, has_temporal=False) as process, _workload(settings) as workload, workload.explaining():
        await _serve(settings, process, workload)
    logger.info("webhook stopped")


async def _serve(settings: Settings, process: Process, workload: OwnWorkload) -> None:
    tls = ServerTls()
    async with certificates_of(settings, tls) as certificates:
        await patiently(certificates.look)
        async with Webhook(settings, tls) as webhook:
            process.ready(f"webhook {settings.gateway_host}:{webhook.port}", check_of(tls.problem))
            await process.until_stopped(_both(keep(certificates), workload.keep(tls.problem)))


def _workload(settings: Settings) -> AbstractAsyncContextManager[OwnWorkload]:
    """Returns the Deployment on which the webhook shows its state. One with files has no account for the API server."""
    if settings.webhook_certificates is not None:
        return nullcontext(OwnWorkload(None, settings.namespace, "webhook"))
    return own_workload(settings, "webhook")


async def _both(*works: Awaitable[None]) -> None:
    await asyncio.gather(*works)


if __name__ == "__main__":
    run(main)
