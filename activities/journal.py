"""Writes the state of a job onto the cluster's objects, for schedulers, for people, and for a later workflow of the job."""

import asyncio
from contextlib import suppress

from temporalio import activity
from temporalio.client import Client

from activities.clusters.port import Cluster
from activities.error_mapping import translating_errors
from activities.heartbeat import heartbeating
from activities.incident_trace import export_incident
from activities.spares import Spares
from rekindle.errors import ClusterError, NotFound
from rekindle.ids import CONTROL_QUEUE, Signals, Workflows, node_record_workflow
from rekindle.model.activities.jobs import EventRequest, PolicyRequest, RememberRequest
from rekindle.model.cluster import ClusterEvent
from rekindle.model.keys import DOWNGRADED, GIVEN_UP, LAST_VERDICT, MEMORY, RECOVERING, SUB_HEALTHY_STRATEGY
from rekindle.model.node_record import Blame, NodeRecord
from rekindle.temporal import TASK_TIMEOUT

EVENT_TRIES = 6
"""Tries to write an event together with a note. Later notes wait for it."""


class JournalActivities:
    def __init__(self, cluster: Cluster, client: Client | None = None) -> None:
        """Args:
        client: of the records of nodes, and of the claims of spare nodes. None: there are none.
        """
        self._cluster, self._client = cluster, client
        self._spares = Spares(cluster, client)

    @activity.defn
    async def publish_policy(self, request: PolicyRequest) -> None:
        """Writes the sub-health policy, and its reason, where the scheduler reads it."""
        with translating_errors(), suppress(NotFound):  # a job that is gone has no record
            async with heartbeating():
                await self._cluster.ensure_job_metadata(
                    request.job_id, {SUB_HEALTHY_STRATEGY: request.strategy}, {DOWNGRADED: request.reason or None}
                )

    @activity.defn
    async def remember(self, request: RememberRequest) -> None:
        """Writes onto the job's object what a later workflow of the job must find, and records an event.

        Afterwards exports the trace of an incident that has ended.
        """
        began = asyncio.get_running_loop().time()
        with translating_errors(), suppress(NotFound):  # a job that is gone has no record
            async with heartbeating():
                if request.spare:
                    await self._spares.tell(request.job_id, request.spare)
                shown = {
                    RECOVERING: request.recovering or None,
                    LAST_VERDICT: request.last_verdict or None,
                    GIVEN_UP: request.given_up or None,
                }
                await self._cluster.ensure_job_metadata(request.job_id, {}, {MEMORY: request.memory.model_dump_json(), **shown})
                if request.blame and self._client:
                    await self._blame(self._client, request.blame)
                if request.event:
                    await self._told(request.job_id, request.event)
        async with heartbeating():
            await export_incident(self._client, request.incident, began)

    async def _blame(self, client: Client, blame: Blame) -> None:
        """Tells the records of these nodes about an incident. A record that is told twice counts once."""
        for node in blame.nodes:
            await client.start_workflow(
                Workflows.NODE_RECORD,
                NodeRecord(node=node),
                id=node_record_workflow(node),
                task_queue=CONTROL_QUEUE,
                task_timeout=TASK_TIMEOUT,
                start_signal=Signals.INCIDENT,
                start_signal_args=[blame.incident],
                static_summary=f"incidents of {node}",
            )

    async def _told(self, job_id: str, event: ClusterEvent) -> None:
        """Records an event. An event that the cluster does not accept must not delay later notes."""
        try:
            await self._cluster.record(job_id, event)
        except ClusterError as error:
            if error.retryable and activity.info().attempt < EVENT_TRIES:
                raise
            activity.logger.warning("event not recorded", extra={"job": job_id, "reason": event.reason, "error": str(error)})

    @activity.defn
    async def record_event(self, request: EventRequest) -> None:
        """Writes an event about the job."""
        with translating_errors(), suppress(NotFound):  # a job that is gone has no record
            async with heartbeating():
                await self._cluster.record(request.job_id, request.event)
