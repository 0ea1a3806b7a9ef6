"""Which jobs hold a drain of their nodes. Kept by the watcher, which sees the policy in force on the job's object."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from activities.clusters.port import Cluster
from rekindle.errors import BadInput, ClusterError, Forbidden, Invalid
from rekindle.model.cluster import ClusterEvent, JobObject
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.policy.drains import job_holds
from rekindle.policy.filters import heeds_cordons

logger = logging.getLogger("watcher")


AGAIN, LONGEST = 5.0, 300.0
"""Seconds before what could not be written is tried again; they double."""


class Budgets:
    def __init__(self, cluster: Cluster, limits: Limits, job: Callable[[str], JobObject | None]) -> None:
        """Args:
        limits: of the installation.
        job: the job's object as it is now; None: it is gone.
        """
        self._cluster, self._limits, self._job = cluster, limits, job
        self._kept: dict[str, int] = {}
        """By job, for how many pods there is one (0: none); of a job that is not here nobody knows."""
        self._learns = False
        """Whether it is to be asked which there are."""
        self._again: asyncio.TimerHandle | None = None
        self._dirty: dict[str, None] = {}
        self._left: dict[str, None] = {}
        """Jobs that nobody looks after, of which there are budgets. Tenants may write thousands: no other job waits for them."""
        self._failed: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        """By job, the pause after the last try, and who ends it."""
        self._refused: dict[str, str] = {}
        """By job, why the cluster does not take its budget, as its owner was told last."""
        self._happened = asyncio.Event()

    def look_at(self, job_id: str) -> None:
        self._dirty[job_id] = None
        self._happened.set()

    def forget(self, job_id: str) -> None:
        """Nobody moves its ranks any more. It may live on all the same, and must hold no drain then."""
        self._refused.pop(job_id, None)
        self._settle(job_id)
        if self._kept.get(job_id):
            self.look_at(job_id)
        else:
            self._kept.pop(job_id, None)

    def begin_anew(self) -> None:
        """Everything was listed: there may be budgets of an earlier watcher, for jobs that ask for nothing any more, and a person
        may have deleted others."""
        self._learns = True
        self._happened.set()

    async def run(self) -> None:
        """Until it is cancelled. One job after the other, beside all that is told: no recovery waits for it."""
        while True:
            await self._happened.wait()
            self._happened.clear()
            if self._learns:
                await self._learn()
            while self._dirty or self._left:
                job_id = next(iter(self._dirty or self._left))
                (self._dirty or self._left).pop(job_id)
                await self._keep(job_id, self._job(job_id))

    async def _learn(self) -> None:
        self._learns = False
        if self._again:
            self._again.cancel()
        try:
            known = await self._cluster.budgets()
        except ClusterError as error:
            logger.warning("not known which budgets there are, trying again", extra={"error": str(error)})
            self._again = asyncio.get_running_loop().call_later(LONGEST, self.begin_anew)
            return
        self._kept = {**dict.fromkeys(self._kept, 0), **known}
        for job_id in self._kept:
            (self._dirty if self._job(job_id) else self._left)[job_id] = None

    async def _keep(self, job_id: str, job: JobObject | None) -> None:
        """One of an earlier watcher is taken away where nobody would move the job's ranks any more."""
        try:
            pods = job.spec.pods if job and self._holds(job) else 0
            if self._kept.get(job_id, None if job else 0) != pods:
                await self._cluster.ensure_budget(job_id, holds=pods > 0)
            self._kept[job_id] = pods
            self._settle(job_id)
            if job is None:
                del self._kept[job_id]
        except BadInput:
            return
        except ClusterError as error:
            logger.warning("its budget is not written, trying again", extra={"job": job_id, "error": str(error)})
            if job and isinstance(error, Forbidden | Invalid):
                await self._tell(job_id, job, f"its PodDisruptionBudget is refused, so that no drain waits for it: {error}")
            pause = min(2 * self._settle(job_id), LONGEST) or AGAIN
            self._failed[job_id] = pause, asyncio.get_running_loop().call_later(pause, self.look_at, job_id)

    def _holds(self, job: JobObject) -> bool:
        said = job_of(job, self._limits)  # and not as it was registered: its label says what holds now
        return job_holds(said) and heeds_cordons(job.metadata.annotations, self._cluster.rules)

    def _settle(self, job_id: str) -> float:
        """No more try is due; answers how long the pause was before it."""
        pause, timer = self._failed.pop(job_id, (0.0, None))
        if timer:
            timer.cancel()
        return pause

    async def _tell(self, job_id: str, job: JobObject, why: str) -> None:
        if self._refused.get(job_id) == why or job.observe:
            return
        self._refused[job_id] = why
        event = ClusterEvent(name=job.metadata.name, kind=job.kind, reason="DrainNotHeld", message=why, type="Warning")
        with suppress(BadInput, ClusterError):
            await self._cluster.record(job_id, event)
