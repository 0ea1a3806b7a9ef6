"""Waiting for pods by the cluster's watch, not by polling. Used by `activities/pods.py`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

from activities.cluster import Cluster
from rekindle.errors import ClusterUnavailable, WatchExpired
from rekindle.model.cluster import Pod, WatchEvent

REWATCH = 0.2
"""Seconds before a broken watch is opened again."""

Done = Callable[[Sequence[Pod]], bool]


async def until(cluster: Cluster, job_id: str, uids: set[str], deadline: datetime, done: Done) -> list[Pod]:
    """The pods with these UIDs, as soon as they satisfy `done`, or as they are at the deadline."""
    limit = max(0.0, (deadline - datetime.now(UTC)).total_seconds())
    try:
        async with asyncio.timeout(limit):
            return await _watch(cluster, job_id, uids, done)
    except TimeoutError:
        return [pod for pod in await cluster.pods(job_id) if pod.metadata.uid in uids]


async def _watch(cluster: Cluster, job_id: str, uids: set[str], done: Done) -> list[Pod]:
    while True:
        try:
            events = cluster.watch()
            first = await anext(events)  # the watch is open: what changes from here on is not missed by the list
            pods = {pod.metadata.uid: pod for pod in await cluster.pods(job_id) if pod.metadata.uid in uids}
            if not done(list(pods.values())):
                apply(pods, uids, first)
                await _follow(events, uids, pods, done)
            return list(pods.values())
        except (WatchExpired, ClusterUnavailable, StopAsyncIteration):
            await asyncio.sleep(REWATCH)


async def _follow(events: AsyncIterator[WatchEvent], uids: set[str], pods: dict[str, Pod], done: Done) -> None:
    async for event in events:
        if apply(pods, uids, event) and done(list(pods.values())):
            return
    raise WatchExpired("the watch ended")


def apply(pods: dict[str, Pod], uids: set[str], event: WatchEvent) -> bool:
    """Brings `pods` up to date with one event; False when it is about something else, or older than what is known."""
    pod = event.object
    if not isinstance(pod, Pod) or pod.metadata.uid not in uids:
        return False
    known = pods.get(pod.metadata.uid)
    if event.type == "DELETED":
        return pods.pop(pod.metadata.uid, None) is not None
    if known is None or pod.metadata.resource_version < known.metadata.resource_version:
        return False
    pods[pod.metadata.uid] = pod
    return True
