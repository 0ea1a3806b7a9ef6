"""Control worker over a cluster in memory that answers at once for every job: `python -P -m benchmarks.load_control`.

Started by `benchmarks.load` and `benchmarks.outages`. Only the cluster differs from the real worker.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from temporalio.worker import UnsandboxedWorkflowRunner

from activities.clusters.port import Cluster
from rekindle.model.cluster import Node, NodeStatus, ObjectMeta, Pod
from rekindle.model.job import Job, JobId
from rekindle.model.keys import POD_TYPE, RANK_INDEX
from rekindle.model.rule_file import plain
from rekindle.temporal import connect, ensure_search_attributes
from rekindle.worker_plugin import plugin
from tests.fakes.scripted_cluster import ScriptedCluster
from workers.control import control_worker

PODS, RANKS_PER_POD = 2, 2
"""Number of pods of each job, and of ranks of each pod."""

NODES = ("node-0", "node-1", "node-2")
"""Nodes of the pods, and one with room for another pod."""


class ToldCluster(ScriptedCluster):
    """Writes a line with all pods of the job after each change, for the benchmark that runs their processes."""

    def __init__(self, job: Job, file: Path) -> None:
        self._file = file
        super().__init__(job)

    def _tell(self) -> None:
        super()._tell()
        pods = [
            {
                "name": pod.metadata.name,
                "uid": pod.metadata.uid,
                "node": pod.spec.node_name,
                "rank": int(pod.metadata.annotations[RANK_INDEX]),
                "backup": POD_TYPE in pod.metadata.annotations,
            }
            for pod in self.pods_by_name.values()
        ]
        with self._file.open("a") as file:
            file.write(json.dumps({"job": self.job_model.id, "pods": pods}) + "\n")


class ManyJobs:
    """Implementation of the port `Cluster`: each job that is named has two running pods and room for another one."""

    def __init__(self, pods_file: Path | None = None) -> None:
        self.rules = plain()
        self._pods_file = pods_file
        self._clusters: dict[str, ScriptedCluster] = {}

    def __getattr__(self, name: str) -> Any:
        async def asked(job_id: str, *arguments: Any) -> Any:
            return await getattr(self._of(job_id), name)(job_id, *arguments)

        return asked

    async def nodes(self) -> Sequence[Node]:
        """Pods and nodes of each job, under the same names in all of them."""
        return [await self.node(name) for name in NODES]

    async def node(self, name: str) -> Node:
        return Node(metadata=ObjectMeta(name=name, uid=f"uid-of-{name}"), status=NodeStatus(accelerators=8))

    def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        return self._of(job_id).follow(job_id)

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        return await self._of(old.metadata.owner_uid).ensure_backup(old, name, avoid_nodes)

    def _of(self, job_id: str) -> ScriptedCluster:
        if job_id not in self._clusters:
            self.begin(job_id)
        return self._clusters[job_id]

    def begin(self, job_id: str) -> None:
        job = Job(id=JobId(job_id), name=job_id, pods=PODS, ranks_per_pod=RANKS_PER_POD)
        self._clusters[job_id] = ToldCluster(job, self._pods_file) if self._pods_file else ScriptedCluster(job)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods-file", type=Path, help="where to write the pods of each job")
    parser.add_argument("jobs", nargs="*", help="jobs whose pods are there from the beginning")
    options = parser.parse_args()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client, cluster = await connect(plugins=[plugin()]), ManyJobs(options.pods_file)
    for job_id in options.jobs:
        cluster.begin(job_id)
    await ensure_search_attributes(client)
    scripted: Cluster = cluster  # most of its methods are created on demand
    async with control_worker(client, scripted, UnsandboxedWorkflowRunner()):
        print("ready control", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
