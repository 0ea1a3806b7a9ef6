"""Jobs of other systems' kinds: a namespace with their controllers, and the port over it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.port import Snapshot
from rekindle.model.cluster import Pod, PodPhase
from rekindle.settings import Settings
from tests.fakes.controller import Controller, apply_crds, labels_of, pods_until
from tests.fakes.kubeflow import kubeflow
from tests.kubernetes.world.control_plane import Namespace
from tests.kubernetes.world.worlds import Watching


class Setting(Watching):
    """Namespace with its controllers, and the port over it."""

    def __init__(self, namespace: Namespace, cluster: KubernetesCluster, peers: Mapping[str, Controller]) -> None:
        self.namespace, self.cluster, self.peers = namespace, cluster, peers

    async def running(self, job: Object, pods: int = 4) -> str:
        """Returns the UID of a job, as soon as this number of its pods run."""
        uid = str(job["metadata"]["uid"])

        def run(found: Sequence[Pod]) -> bool:
            return len(found) == pods and all(pod.status.phase is PodPhase.RUNNING for pod in found)

        await self.until(uid, run)
        return uid

    async def raw(self, pod: Pod) -> Object:
        return await self.namespace.api.get(self.namespace.path("pods", pod.metadata.name))

    async def hot_switch(self, uid: str, rank: str, name: str) -> Pod:
        """Runs a hot switch on the cluster level, and returns the pod that took over."""
        old = await self.holder(uid, rank)
        backup = await self.until_runs(uid, await self.cluster.ensure_backup(old, name, ()))
        await self.cluster.ensure_deleted(uid, old.metadata.name, old.metadata.uid, 0)
        await self.until_gone(uid, old)
        await self.cluster.ensure_promoted(uid, backup.metadata.name, backup.metadata.uid)
        return backup

    async def settled(self, pod: Pod) -> None:
        """Returns when the pod's controller has processed the current state of the pod."""
        raw = await self.raw(pod)
        (owner,) = (one for one in raw["metadata"]["ownerReferences"] if one["controller"])
        if owner["kind"] != "Job":
            await self.peers[owner["kind"]].saw(raw)
            return
        job = await self.namespace.api.get(self.namespace.path("jobs", owner["name"]))
        more = job["spec"]["completions"] + 1  # the real controller shows only by its actions that it is up to date
        await self.namespace.api.patch(
            self.namespace.path("jobs", owner["name"]), {"spec": {"completions": more, "parallelism": more}}
        )
        index = "batch.kubernetes.io/job-completion-index"
        mine = {"batch.kubernetes.io/job-name": owner["name"], index: str(more - 1)}
        await pods_until(self.namespace, lambda pods: any(mine.items() <= labels_of(one).items() for one in pods))

    async def snapshot(self) -> Snapshot:
        async with aclosing(self.cluster.watch()) as news:
            first = await anext(news)
            assert isinstance(first, Snapshot)
            return first


@asynccontextmanager
async def a_setting(api: Api, namespace: Namespace) -> AsyncIterator[Setting]:
    """Yields a namespace with its controllers.

    Args:
        api: client that the port uses.
    """
    await apply_crds(namespace.api)
    cluster = KubernetesCluster(api, Settings(cluster="kubernetes", namespaces=(namespace.name,)))
    async with kubeflow(namespace) as peers:
        try:
            yield Setting(namespace, cluster, peers)
        finally:
            await cluster.close()
