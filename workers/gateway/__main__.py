"""Entry point of the gateway: `python -P -m workers.gateway`."""

import logging

from rekindle import spans
from rekindle.otlp import exporting
from rekindle.settings import Settings, read_settings
from rekindle.telemetry import configure_logging
from rekindle.temporal import connect
from rekindle.worker_plugin import plugin
from workers.gateway.caller_auth import senders_of
from workers.gateway.job_series import SERIES
from workers.gateway.public_fault_service import public_faults_of
from workers.gateway.server import Gateway
from workers.process import Process, run

logger = logging.getLogger("gateway")


async def main() -> None:
    settings = read_settings()
    configure_logging("gateway", settings)
    with exporting(spans.Process.GATEWAY):
        await serve(settings)
    logger.info("gateway stopped")


async def serve(settings: Settings) -> None:
    async with Process(settings) as process, senders_of(settings) as senders, public_faults_of(settings) as kept:
        gateway = Gateway(await connect(plugins=[plugin()]), settings, senders=senders)
        gateway.public_faults.kept = kept
        process.expose(SERIES.text)
        port = await gateway.start()
        process.ready(f"gateway {settings.gateway_host}:{port}")
        await gateway.run_until(process.stop)


if __name__ == "__main__":
    run(main)
