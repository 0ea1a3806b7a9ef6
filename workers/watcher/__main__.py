"""Entry point of the watcher: `python -P -m workers.watcher`."""

import asyncio
import logging
from collections.abc import Awaitable

from rekindle.model.examined import Problem
from rekindle.policy.detection.storm import Marks
from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from rekindle.temporal import connect, identity_of
from workers.clusters import cluster_of
from workers.own_workload import check_of, own_workload
from workers.process import Process, run
from workers.temporal_client import service_problem
from workers.watcher import metrics
from workers.watcher.job_workflows import TemporalJobWorkflows
from workers.watcher.watcher import LISTED, Watcher

logger = logging.getLogger("watcher")


async def main() -> None:
    settings = read_settings()
    configure_logging("watcher", settings)
    running = Process(settings)
    client = await connect(lazy=True)
    cluster_here = cluster_of(settings, lambda: identity_of(client))
    async with running as process, own_workload(settings, "watcher") as workload, workload.explaining(), cluster_here as cluster:
        listed = None if settings.namespaces else LISTED  # jobs of other namespaces may be another watcher's
        workflows = TemporalJobWorkflows(client)
        watcher = Watcher(cluster, workflows, settings.limits, listed=listed)
        watcher.hold_drains_for(settings.drain_held)
        watcher.hold_in_storms(Marks(nodes=settings.storm_nodes, recoveries=settings.storm_recoveries), workflows.recovering)
        look = service_problem(client)

        async def why() -> Problem | None:
            return Problem(reason="ClusterNotWatched", words=watcher.problem) if watcher.problem else await look()

        process.ready("watcher", check_of(why))
        works: list[Awaitable[None]] = [watcher.run(), workload.keep(why)]
        if process.is_observed:
            metrics.expose(watcher)
            works.append(metrics.keep_counting(client, settings.limits))
        await process.until_stopped(_all(works))
    logger.info("watcher stopped")


async def _all(works: list[Awaitable[None]]) -> None:
    await asyncio.gather(*works)


if __name__ == "__main__":
    run(main)
