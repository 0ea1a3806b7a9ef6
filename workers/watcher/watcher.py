"""Watches the cluster, and lets the reconciler of a job check it again whenever one of its objects changed.

Every update follows from the world as it is: it is listed again whenever a watch breaks and from time to time. Nothing is written
anywhere, and nothing is lost while Temporal, the cluster or the watcher itself is away.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from math import inf

from activities.clusters.port import Cluster, Snapshot
from rekindle.errors import BadInput, ClusterError, ClusterUnavailable, Unavailable, WatchExpired
from rekindle.model.cluster import ClusterEvent, JobObject, Node, Pod, PodPhase, WatchEvent
from rekindle.model.keys import DOWNGRADED
from rekindle.model.limits import Limits
from rekindle.policy.detection.storm import Marks
from rekindle.policy.detection.watcher_updates import Shown, heeds_storms, in_storm, shown
from workers.watcher.budgets import Budgets, Drains
from workers.watcher.cluster_index import ClusterIndex
from workers.watcher.job_workflows import JobWorkflows
from workers.watcher.reconciler import Reconciler
from workers.watcher.rule_breaker_events import Doubts
from workers.watcher.storms import LOOK, Storms

RELIST = 3600.0
"""Seconds after which everything is listed again even if the watch did not break, as a safeguard."""

RECONSIDER = 600.0
"""Seconds before a registration that a workflow refused is retried: the workflow's code may have changed by then."""

REWATCH, LONGEST = 0.2, 5.0
"""Seconds before a broken watch is reopened; they double, until a watch was open for `STEADY` seconds."""

STEADY = 60.0

LOST = 30.0
"""Seconds between two checks for jobs whose workflow was terminated, which no event of the cluster shows."""

LISTED = 1.0
"""Seconds between the first full list and its comparison with the workflows of jobs. Meanwhile the watch reports jobs that
another watcher has registered."""

BROKEN = 30.0
"""Seconds before a job is checked again after an unexpected error."""

DRAIN_HELD = timedelta(days=1)
"""Longest time for which a job may hold a drain of its nodes, unless the installation sets another one."""

AT_ONCE = 20
"""Largest number of events that are written concurrently: one tenant may have thousands of invalid jobs."""

logger = logging.getLogger("watcher")


class Watcher:
    def __init__(
        self,
        cluster: Cluster,
        workflows: JobWorkflows,
        limits: Limits,
        look_for_lost: float = LOST,
        listed: float | None = LISTED,
    ) -> None:
        """Args:
        limits: of the installation; a job's own come before them.
        look_for_lost: seconds between two looks for jobs whose workflow is lost.
        listed: seconds between the first full list and its comparison with the workflows; None: it is no list of all jobs.
        """
        self._look_for_lost, self._until_compared = look_for_lost, listed
        self._cluster, self._workflows, self._limits = cluster, workflows, limits
        self._index = ClusterIndex(rules=cluster.rules)
        self._reconcilers: dict[str, Reconciler] = {}
        drains = Drains(self._is_drained, DRAIN_HELD)
        self._budgets = Budgets(cluster, limits, self._job, workflows.has_trained, drains) if cluster.evictions else None
        self._doubts = Doubts(cluster)
        self._storms = Storms(self._tell_of_storm)
        self._busy: set[str] = set()
        """Jobs whose reconciler is running."""
        self._recording = asyncio.Semaphore(AT_ONCE)
        self._tasks = asyncio.TaskGroup()
        self._listed = asyncio.Event()
        """Set when the cluster was listed once."""
        self._unreadable: frozenset[str] = frozenset()
        """Jobs that exist but whose objects cannot be read."""
        self.problem = ""
        """Reason why the cluster cannot be watched; empty: the watch is open, or is being reopened."""
        self._steady_at = inf
        """Time from which the watch has been open so long that its end does not point to a server in trouble."""

    def hold_drains_for(self, longest: timedelta) -> None:
        """Sets the longest time for which a job may hold a drain of its nodes."""
        if self._budgets:
            self._budgets.drain = Drains(self._is_drained, longest)

    def hold_in_storms(self, marks: Marks, recovering: Callable[[], Awaitable[set[str]]], every: float = LOOK) -> None:
        """Sets the marks above which there is a storm. Without them there is none.

        Args:
            recovering: returns the ids of the running recoveries. Raises Unavailable.
            every: seconds between two looks at them.
        """
        self._storms = Storms(self._tell_of_storm, marks, recovering, every)

    def nodes(self) -> tuple[int, int]:
        """Returns the number of nodes, and of those that are unhealthy. See `ClusterIndex.unhealthy`."""
        return self._index.unhealthy()

    @property
    def has_storm(self) -> bool:
        return bool(self._storms.reason)

    @property
    def doubts_rules(self) -> bool:
        """True if a rule is not believed now."""
        return bool(self._index.unbelieved)

    def downgraded(self) -> int:
        """Returns the number of jobs whose sub-health policy was downgraded."""
        return sum(DOWNGRADED in job.metadata.annotations for job in self._index.jobs.values())

    def _tell_of_storm(self) -> None:
        """Tells jobs that are not well that a storm has begun or is over."""
        for job_id, reconciler in list(self._reconcilers.items()):
            if heeds_storms(reconciler.acknowledged) or self._storms.recovers(job_id):
                self._changed(job_id, calm=False)

    def _is_drained(self, job_id: str) -> bool:
        return any(node.spec.unschedulable for node in self._index.view(job_id).nodes)

    def _job(self, job_id: str) -> JobObject | None:
        return self._index.jobs.get(job_id)

    async def run(self) -> None:
        """Watches the cluster until it is cancelled."""
        pause = REWATCH
        async with self._tasks:
            self._tasks.create_task(self._keep_registered())
            if self._budgets:
                self._tasks.create_task(self._budgets.run())
            self._tasks.create_task(self._doubts.run())
            self._tasks.create_task(self._storms.run())
            self._tasks.create_task(self._keep_reconsidering())
            self._tasks.create_task(self._end_what_is_gone())
            while True:
                try:
                    await self._watch_for_a_while()
                    pause = REWATCH
                    continue
                except (WatchExpired, ClusterUnavailable) as broken:
                    pause = REWATCH if asyncio.get_running_loop().time() >= self._steady_at else pause
                    words = {"reason": str(broken), "in_seconds": pause}
                    logger.warning("cluster watch interrupted, listing again", extra=words)
                except ClusterError as refused:
                    self.problem = str(refused)
                    logger.exception("cluster not watched, retrying", extra={"reason": str(refused)})
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST)

    async def _watch_for_a_while(self) -> None:
        self._steady_at = inf
        try:
            async with asyncio.timeout(RELIST), aclosing(self._cluster.watch()) as changes:
                async for one in changes:
                    if isinstance(one, Snapshot):
                        self._begin_anew(one)
                    else:
                        self._take(one)
        except TimeoutError:
            return

    async def _keep_registered(self) -> None:
        """Registers jobs again whose workflow was terminated, even if nothing of them changes in the cluster."""
        while True:
            await asyncio.sleep(self._look_for_lost)
            known = [
                job_id for job_id, one in self._reconcilers.items() if one.acknowledged.reached and job_id in self._index.jobs
            ]
            try:
                lost = await self._workflows.lost(known)
            except Unavailable as error:
                logger.info("running workflows not listed", extra={"error": str(error)})
                continue
            for job_id in lost:
                if job_id not in self._index.jobs or (reconciler := self._reconcilers.get(job_id)) is None:
                    continue  # it ended meanwhile
                logger.warning("lost job workflow registered again", extra={"job": job_id})
                reconciler.forget()
                self._changed(job_id, calm=False)

    async def _end_what_is_gone(self) -> None:
        """Ends the workflows of jobs that were deleted or ended while no watcher ran: the first full list does not contain
        them."""
        if self._until_compared is None:
            return
        await self._listed.wait()
        running: set[str] | None = None
        while running is None:
            await asyncio.sleep(self._until_compared)
            try:
                running = await self._workflows.running()
            except Unavailable as error:
                logger.info("jobs not matched with their workflows", extra={"error": str(error)})
        for job_id in running - self._unreadable:
            if job_id not in self._index.jobs:
                logger.warning("workflow of a deleted job ended", extra={"job": job_id})
            self._reconciler_of(job_id).meet()
            self._changed(job_id, calm=False)

    async def _keep_reconsidering(self) -> None:
        while True:
            await asyncio.sleep(RECONSIDER)
            for job_id, reconciler in list(self._reconcilers.items()):
                if reconciler.acknowledged.declined:
                    reconciler.reconsider()
                    self._changed(job_id, calm=False)

    def _begin_anew(self, everything: Snapshot) -> None:
        self.problem, self._steady_at = "", asyncio.get_running_loop().time() + STEADY
        known = (self._index.jobs.get(job_id) for job_id in everything.unreadable)
        jobs = [*everything.jobs, *(job for job in known if job)]
        self._unreadable = frozenset(everything.unreadable)
        self._index = ClusterIndex(jobs, everything.pods, everything.nodes, self._cluster.rules)
        self._doubts.look_at(self._index)
        self._storms.look_at(self._index)
        if self._budgets:
            self._budgets.begin_anew()
        for reconciler in self._reconcilers.values():
            reconciler.reconsider()
        for job_id in {*self._index.jobs, *self._reconcilers}:
            self._changed(job_id, calm=False)
        self._listed.set()

    def _take(self, event: WatchEvent) -> None:
        jobs = self._index.remove(event.object) if event.type == "DELETED" else self._index.put(event.object)
        if isinstance(event.object, Node):
            self._doubts.look_at(self._index)
            self._storms.look_at(self._index)
        for job_id in jobs:
            self._changed(job_id, calm=self._is_calm(event))

    def _is_calm(self, event: WatchEvent) -> bool:
        """Returns whether an event can wait for others: a pod that waits, starts or runs on a healthy node."""
        thing = event.object
        if not isinstance(thing, Pod) or event.type == "DELETED":
            return False
        lives = thing.metadata.deletion_timestamp is None and thing.status.phase is not PodPhase.FAILED
        return lives and not self._index.is_wrong(thing.spec.node_name)

    def _changed(self, job_id: str, *, calm: bool) -> None:
        """Starts the job's reconciler unless it runs."""
        if job_id not in self._reconcilers and job_id not in self._index.jobs:
            return  # its pods were seen before the job, or after its end
        reconciler = self._reconciler_of(job_id)
        if not calm:
            reconciler.hurry()
        if job_id not in self._busy:
            self._busy.add(job_id)
            self._tasks.create_task(self._reconcile(job_id, reconciler))

    def _reconciler_of(self, job_id: str) -> Reconciler:
        if job_id not in self._reconcilers:
            self._reconcilers[job_id] = self._reconciler(job_id)
        return self._reconcilers[job_id]

    def _reconciler(self, job_id: str) -> Reconciler:
        def look() -> Shown:
            now = shown(self._index.view(job_id), self._limits, self._index.rules)
            return in_storm(now, self._storms.reason, recovers=self._storms.recovers(job_id))

        def refuse(why: str) -> None:
            self._tasks.create_task(self._record_refusal(job_id, why))

        return Reconciler(job_id, look, self._workflows, refuse)

    async def _reconcile(self, job_id: str, reconciler: Reconciler) -> None:
        """Runs the reconciler of a job. An unexpected error in one job does not stop the watch of the others."""
        while job_id in self._busy:
            try:
                await reconciler.run()
                self._busy.discard(job_id)
            except Exception:
                logger.exception("job not observed, retrying", extra={"job": job_id})
                await asyncio.sleep(BROKEN)
        if reconciler.acknowledged.job and self._budgets:
            self._budgets.look_at(job_id)
        if job_id not in self._index.jobs and not reconciler.acknowledged.reached:
            self._reconcilers.pop(job_id, None)
            if self._budgets:
                self._budgets.forget(job_id)

    async def _record_refusal(self, job_id: str, why: str) -> None:
        """Records on the job, where its owner looks, why it was refused."""
        job = self._index.jobs.get(job_id)
        if job is None:
            return
        logger.warning("job refused", extra={"job": job_id, "job_name": job.metadata.name, "error": why})
        event = ClusterEvent(name=job.metadata.name, kind=job.kind, reason="JobRefused", message=why, type="Warning")
        try:
            async with self._recording:
                await self._cluster.record(job_id, event)
        except (BadInput, ClusterError) as error:  # its object may have changed, and may be invalid by now
            logger.warning("event about a refused job not recorded", extra={"job": job_id, "error": str(error)})
