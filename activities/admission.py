"""Asks whether the cluster would admit pods of a job, without creating any. Registered by the control worker."""

from temporalio import activity

from activities.clusters.port import Cluster
from activities.error_mapping import translating_errors
from activities.heartbeat import heartbeating
from rekindle.model.activities.jobs import JobRequest
from rekindle.model.bounds import reason


class AdmissionActivities:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @activity.defn
    async def try_backup(self, request: JobRequest) -> str:
        """Returns why the cluster would refuse a backup pod of the job now, in its words; empty: it would not."""
        with translating_errors():
            async with heartbeating():
                return reason(await self._cluster.refusal_of_backup(request.job_id))
