"""Clusters of every kind for the same tests: the port, and what an administrator does. Each driver is a row of `WORLDS`."""

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.driver import KubernetesCluster
from activities.clusters.kubernetes.kinds.batch_job import BATCH_JOB_NAME, COMPLETION_INDEX
from activities.clusters.local import LocalCluster
from activities.clusters.port import Cluster
from rekindle.cluster_client import ClusterClient
from rekindle.errors import Conflict
from rekindle.model import keys
from rekindle.model.cluster import Pod, PodPhase
from rekindle.settings import Settings
from simulators.kubernetes.kubelet import LOST
from simulators.local_cluster.guardian import kill_carriers
from tests.fakes.api_proxy import ApiProxy, api_proxy
from tests.fakes.ascend_operator import jobs_path, submit_ascend_job
from tests.fakes.controller import apply_crds, labels_of, pods_until
from tests.fakes.volcano import operator_and_volcano
from tests.kubernetes.world.control_plane import ACCELERATOR, Namespace, a_namespace
from tests.support.cluster import FOREVER, job_object, local_cluster
from workers.operator import Operator

WAIT_LIMIT = 60.0
NODES = ("node-0", "node-1", "node-2")
"""Names of the nodes, which have two accelerators each."""

_numbers = itertools.count(1)


class Watching:
    """Waits for pods of a job over the port."""

    cluster: Cluster

    async def until(self, job_id: str, condition: Callable[[Sequence[Pod]], bool]) -> Sequence[Pod]:
        """Returns the job's pods as soon as they satisfy a condition."""
        async with asyncio.timeout(WAIT_LIMIT), aclosing(self.cluster.follow(job_id)) as states:
            async for pods in states:
                if condition(pods):
                    return pods
        raise AssertionError("a watch has no end")

    async def until_gone(self, job_id: str, *gone: Pod) -> None:
        uids = {pod.metadata.uid for pod in gone}
        await self.until(job_id, lambda pods: not uids & {pod.metadata.uid for pod in pods})

    async def until_runs(self, job_id: str, pod: Pod) -> Pod:
        def running(pods: Sequence[Pod]) -> list[Pod]:
            return [one for one in pods if one.metadata.uid == pod.metadata.uid and one.status.phase is PodPhase.RUNNING]

        return running(await self.until(job_id, lambda pods: bool(running(pods))))[0]

    async def holder(self, job_id: str, rank: int | str) -> Pod:
        """Returns the pod of a rank, ignoring backups."""
        pods = await self.cluster.pods(job_id)
        return next(pod for pod in pods if rank_of(pod) == str(rank) and keys.POD_TYPE not in pod.metadata.annotations)


class World(Watching, ABC):
    """Empty cluster, and the operations of its administrator."""

    shows_managers = True
    """True if the manager is a pod of the job itself."""

    has_standbys = True
    """True if the control plane may create pods of a job that have no rank and end with it."""

    by_our_hand = True
    """True if the control plane creates the pods, and chooses their nodes and generation; otherwise the Ascend Operator and
    Volcano do."""

    @abstractmethod
    async def submit(
        self, pods: int, command: Sequence[str], accelerators: int, labels: Mapping[str, str], manager: Sequence[str] | None
    ) -> str:
        """Creates a job called `demo` with one rank per pod; returns its UID."""

    @abstractmethod
    async def delete(self, pod: Pod) -> None:
        """Deletes a pod as `kubectl delete pod --force` does."""

    @abstractmethod
    def without(self, node: str) -> AbstractAsyncContextManager[None]:
        """Makes a node unreachable until the block ends."""

    async def kill(self, job_id: str, pod: Pod) -> None:
        """Kills the pod's processes from outside. Returns when the pod has failed, or was deleted because of that."""
        kill_carriers(f"{keys.ENV_POD_UID}={pod.metadata.uid}")
        living = {(pod.metadata.uid, PodPhase.RUNNING)}
        await self.until(job_id, lambda pods: not living & {(one.metadata.uid, one.status.phase) for one in pods})

    async def settle(self) -> None:
        """Returns when the job's controller has processed the current state."""
        return

    @abstractmethod
    async def labels(self, job_id: str) -> dict[str, str]:
        """Returns the job's labels and annotations where a person sees them."""

    @abstractmethod
    async def reasons(self) -> set[str]:
        """Returns the reasons of the events about the job."""

    @abstractmethod
    async def break_watches(self) -> None:
        """Breaks all watches, as a cluster may at any time."""

    async def job(
        self,
        pods: int = 1,
        *,
        command: Sequence[str] = FOREVER,
        accelerators: int = 1,
        labels: Mapping[str, str] | None = None,
        manager: Sequence[str] | None = None,
    ) -> str:
        """Creates a job, and returns its UID when its pods run."""
        job_id = await self.submit(pods, command, accelerators, labels or {keys.SUB_HEALTHY_STRATEGY: "hotSwitch"}, manager)
        expected = pods + (manager is not None and self.shows_managers)
        await self.until(job_id, lambda pods: len(pods) == expected and all(pod.status.phase is PodPhase.RUNNING for pod in pods))
        await self.until_known(job_id)
        return job_id

    async def until_known(self, job_id: str) -> None:
        """Returns when all other controllers that have to know it know that the job runs."""
        return


Answer = TypeVar("Answer")


async def tried(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Retries a call on Conflict, as Temporal does: a controller may lag slightly, or write between our read and write."""
    async with asyncio.timeout(WAIT_LIMIT):
        while True:
            try:
                return await call()
            except Conflict:
                await asyncio.sleep(0.1)  # no watch shows when a template may be changed


def rank_of(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(keys.RANK_INDEX)


class LocalWorld(World):
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.cluster = LocalCluster(client.socket)

    async def submit(
        self, pods: int, command: Sequence[str], accelerators: int, labels: Mapping[str, str], manager: Sequence[str] | None
    ) -> str:
        job = job_object("demo", command=command, pods=pods, accelerators=accelerators, labels=labels, manager=manager)
        return (await self._client.submit(job)).metadata.uid

    async def delete(self, pod: Pod) -> None:
        await self._client.delete_pod(pod.metadata.name, pod.metadata.uid, 0)

    @asynccontextmanager
    async def without(self, node: str) -> AsyncIterator[None]:
        await self._client.take_down(node)
        yield

    async def labels(self, job_id: str) -> dict[str, str]:
        metadata = (await self._client.job(job_id)).metadata
        return {**metadata.labels, **metadata.annotations}

    async def reasons(self) -> set[str]:
        return {event.reason for event in await self._client.events("demo")}

    async def break_watches(self) -> None:
        await self._client.break_watches()


class KubernetesWorld(World):
    """Jobs of one kind in a namespace of their own, through a proxy that can end watches."""

    def __init__(self, namespace: Namespace, proxy: ApiProxy, cluster: KubernetesCluster) -> None:
        self.namespace, self.proxy, self.cluster = namespace, proxy, cluster
        self.path = ""
        """Path of the job object."""

    async def delete(self, pod: Pod) -> None:
        await self.namespace.api.delete(self.namespace.path("pods", pod.metadata.name), pod.metadata.uid, 0)

    @asynccontextmanager
    async def without(self, node: str) -> AsyncIterator[None]:
        api, path = self.namespace.api, f"/api/v1/nodes/{node}"
        await api.patch(path, {"metadata": {"annotations": {LOST: "yes"}}})
        try:
            said = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no word of it"}
            await api.patch(f"{path}/status", {"status": {"conditions": [said]}})  # as if its lease had expired
            yield
        finally:
            await api.patch(path, {"metadata": {"annotations": {LOST: None}}})
            await self.namespace.until("nodes", node, is_ready)

    async def labels(self, job_id: str) -> dict[str, str]:
        metadata = (await self.namespace.api.get(self.path))["metadata"]
        return {**metadata.get("labels", {}), **metadata.get("annotations", {})}

    async def reasons(self) -> set[str]:
        events = await self.namespace.api.list(self.namespace.path("events"))
        return {event["reason"] for event in events.items}

    async def break_watches(self) -> None:
        await self.proxy.until_watched()
        self.proxy.expire_watches()

    async def limit(self, **limits: float) -> None:
        """Sets limits of the job in seconds, as its owner does."""
        await self.namespace.api.patch(self.path, {"metadata": {"annotations": {keys.LIMITS: json.dumps(limits)}}})

    async def create(self, path: str, body: Object) -> Object:
        created = await self.namespace.api.create(path, body)
        self.path = f"{path}/{created['metadata']['name']}"
        return created


class OwnKind(KubernetesWorld):
    """Our own kind, served by our operator."""

    async def submit(
        self, pods: int, command: Sequence[str], accelerators: int, labels: Mapping[str, str], manager: Sequence[str] | None
    ) -> str:
        spec: Object = {"pods": pods, "ranksPerPod": 1, "command": list(command), "accelerators": accelerators}
        spec |= {"manager": list(manager) if manager else None, "kubernetes": {"image": "none"}}
        path = f"/apis/rekindle.io/v1/namespaces/{self.namespace.name}/trainingjobs"
        job = await self.create(
            path,
            {
                "apiVersion": "rekindle.io/v1",
                "kind": "TrainingJob",
                "metadata": {"name": "demo", "labels": dict(labels)},
                "spec": spec,
            },
        )
        return str(job["metadata"]["uid"])

    async def limit(self, **limits: float) -> None:
        await self.namespace.api.patch(self.path, {"spec": {"limits": limits}})


class IndexedJob(KubernetesWorld):
    """A batch Job with indexed completion, counted by the real controller."""

    shows_managers = False

    async def submit(
        self, pods: int, command: Sequence[str], accelerators: int, labels: Mapping[str, str], manager: Sequence[str] | None
    ) -> str:
        spec = {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed",
            "backoffLimit": 100,
            "template": {"spec": pod_spec(command, accelerators)},
        }
        job = await self.create(self.namespace.path("jobs"), {"metadata": {"name": "demo", "labels": dict(labels)}, "spec": spec})
        if manager:
            await self.namespace.api.create(self.namespace.path("pods"), a_manager({keys.MANAGER_OF: "demo"}, manager))
        return str(job["metadata"]["uid"])

    async def settle(self) -> None:
        """Returns when the real controller has created a pod for an additional index, as only its actions show that it is up
        to date."""
        job = await self.namespace.api.get(self.path)
        more = job["spec"]["completions"] + 1
        await self.namespace.api.patch(self.path, {"spec": {"completions": more, "parallelism": more}})
        mine = {BATCH_JOB_NAME: "demo", COMPLETION_INDEX: str(more - 1)}
        await pods_until(self.namespace, lambda pods: any(mine.items() <= labels_of(one).items() for one in pods))


class BarePods(KubernetesWorld):
    """Pods without a controller."""

    has_standbys = False

    async def submit(
        self, pods: int, command: Sequence[str], accelerators: int, labels: Mapping[str, str], manager: Sequence[str] | None
    ) -> str:
        job_id = f"{self.namespace.name}.demo"
        for rank in reversed(range(pods)):
            own = {**labels, keys.JOB_ID: job_id, keys.BARE_JOB_NAME: "demo"}
            metadata = {"name": f"demo-{rank}", "labels": own, "annotations": {keys.RANK_INDEX: str(rank), keys.PODS: str(pods)}}
            await self.create(self.namespace.path("pods"), {"metadata": metadata, "spec": pod_spec(command, accelerators)})
        if manager:
            body = a_manager({keys.JOB_ID: job_id, keys.BARE_JOB_NAME: "demo"}, manager)
            await self.namespace.api.create(self.namespace.path("pods"), body)
        return job_id


class Operated(KubernetesWorld):
    """AscendJob with a simulated Ascend Operator and a simulated Volcano."""

    shows_managers = False
    has_standbys = False
    by_our_hand = False

    async def submit(
        self, pods: int, command: Sequence[str], accelerators: int, labels: Mapping[str, str], manager: Sequence[str] | None
    ) -> str:
        marks = {"fault-scheduling": "force", **labels}
        job = await submit_ascend_job(
            self.namespace, workers=pods - 1, accelerators=accelerators, labels=marks, command=tuple(command)
        )
        self.path = jobs_path(self.namespace.name, "demo")
        return str(job["metadata"]["uid"])

    async def until_known(self, job_id: str) -> None:
        """Waits until the gang is marked as running: Volcano deletes only pods of running gangs, and notices this a session
        later."""
        await self.namespace.until("podgroups", f"demo-{job_id}", lambda group: group.get("status", {}).get("phase") == "Running")


def is_ready(node: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", ()))


def pod_spec(command: Sequence[str], accelerators: int) -> Object:
    limits = {ACCELERATOR: str(accelerators)} if accelerators else {}
    env = [
        {
            "name": "MINDX_TASK_ID",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}},
        }
    ]
    container = {"name": "main", "image": "none", "command": list(command), "resources": {"limits": limits}, "env": env}
    return {"containers": [container], "restartPolicy": "Never"}


def a_manager(labels: Mapping[str, str], command: Sequence[str]) -> Object:
    metadata = {"name": "demo-manager", "labels": {**labels, keys.REPLICA_TYPE: "manager"}}
    return {"metadata": metadata, "spec": pod_spec(command, 0)}


@asynccontextmanager
async def _local(_: Path, directory: Path) -> AsyncIterator[World]:
    async with local_cluster(directory, nodes=len(NODES), accelerators_per_node=2) as client:
        world = LocalWorld(client)
        yield world
        await world.cluster.close()


def _kubernetes(kind: type[KubernetesWorld]) -> "Callable[[Path, Path], Any]":
    @asynccontextmanager
    async def world(kubeconfig: Path, directory: Path) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            namespace = await stack.enter_async_context(a_namespace(kubeconfig, f"world-{next(_numbers)}"))
            proxy = await stack.enter_async_context(api_proxy(kubeconfig, directory))
            settings = Settings(cluster="kubernetes", kubeconfig=proxy.kubeconfig, namespaces=(namespace.name,))
            await apply_crds(namespace.api)
            await stack.enter_async_context(operator_and_volcano(namespace))
            operator = asyncio.create_task(Operator(namespace.api, settings).run())
            cluster = KubernetesCluster(Api(proxy.kubeconfig), settings)
            try:
                yield kind(namespace, proxy, cluster)
            finally:
                operator.cancel()
                await asyncio.gather(operator, return_exceptions=True)
                await cluster.close()

    return world


WORLDS: dict[str, Callable[[Path, Path], Any]] = {
    "local": _local,
    "direct, TrainingJob": _kubernetes(OwnKind),
    "direct, Job": _kubernetes(IndexedJob),
    "direct, pods": _kubernetes(BarePods),
    "operator": _kubernetes(Operated),
}
