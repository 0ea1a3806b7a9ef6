"""Entry point of the admission webhook: `python -P -m workers.webhook`. Any number may run; they share their certificates.

A webhook keeps no state, and answers each request by itself. An object that it cannot read is admitted, with a warning.
"""

import logging

from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from workers.process import Process, patiently, run
from workers.webhook.certificate_sources import certificates_of, keep
from workers.webhook.server import Webhook
from workers.webhook.tls import ServerTls

logger = logging.getLogger("webhook")


async def main() -> None:
    settings = read_settings()
    configure_logging("webhook", settings)
    tls = ServerTls()
    async with Process(settings, has_temporal=False) as process, certificates_of(settings, tls) as certificates:
        await patiently(certificates.look)
        async with Webhook(settings, tls) as webhook:
            process.ready(f"webhook {settings.gateway_host}:{webhook.port}", tls.problem)
            await process.until_stopped(keep(certificates))
    logger.info("webhook stopped")


if __name__ == "__main__":
    run(main)
