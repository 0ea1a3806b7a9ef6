"""Entry point of the gateway: `python -P -m workers.gateway`."""

import logging

from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from rekindle.temporal import connect
from workers.gateway.caller_auth import senders_of
from workers.gateway.public_fault_service import public_faults_of
from workers.gateway.server import Gateway
from workers.process import Process, run

logger = logging.getLogger("gateway")


async def main() -> None:
    settings = read_settings()
    configure_logging("gateway", settings)
    async with Process(settings) as process, senders_of(settings) as senders, public_faults_of(settings) as kept:
        gateway = Gateway(await connect(), settings, senders=senders)
        gateway.public_faults.kept = kept
        port = await gateway.start()
        process.ready(f"gateway {settings.gateway_host}:{port}")
        await gateway.run_until(process.stop)
    logger.info("gateway stopped")


if __name__ == "__main__":
    run(main)
