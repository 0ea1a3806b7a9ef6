"""Which jobs hold a drain of their nodes. Kept by the watcher, which sees the policy in force on the job's object."""

import asyncio
import logging
from collections.abc import Callable

from activities.clusters.port import Cluster
from rekindle.errors import BadInput, ClusterError
from rekindle.model.cluster import JobObject
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.policy.drains import job_holds

logger = logging.getLogger("watcher")


AGAIN = 5.0
"""Seconds before what could not be written is tried again."""


class Budgets:
    def __init__(self, cluster: Cluster, limits: Limits, job: Callable[[str], JobObject | None]) -> None:
        """Args:
        limits: of the installation.
        job: the job's object as it is now; None: it is gone.
        """
        self._cluster, self._limits, self._job = cluster, limits, job
        self._kept: dict[str, bool] = {}
        """By job, what was written last; a job of which nothing was written yet may have one of an earlier watcher."""
        self._dirty: dict[str, None] = {}
        self._happened = asyncio.Event()

    def look_at(self, job_id: str) -> None:
        self._dirty[job_id] = None
        self._happened.set()

    def forget(self, job_id: str) -> None:
        """Nobody moves its ranks any more. It may live on all the same, and must hold no drain then."""
        if self._kept.get(job_id):
            self.look_at(job_id)
        else:
            self._kept.pop(job_id, None)

    async def run(self) -> None:
        """Until it is cancelled. One job after the other, beside all that is told: no recovery waits for it."""
        while True:
            await self._happened.wait()
            self._happened.clear()
            for job_id in list(self._dirty):
                del self._dirty[job_id]
                await self._keep(job_id, self._job(job_id))

    async def _keep(self, job_id: str, job: JobObject | None) -> None:
        try:
            # As its object says it now, and not as it was registered: its label is the policy in force.
            holds = job is not None and job_holds(job_of(job, self._limits))
            if self._kept.get(job_id, None if job else False) is not holds:
                await self._cluster.ensure_budget(job_id, holds=holds)
            self._kept[job_id] = holds
            if job is None:
                del self._kept[job_id]
        except BadInput:
            return
        except ClusterError as error:
            logger.warning("its budget is not written, trying again", extra={"job": job_id, "error": str(error)})
            asyncio.get_running_loop().call_later(AGAIN, self.look_at, job_id)
