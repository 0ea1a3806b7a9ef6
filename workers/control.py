"""The control worker: runs workflows and the activities over the cluster. `python -P -m workers.control`; any number may run."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig, WorkflowRunner

from activities.admission import AdmissionActivities
from activities.clusters.port import Cluster
from activities.contract import ContractActivities
from activities.jobs import JobActivities
from activities.journal import JournalActivities
from activities.nodes import NodeActivities
from activities.plans import PlanActivities
from activities.pods import PodActivities
from rekindle import spans
from rekindle.ids import CONTROL_QUEUE
from rekindle.otlp import exporting
from rekindle.policy.modes.mode_table import MODES as ROWS
from rekindle.settings import Settings, read_settings
from rekindle.telemetry import configure_logging
from rekindle.temporal import STICKY_TIMEOUT, connect, identity_of
from rekindle.temporal_service import problem_of
from workers.attributes import SearchAttributesKept
from workers.clusters import cluster_of
from workers.own_workload import check_of, own_workload
from workers.process import Process, run
from workers.rollout import rollouts
from workers.sticky_queues import leave_sticky_queues
from workers.temporal_client import connected, service_problem
from workers.versions import Upgrades, build_of_code, deployment_config
from workflows.link_failover import LinkFailover
from workflows.node_record import NodeRecordWorkflow
from workflows.nodes import Nodes
from workflows.spares import Spares
from workflows.switch_upgrade import SwitchUpgrade
from workflows.training_job import TrainingJob

GRACE = timedelta(seconds=5)
"""Time for activities in flight when the process has to stop; below a pod's usual grace period."""

SLOTS = 5_000
"""Largest number of concurrent activities. Most of them wait for pods for minutes, and cost only a coroutine and a watch. With
few slots they would delay every deletion of another job."""

CACHED_WORKFLOWS = 8_000
"""Number of workflows that are cached in memory. An uncached one is replayed from its history at its next event, which was the
server's largest cost with 10,000 idle jobs. An idle job takes 60 kB here, as measured, so that these are 0.5 GiB of the 1 GiB
that the deployment grants. Jobs beyond them are replayed, or belong to a second control worker."""

TASKS = 8
"""Largest number of concurrent workflow tasks. Python runs one at a time. A task that was taken and waits for the others may time
out, and its workflow is then replayed from its history. With the SDK's hundred, a burst of 60 faults took up to three times as
long to its first orders. Further tasks wait at the server."""

FOR_NEW = 0.6
"""Share of the pollers that ask for the first task of a workflow: that of a recovery leads to its first order. With the SDK's
fifth and 100 faults at once, first orders waited for the later steps of other recoveries, up to twice as long."""

logger = logging.getLogger("control")


MODES: tuple[type, ...] = tuple(getattr(import_module(row.procedure), row.workflow) for row in ROWS)
"""Workflow classes of all modes."""


def activities_of(client: Client, cluster: Cluster) -> Sequence[Callable[..., Any]]:
    """Returns every activity of the control worker."""
    pods, journal, jobs = PodActivities(cluster, client), JournalActivities(cluster, client), JobActivities(client)
    plans, nodes, admission = PlanActivities(client, cluster), NodeActivities(cluster), AdmissionActivities(cluster)
    contract = ContractActivities(cluster)
    return (
        pods.ensure_backup,
        pods.ensure_replacement,
        pods.resolve_links,
        pods.find_targets,
        pods.judge,
        pods.make_anew,
        pods.ensure_standbys,
        pods.await_scheduled,
        pods.await_running,
        pods.swap,
        pods.await_gone,
        pods.promote,
        pods.delete_backups,
        pods.sweep,
        pods.delete_left,
        pods.delete_pods,
        pods.await_old_gone,
        pods.ensure_pods,
        pods.await_new_running,
        pods.look_at_new_pods,
        pods.look_at_job,
        pods.survey,
        journal.publish_policy,
        journal.record_event,
        journal.remember,
        jobs.find_job,
        jobs.ask,
        jobs.links_now,
        jobs.hold_request,
        jobs.withdraw_request,
        jobs.await_recovery_end,
        jobs.terminate_recovery,
        plans.survey_leaf,
        plans.fail_over,
        plans.move_back,
        nodes.look_at_nodes,
        nodes.mark_nodes,
        nodes.cordon_nodes,
        nodes.set_aside,
        nodes.release_node,
        admission.try_backup,
        contract.write_words,
        contract.ask_platform,
    )


def control_worker(
    client: Client,
    cluster: Cluster,
    runner: WorkflowRunner,
    version: WorkerDeploymentConfig | None = None,
    modes: tuple[type, ...] = MODES,
) -> Worker:
    """Returns the control worker for one cluster.

    Args:
        version: by default it has none, and takes the tasks of workflows that have none.
    """
    return Worker(
        client,
        task_queue=CONTROL_QUEUE,
        workflows=[TrainingJob, LinkFailover, SwitchUpgrade, Nodes, NodeRecordWorkflow, Spares, *modes],
        activities=activities_of(client, cluster),
        max_concurrent_activities=SLOTS,
        max_concurrent_workflow_tasks=TASKS,
        max_concurrent_workflow_task_polls=TASKS,
        nonsticky_to_sticky_poll_ratio=FOR_NEW,
        max_cached_workflows=CACHED_WORKFLOWS,
        workflow_runner=runner,
        deployment_config=version,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        graceful_shutdown_timeout=GRACE,
    )


async def main() -> None:
    settings = read_settings()
    configure_logging("control", settings)
    with exporting(spans.Process.CONTROL):
        await serve(settings)
    logger.info("control worker stopped")


async def serve(settings: Settings) -> None:
    running = Process(settings)
    named = await connect(lazy=True)
    cluster_here = cluster_of(settings, lambda: identity_of(named), recovers=True)
    own = own_workload(settings, "control")
    async with running as process, own as workload, workload.explaining(), cluster_here as cluster, rollouts(settings) as rollout:
        client = await connected(registers=True)
        # The sandbox polices workflows in the tests; here it would cost 15 ms of a recovery's first order (docs/decisions/0009).
        build_id = settings.build_id or build_of_code()
        await leave_sticky_queues(client)
        async with control_worker(client, cluster, UnsandboxedWorkflowRunner(), deployment_config(build_id)):
            upgrades = Upgrades(client, build_id, alone=settings.only_worker, rollout=rollout)
            try:
                await upgrades.take_over()
            except RPCError as error:
                raise problem_of(error, client).error from error
            look = service_problem(client)
            process.ready("control", check_of(look))
            keeping = (SearchAttributesKept(client).keep(), workload.keep(look))
            tasks = [asyncio.create_task(work) for work in keeping]
            await process.until_stopped(upgrades.keep())
            for task in tasks:
                task.cancel()
            await upgrades.drain()


if __name__ == "__main__":
    run(main)
