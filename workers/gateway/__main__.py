"""Entry point of the gateway: `python -P -m workers.gateway`."""

import asyncio
import logging

from rekindle import spans
from rekindle.otlp import exporting
from rekindle.settings import Settings, read_settings
from rekindle.telemetry import configure_logging
from workers.gateway.caller_auth import senders_of
from workers.gateway.job_series import SERIES
from workers.gateway.public_fault_service import public_faults_of
from workers.gateway.server import Gateway
from workers.own_workload import OwnWorkload, own_workload
from workers.process import Process, run
from workers.temporal_client import connected, service_problem

logger = logging.getLogger("gateway")


async def main() -> None:
    settings = read_settings()
    configure_logging("gateway", settings)
    with exporting(spans.Process.GATEWAY):
        await serve(settings)
    logger.info("gateway stopped")


async def serve(settings: Settings) -> None:
    running = Process(settings)
    async with running as process, own_workload(settings, "gateway") as workload, workload.explaining():
        await _serve(settings, process, workload)


async def _serve(settings: Settings, process: Process, workload: OwnWorkload) -> None:
    async with senders_of(settings) as senders, public_faults_of(settings) as kept:
        client = await connected()
        gateway = Gateway(client, settings, senders=senders)
        gateway.public_faults.kept = kept
        process.expose(SERIES.text)
        port = await gateway.start()
        process.ready(f"gateway {settings.gateway_host}:{port}")
        keeping = asyncio.create_task(workload.keep(service_problem(client)))
        await gateway.run_until(process.stop)
        keeping.cancel()


if __name__ == "__main__":
    run(main)
