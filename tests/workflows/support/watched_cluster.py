"""Scripted cluster with a watch, and the real watcher over it: jobs are registered and observed as in production."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Literal

from temporalio.client import Client

from activities.clusters.port import Snapshot
from rekindle.model.cluster import Condition, JobObject, Node, Pod, WatchEvent
from rekindle.model.job import Job
from rekindle.model.keys import CAPABILITIES, SUB_HEALTHY_STRATEGY
from rekindle.model.limits import Limits
from tests.fakes.scripted_cluster import ScriptedCluster
from workers.watcher.job_workflows import TemporalJobWorkflows
from workers.watcher.watcher import Watcher


class WatchedCluster(ScriptedCluster):
    """Cluster that sends every change of a pod or node to its watchers."""

    def __init__(self, job: Job, nodes: int = 3) -> None:
        self._watchers: list[asyncio.Queue[WatchEvent]] = []
        super().__init__(job, nodes)

    def heal(self, name: str) -> None:
        self.conditions.pop(name, None)
        self._changed("MODIFIED", "Node", self._node(name))

    def degrade(self, name: str) -> None:
        """Makes a node sub-healthy."""
        since = datetime.now(UTC)
        sick = Condition(type="SubHealthy", status="True", reason="80E18005", message="NPU link", last_transition_time=since)
        self.conditions[name] = (sick,)
        self._changed("MODIFIED", "Node", self._node(name))

    async def job(self, job_id: str) -> JobObject:
        """Returns the job object with the labels and annotations of its owner."""
        job, words = await super().job(job_id), ",".join(self.job_model.capabilities)
        labels = {SUB_HEALTHY_STRATEGY: self.job_model.sub_health.value}
        metadata = job.metadata.model_copy(update={"labels": labels, "annotations": {CAPABILITIES: words}})
        return job.model_copy(update={"metadata": metadata})

    async def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        changes: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watchers.append(changes)
        try:
            job = await self.job(self.job_model.id)
            yield Snapshot(
                jobs=[job], pods=list(self.pods_by_name.values()), nodes=[self._node(name) for name in self.node_names]
            )
            while True:
                yield await changes.get()
        finally:
            self._watchers.remove(changes)

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        before = self.pods_by_name.get(name)
        await super().ensure_deleted(job_id, name, uid, grace_seconds)
        if before and name not in self.pods_by_name:
            self._changed("DELETED", "Pod", before)

    def _put(self, pod: Pod) -> Pod:
        stored = super()._put(pod)
        self._changed("MODIFIED", "Pod", stored)
        return stored

    def _node(self, name: str) -> Node:
        node = Node.model_validate({"metadata": {"name": name, "uid": f"uid-of-{name}"}, "status": {"accelerators": 8}})
        metadata = node.metadata.model_copy(update={"resource_version": next(self._versions)})
        status = node.status.model_copy(update={"conditions": self.conditions.get(name, ())})
        return node.model_copy(update={"metadata": metadata, "status": status})

    def _changed(self, kind: Literal["MODIFIED", "DELETED"], what: Literal["Pod", "Node"], thing: Pod | Node) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(WatchEvent.model_construct(type=kind, kind=what, object=thing))


@asynccontextmanager
async def watched(client: Client, cluster: WatchedCluster) -> AsyncIterator[None]:
    """Runs the real watcher until the block ends."""
    watcher = asyncio.create_task(Watcher(cluster, TemporalJobWorkflows(client), Limits(), listed=None).run())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
