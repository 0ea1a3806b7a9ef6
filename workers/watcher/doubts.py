"""Says which rules begin and cease to be believed: in the log, and on the jobs concerned. Used by the watcher."""

import asyncio
import logging
from contextlib import suppress

from activities.clusters.port import Cluster
from rekindle.errors import BadInput, ClusterError
from rekindle.model.cluster import ClusterEvent, JobObject
from rekindle.model.rules import Unbelieved
from workers.watcher.cluster_index import ClusterIndex

AGAIN = 600.0
"""Seconds before jobs are told again of the same rule: what comes and goes around the limit is no news each time."""

logger = logging.getLogger("watcher")


class Doubts:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._doubted: dict[str, Unbelieved] = {}
        self._told_at: dict[str, float] = {}
        """By rule, when jobs were told last that it is not believed."""
        self._concerned: asyncio.Queue[tuple[JobObject, str]] = asyncio.Queue()

    def look_at(self, index: ClusterIndex) -> None:
        """Behind every change of a node."""
        before, self._doubted = self._doubted, {one.rule: one for one in index.unbelieved}
        for rule in sorted(self._doubted.keys() - before.keys()):
            logger.warning("a rule is not believed", extra=self._doubted[rule].model_dump(mode="json"))
            self._tell(index, rule)
        for rule in sorted(before.keys() - self._doubted.keys()):
            logger.warning("a rule is believed again", extra={"rule": rule})

    def _tell(self, index: ClusterIndex, rule: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._told_at.get(rule, -AGAIN) > now - AGAIN:
            return
        self._told_at[rule] = now
        for job_id in sorted(index.concerned({rule}) & index.jobs.keys()):
            self._concerned.put_nowait((index.jobs[job_id], rule))

    async def run(self) -> None:
        """Until it is cancelled. One event after the other: there may be thousands, and none of them is in a hurry."""
        while True:
            job, rule = await self._concerned.get()
            if rule in self._doubted:
                with suppress(BadInput, ClusterError):
                    await self._cluster.record(job.metadata.uid, _event(job, self._doubted[rule]))


def _event(job: JobObject, doubted: Unbelieved) -> ClusterEvent:
    words = f"not believed, so that nothing is done about it: {doubted.words}"
    return ClusterEvent(name=job.metadata.name, kind=job.kind, reason="RuleNotBelieved", message=words, type="Warning")
