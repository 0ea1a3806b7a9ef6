"""Reports rules that are no longer believed, or believed again, in the log and on the jobs concerned. Used by the watcher."""

import asyncio
import logging
from contextlib import suppress

from activities.clusters.port import Cluster
from rekindle.errors import BadInput, ClusterError
from rekindle.model.cluster import ClusterEvent, JobObject
from rekindle.model.rules import Unbelieved
from workers.watcher.cluster_index import ClusterIndex

AGAIN = 600.0
"""Seconds before the same rule is reported on jobs again, so that changes around the limit do not cause repeated events."""

logger = logging.getLogger("watcher")


class Doubts:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._doubted: dict[str, Unbelieved] = {}
        self._told_at: dict[str, float] = {}
        """Time at which jobs were last informed that the rule is not believed, by rule."""
        self._concerned: asyncio.Queue[tuple[JobObject, str]] = asyncio.Queue()

    def look_at(self, index: ClusterIndex) -> None:
        """Compares the rules that are not believed with those before. Called after every change of a node."""
        before, self._doubted = self._doubted, {one.rule: one for one in index.unbelieved}
        for rule in sorted(self._doubted.keys() - before.keys()):
            logger.warning("rule suspended", extra=self._doubted[rule].model_dump(mode="json"))
            self._tell(index, rule)
        for rule in sorted(before.keys() - self._doubted.keys()):
            logger.warning("rule restored", extra={"rule": rule})

    def _tell(self, index: ClusterIndex, rule: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._told_at.get(rule, -AGAIN) > now - AGAIN:
            return
        self._told_at[rule] = now
        for job_id in sorted(index.concerned({rule}) & index.jobs.keys()):
            self._concerned.put_nowait((index.jobs[job_id], rule))

    async def run(self) -> None:
        """Records events until it is cancelled, one after the other: there may be thousands, and none is urgent."""
        while True:
            job, rule = await self._concerned.get()
            if rule in self._doubted:
                with suppress(BadInput, ClusterError):
                    await self._cluster.record(job.metadata.uid, _event(job, self._doubted[rule]))


def _event(job: JobObject, doubted: Unbelieved) -> ClusterEvent:
    words = f"not believed, so that nothing is done about it: {doubted.words}"
    return ClusterEvent(name=job.metadata.name, kind=job.kind, reason="RuleNotBelieved", message=words, type="Warning")
