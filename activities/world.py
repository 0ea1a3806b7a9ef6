"""Waiting for pods by the cluster's watch, not by polling. Used by `activities/pods.py`."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

from activities.cluster import Cluster
from rekindle.errors import ClusterUnavailable, WatchExpired
from rekindle.model.cluster import Pod

REWATCH = 0.2
"""Seconds before a broken watch is opened again."""

Done = Callable[[Sequence[Pod]], bool]


async def until(cluster: Cluster, job_id: str, uids: set[str], deadline: datetime, done: Done) -> list[Pod]:
    """The pods with these UIDs, as soon as they satisfy `done`, or as they are at the deadline."""
    limit = max(0.0, (deadline - datetime.now(UTC)).total_seconds())
    try:
        async with asyncio.timeout(limit):
            while True:
                try:
                    return await _watch(cluster, job_id, uids, done)
                except (WatchExpired, ClusterUnavailable):
                    await asyncio.sleep(REWATCH)
    except TimeoutError:
        return [pod for pod in await cluster.pods(job_id) if pod.metadata.uid in uids]


async def _watch(cluster: Cluster, job_id: str, uids: set[str], done: Done) -> list[Pod]:
    async with aclosing(cluster.follow(job_id)) as states:
        async for everyone in states:
            pods = [pod for pod in everyone if pod.metadata.uid in uids]
            if done(pods):
                return pods
    raise WatchExpired("the watch ended")
