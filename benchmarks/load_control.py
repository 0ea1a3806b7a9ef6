"""Control worker over a cluster in memory that answers at once for every job: `python -P -m benchmarks.load_control`.

Started by `benchmarks.load`. Only the cluster differs from the real worker.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from temporalio.worker import UnsandboxedWorkflowRunner

from activities.clusters.port import Cluster
from rekindle.model.cluster import Node, NodeStatus, ObjectMeta, Pod
from rekindle.model.job import Job, JobId
from rekindle.model.rule_file import plain
from rekindle.temporal import connect, ensure_search_attributes
from tests.support.scripted_cluster import ScriptedCluster
from workers.control import control_worker

PODS, RANKS_PER_POD = 2, 2
"""Number of pods of each job, and of ranks of each pod."""


class ManyJobs:
    """Implementation of the port `Cluster`: each job that is named has two running pods and room for another one."""

    def __init__(self) -> None:
        self.rules = plain()
        self._clusters: dict[str, ScriptedCluster] = {}

    def __getattr__(self, name: str) -> Any:
        async def asked(job_id: str, *arguments: Any) -> Any:
            return await getattr(self._of(job_id), name)(job_id, *arguments)

        return asked

    async def node(self, name: str) -> Node:
        return Node(metadata=ObjectMeta(name=name, uid=f"uid-of-{name}"), status=NodeStatus(accelerators=8))

    def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        return self._of(job_id).follow(job_id)

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        return await self._of(old.metadata.owner_uid).ensure_backup(old, name, avoid_nodes)

    def _of(self, job_id: str) -> ScriptedCluster:
        if job_id not in self._clusters:
            self._clusters[job_id] = ScriptedCluster(Job(id=JobId(job_id), name=job_id, pods=PODS, ranks_per_pod=RANKS_PER_POD))
        return self._clusters[job_id]


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client, cluster = await connect(), ManyJobs()
    await ensure_search_attributes(client)
    scripted: Cluster = cluster  # most of its methods are created on demand
    async with control_worker(client, scripted, UnsandboxedWorkflowRunner()):
        print("ready control", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
