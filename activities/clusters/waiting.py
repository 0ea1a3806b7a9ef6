"""Waits for pods by the cluster's watch, without polling. Used by `activities/pods.py`."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import timedelta

from activities.clusters.port import Cluster
from rekindle.errors import ClusterUnavailable, WatchExpired
from rekindle.model.cluster import Pod

REWATCH = 0.2
"""Seconds before a broken watch is opened again."""

Wanted = Callable[[Pod], bool]
Done = Callable[[Sequence[Pod]], bool]


async def until(cluster: Cluster, job_id: str, wanted: Wanted, within: timedelta, done: Done) -> list[Pod]:
    """Returns the wanted pods of a job as soon as they satisfy `done`, or in their last state when the time is over."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            while True:
                try:
                    return await _watch(cluster, job_id, wanted, done)
                except (WatchExpired, ClusterUnavailable):
                    await asyncio.sleep(REWATCH)
    except TimeoutError:
        return [pod for pod in await cluster.pods(job_id) if wanted(pod)]


async def _watch(cluster: Cluster, job_id: str, wanted: Wanted, done: Done) -> list[Pod]:
    async with aclosing(cluster.follow(job_id)) as states:
        async for everyone in states:
            pods = [pod for pod in everyone if wanted(pod)]
            if done(pods):
                return pods
    raise WatchExpired("the watch ended")
