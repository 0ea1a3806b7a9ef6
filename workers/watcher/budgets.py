"""Keeps the PodDisruptionBudgets by which jobs hold a drain of their nodes. Run by the watcher, which sees the job objects."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from activities.clusters.port import Cluster
from rekindle.errors import BadInput, ClusterError, Forbidden, Invalid, Unavailable
from rekindle.model.cluster import ClusterEvent, JobObject
from rekindle.model.limits import Limits
from rekindle.model.manifest import job_of
from rekindle.policy.detection.job_filters import heeds_cordons
from rekindle.policy.drain.drain_verdicts import job_holds

logger = logging.getLogger("watcher")


AGAIN, LONGEST = 5.0, 300.0
"""Seconds before a failed write is retried: the first pause, which doubles up to the second value."""


LONGEST_TIMER = 30 * 24 * 3600.0

EARNED, LONGEST_UNEARNED = 2.0, 30.0
"""Seconds before a job that has not trained yet is checked again: the first pause, which doubles up to the second value."""


@dataclass(frozen=True)
class Drains:
    concerns: Callable[[str], bool]
    """Returns whether a node of the job is cordoned."""

    held: timedelta
    """Longest time for which a job may hold a drain."""


NO_DRAINS = Drains(lambda _: False, timedelta.max)


class Budgets:
    def __init__(
        self,
        cluster: Cluster,
        limits: Limits,
        job: Callable[[str], JobObject | None],
        has_trained: Callable[[str], Awaitable[bool | None]],
        drain: Drains = NO_DRAINS,
    ) -> None:
        """Args:
        cluster: must be able to evict pods.
        limits: limits of the installation.
        job: returns the current job object; None: it is gone.
        has_trained: returns whether the job's training side has ever trained, as far as it reports; None: that
            is not known now. Raises Unavailable.
        drain: which jobs have nodes that are drained, and for how long that may be held.
        """
        if cluster.evictions is None:
            raise ValueError("pods of this cluster are never evicted")
        self._evictions = cluster.evictions
        self.drain = drain
        self._drained: dict[str, float] = {}
        """Time since which nodes of each job have been drained, by job id."""
        self._cluster, self._limits, self._job, self._has_trained = cluster, limits, job, has_trained
        self._earned: set[str] = set()
        """Jobs that have trained: ranks cannot be moved before that, and no drain waits for them."""
        self._kept: dict[str, int] = {}
        """Number of pods in each job's budget, by job id (0: no budget). Nothing is known of jobs that are missing here."""
        self._learns = False
        """True if the existing budgets have to be listed."""
        self._again: asyncio.TimerHandle | None = None
        self._dirty: dict[str, None] = {}
        self._left: dict[str, None] = {}
        """Jobs without a recovery that have budgets. Tenants may create thousands, so that these come after all other jobs."""
        self._failed: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        """Pause after the last failed try and the timer that ends it, by job id."""
        self._refused: dict[str, str] = {}
        """Reason why the cluster refuses a job's budget, by job id, as last reported to its owner."""
        self._happened = asyncio.Event()

    def look_at(self, job_id: str) -> None:
        self._dirty[job_id] = None
        self._happened.set()

    def forget(self, job_id: str) -> None:
        """Removes a job whose ranks are no longer moved. The job may live on, but must not hold a drain."""
        self._refused.pop(job_id, None)
        self._earned.discard(job_id)
        self._drained.pop(job_id, None)
        self._settle(job_id)
        if self._kept.get(job_id):
            self.look_at(job_id)
        else:
            self._kept.pop(job_id, None)

    def begin_anew(self) -> None:
        """Compares all budgets again, after a full list. An earlier watcher may have left budgets, or a person may have
        deleted some."""
        self._learns = True
        self._happened.set()

    async def run(self) -> None:
        """Writes budgets until it is cancelled, one job after the other and concurrently with updates: no recovery waits for
        it."""
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
            known = await self._evictions.budgets()
        except ClusterError as error:
            logger.warning("budgets not listed, retrying", extra={"error": str(error)})
            self._again = asyncio.get_running_loop().call_later(LONGEST, self.begin_anew)
            return
        self._kept = {**dict.fromkeys(self._kept, 0), **known}
        for job_id in self._kept:
            (self._dirty if self._job(job_id) else self._left)[job_id] = None

    async def _keep(self, job_id: str, job: JobObject | None) -> None:
        """Writes or deletes the budget of a job. A budget of an earlier watcher is deleted if the job's ranks would not be
        moved."""
        try:
            holds = job is not None and self._holds(job)
            earned = holds and await self._has_earned(job_id)
            over = job is not None and await self._is_held_too_long(job_id, job)
            pods = job.spec.pods if job and earned and not over else 0
            if self._kept.get(job_id, None if job else 0) != pods:
                await self._evictions.ensure_budget(job_id, holds=pods > 0)
            self._kept[job_id] = pods
            if holds and not earned:
                self._again_later(job_id, EARNED, LONGEST_UNEARNED)
                return
            self._settle(job_id)
            if job is None:
                del self._kept[job_id]
        except BadInput:
            return
        except Unavailable as error:
            logger.info("job not queried for its budget, retrying", extra={"job": job_id, "error": str(error)})
            self._again_later(job_id, EARNED, LONGEST_UNEARNED)
        except ClusterError as error:
            logger.warning("budget not written, retrying", extra={"job": job_id, "error": str(error)})
            if job and isinstance(error, Forbidden | Invalid):
                await self._tell(job_id, job, f"its PodDisruptionBudget is refused, so that no drain waits for it: {error}")
            self._again_later(job_id, AGAIN, LONGEST)

    async def _has_earned(self, job_id: str) -> bool:
        """Returns whether the job has trained. While that is not known, during a recovery, an existing budget stays."""
        if job_id in self._earned:
            return True
        trained = await self._has_trained(job_id)
        if trained:
            self._earned.add(job_id)
        return bool(self._kept.get(job_id)) if trained is None else trained

    async def _is_held_too_long(self, job_id: str, job: JobObject) -> bool:
        """Returns whether a drain was held too long: since this watcher first saw one of the job's nodes cordoned, until none
        is."""
        if not self.drain.concerns(job_id):
            if self._drained.pop(job_id, None) is not None:
                self._refused.pop(job_id, None)
            return False
        loop, held = asyncio.get_running_loop(), self.drain.held
        if job_id not in self._drained:
            self._drained[job_id] = loop.time()
            loop.call_later(min(held.total_seconds(), LONGEST_TIMER), self.look_at, job_id)
        over = loop.time() - self._drained[job_id] >= held.total_seconds()
        if over and self._kept.get(job_id):
            await self._tell(job_id, job, f"a drain of its nodes was held for {held}, as long as this installation allows")
        return over

    def _again_later(self, job_id: str, first: float, longest: float) -> None:
        pause = min(2 * self._settle(job_id), longest) or first
        self._failed[job_id] = pause, asyncio.get_running_loop().call_later(pause, self.look_at, job_id)

    def _holds(self, job: JobObject) -> bool:
        said = job_of(job, self._limits)  # not as registered: the label of the current object counts
        return job_holds(said) and heeds_cordons(job.metadata.annotations, self._cluster.rules)

    def _settle(self, job_id: str) -> float:
        """Cancels the next try. Returns the pause before it, 0 if there was none."""
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
