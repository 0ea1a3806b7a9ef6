"""Which jobs hold a drain of their nodes. Kept by the watcher, which sees the policy in force on the job's object."""

import logging

from activities.clusters.port import Cluster
from rekindle.errors import BadInput, ClusterError, NotFound
from rekindle.model.job import Job
from rekindle.policy.drains import job_holds

logger = logging.getLogger("watcher")


class Budgets:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, bool] = {}
        """By job, what was written last; a job of which nothing was written yet may have one of an earlier watcher."""

    async def keep(self, job_id: str, job: Job | None) -> None:
        """It costs no recovery: what cannot be written is tried again with the next news of the job."""
        if job is None or self._kept.get(job_id) is job_holds(job) or (job.observe and job_id not in self._kept):
            return
        try:
            await self._cluster.ensure_budget(job_id, holds=job_holds(job))
        except NotFound:
            return
        except (BadInput, ClusterError) as error:
            logger.warning("its budget is not written", extra={"job": job_id, "error": str(error)})
            return
        self._kept[job_id] = job_holds(job)

    def forget(self, job_id: str) -> None:
        self._kept.pop(job_id, None)
