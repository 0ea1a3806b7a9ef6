"""The control worker: workflows, and the activities over the cluster. `python -P -m workers.control`; any number may run."""

import logging
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig, WorkflowRunner

from activities.cluster import Cluster
from activities.jobs import JobActivities
from activities.pods import PodActivities
from rekindle.ids import CONTROL_QUEUE
from rekindle.settings import read_settings
from rekindle.telemetry import configure_logging
from rekindle.temporal import STICKY_TIMEOUT, connect, ensure_search_attributes
from workers.clusters import cluster_of
from workers.process import Process, run, temporal_answers
from workers.versions import Upgrades, build_of_code, deployment_config
from workflows.hot_switch import HotSwitch
from workflows.rescheduling import JobRescheduling
from workflows.training_job import TrainingJob

GRACE = timedelta(seconds=5)
"""For activities in flight when the process is told to stop; below a pod's usual grace period."""

logger = logging.getLogger("control")


MODES: tuple[type, ...] = (HotSwitch, JobRescheduling)


def control_worker(
    client: Client,
    cluster: Cluster,
    runner: WorkflowRunner,
    version: WorkerDeploymentConfig | None = None,
    modes: tuple[type, ...] = MODES,
) -> Worker:
    """The worker over one cluster.

    Args:
        version: by default it has none, and takes the tasks of workflows that have none.
    """
    pods, jobs = PodActivities(cluster), JobActivities(client)
    return Worker(
        client,
        task_queue=CONTROL_QUEUE,
        workflows=[TrainingJob, *modes],
        activities=[
            pods.ensure_backup,
            pods.await_scheduled,
            pods.await_running,
            pods.swap,
            pods.await_gone,
            pods.promote,
            pods.delete_backups,
            pods.delete_pods,
            pods.ensure_pods,
            pods.publish_policy,
            pods.record_event,
            jobs.ask_job,
            jobs.terminate_recovery,
        ],
        workflow_runner=runner,
        deployment_config=version,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        graceful_shutdown_timeout=GRACE,
    )


async def main() -> None:
    settings = read_settings()
    configure_logging("control", settings)
    async with Process(settings) as process, cluster_of(settings) as cluster:
        client = await connect()
        await ensure_search_attributes(client)
        # The sandbox polices workflows in the tests; here it would cost 15 ms of a recovery's first order (docs/decisions/0009).
        build_id = settings.build_id or build_of_code()
        async with control_worker(client, cluster, UnsandboxedWorkflowRunner(), deployment_config(build_id)):
            upgrades = Upgrades(client, build_id, alone=settings.only_worker)
            await upgrades.take_over()
            process.ready("control", temporal_answers(client))
            await process.until_stopped(upgrades.keep())
            await upgrades.drain()
    logger.info("stopped")


if __name__ == "__main__":
    run(main)
