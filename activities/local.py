"""The driver for the local cluster: the port `Cluster`, spoken over its Unix socket. Made by `workers`."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rekindle.cluster_client import ClusterClient
from rekindle.errors import Conflict, NotFound
from rekindle.model import keys
from rekindle.model.cluster import ClusterEvent, JobObject, Node, ObjectMeta, Pod, PodRole, PodSpec, WatchEvent


class LocalCluster:
    """Implements `activities.cluster.Cluster`."""

    def __init__(self, socket: Path) -> None:
        self._client = ClusterClient(socket)

    async def close(self) -> None:
        await self._client.close()

    async def jobs(self) -> list[JobObject]:
        return await self._client.jobs()

    async def job(self, job_id: str) -> JobObject:
        job = await self._client.job(job_id)
        if job.metadata.uid != job_id:
            raise NotFound(f"no job has the UID {job_id}")
        return job

    async def pods(self, job_id: str) -> list[Pod]:
        return await self._client.pods(job_id)

    async def all_pods(self) -> list[Pod]:
        """Of all jobs, for the watcher."""
        return await self._client.pods()

    async def nodes(self) -> list[Node]:
        return await self._client.nodes()

    async def pod(self, job_id: str, name: str, uid: str) -> Pod:
        pod = await self._client.pod(name)
        if (pod.metadata.uid, pod.metadata.owner_uid) != (uid, job_id):
            raise NotFound(f"no pod {name} of job {job_id} has the UID {uid}; it has {pod.metadata.uid} now")
        return pod

    def watch(self) -> AsyncIterator[WatchEvent]:
        return self._client.watch()

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        wanted = _backup(old, name, avoid_nodes)
        try:
            return await self._client.create_pod(wanted)
        except Conflict:
            found = await self._client.pod(name)
            if _rank_of(found) != _rank_of(wanted) or found.metadata.deletion_timestamp:
                raise
            return found

    async def ensure_promoted(self, job_id: str, name: str, uid: str) -> None:
        pod = await self.pod(job_id, name, uid)
        marks = {key: None for key in (keys.POD_TYPE, keys.BACKUP_SOURCE) if key in pod.metadata.annotations}
        if marks:
            await self._client.patch_pod(name, uid, {}, marks)

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        try:
            pod = await self.pod(job_id, name, uid)
            await self._client.delete_pod(name, pod.metadata.uid, grace_seconds)
        except (NotFound, Conflict):
            return

    async def ensure_pods(self, job_id: str, generation: str, avoid_nodes: Sequence[str]) -> list[Pod]:
        return await self._client.ensure_generation(job_id, generation, avoid_nodes)

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        await self._client.patch_job(job_id, labels, annotations)

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        await self.job(job_id)
        await self._client.record(event)


def _rank_of(pod: Pod) -> tuple[str, str | None]:
    return pod.metadata.owner_uid, pod.metadata.annotations.get(keys.RANK_INDEX)


def _backup(old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
    """What the Ascend Operator creates: the same template, the same rank, and marks that go when it takes over."""
    marks = {keys.POD_TYPE: PodRole.BACKUP.value, keys.BACKUP_SOURCE: old.metadata.name}
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=old.metadata.namespace,
            labels=old.metadata.labels,
            annotations={**old.metadata.annotations, **marks},
            owner_uid=old.metadata.owner_uid,
        ),
        spec=PodSpec(
            command=old.spec.command,
            env=old.spec.env,
            accelerators=old.spec.accelerators,
            avoid_nodes=tuple(sorted({*avoid_nodes, old.spec.node_name} - {""})),
            termination_grace_period_seconds=old.spec.termination_grace_period_seconds,
        ),
    )
