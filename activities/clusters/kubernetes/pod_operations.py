"""Requests that the strategies of a kind use: create, change and delete pods, and write metadata, one request each."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import pod_objects as made
from activities.clusters.kubernetes.kind import PodReader, Workload
from activities.clusters.kubernetes.missing_rank import is_terminating
from rekindle.errors import Conflict, Forbidden, Invalid, NotFound
from rekindle.model import keys
from rekindle.settings import Settings

AT_ONCE = 20
"""Maximum number of requests in flight. It is about the share that the API server gives one client."""

CONTROLLER_LIMIT = 9.0
"""Seconds to wait for an action of a controller; less than the activity's time, so that the error says what was waited for."""

OURS = "rekindle.io/"
"""Prefix of the keys of our own labels and annotations."""

T = TypeVar("T")


@dataclass(frozen=True)
class PodOperations:
    api: Api
    reader: PodReader
    settings: Settings

    # ---- pods

    async def create(self, namespace: str, body: Object, is_ours: Callable[[Object], bool]) -> Object:
        try:
            return await self.api.create(pods_path(namespace), body)
        except Conflict:
            found = await self.api.get(f"{pods_path(namespace)}/{body['metadata']['name']}")
            if not is_ours(found) or is_terminating(found):
                raise
            return found

    async def create_all(self, job: Workload, wanted: Sequence[Object]) -> list[Object]:
        """Creates pods, each once.

        A name that is taken by a pod of another generation or by one of a deleted job is a Conflict. If one of thousands is
        refused, as by a quota, the others are not requested any more.
        """

        def same(body: Object) -> Callable[[Object], bool]:
            return lambda found: (generation_of(found), job_id_of(found)) == (generation_of(body), job_id_of(body))

        refused = asyncio.Event()

        async def made_if_others_are(body: Object) -> list[Object]:
            if refused.is_set():
                return []
            try:
                return [await self.create(job.namespace, body, same(body))]
            except Exception:
                refused.set()
                raise

        return [pod for pods in await side_by_side(made_if_others_are(body) for body in wanted) for pod in pods]

    async def delete(self, pod: Object, grace_seconds: int) -> None:
        await delete_pod(self.api, pod, grace_seconds)

    async def delete_all(self, pods: Sequence[Object], grace_seconds: int) -> None:
        await side_by_side(self.delete(pod, grace_seconds) for pod in pods)

    async def is_there(self, path: str) -> bool:
        try:
            await self.api.get(path)
        except NotFound:
            return False
        return True

    async def as_made(self, job: Workload, pod: Object) -> Object:
        """Returns the pod without changes that others made since its creation, as a clone must be what its owner specified.

        A rank stays, regardless of who wrote it. Pods without controller keep all labels and annotations.
        """
        if not job.kind.has_object:
            return pod
        with suppress(NotFound):
            whole = pod if "managedFields" in pod["metadata"] else await self.api.get(path_of(pod))
            if whole["metadata"]["uid"] == pod["metadata"]["uid"]:
                since = made.written_since(whole["metadata"])
                return made.without(pod, {key for key in since if not self._is_needed(job, key)})
        return pod

    def _is_needed(self, job: Workload, key: str) -> bool:
        own, counts = job.kind.indexing, job.kind.count
        kept = (*own.of_one_pod, own.type_label, *counts.labels, *self.settings.rank_keys, keys.RANK_INDEX, keys.REPLICA_TYPE)
        return key in kept or key.startswith(OURS)

    async def topology(self, job: Workload, pod: Object) -> list[tuple[str, str]]:
        """Returns the node label, and its value, that all pods of the job must share; empty: there is none."""
        key, node = made.topology_of(job, pod), pod["spec"].get("nodeName")
        if not key or not node:
            return []
        labels = (await self.api.get(f"/api/v1/nodes/{node}"))["metadata"].get("labels", {})
        if key not in labels:
            raise Invalid(f"node {node} has no label {key}, which the job's annotation {keys.TOPOLOGY} names")
        return [(key, labels[key])]

    # ---- standbys

    async def taken(self, job: Workload, backup: Object, avoid_nodes: Collection[str]) -> Object | None:
        """Returns a standby that becomes this backup pod, now or in an earlier call.

        None: there is no standby, or the backup pod itself was created before.
        """
        pods, name = pods_path(job.namespace), backup["metadata"]["name"]
        listed = (await self.api.list(pods, labelSelector=f"{keys.STANDBY_OF}={job.uid}")).items
        living = [pod for pod in listed if not is_terminating(pod)]
        if before := next((pod for pod in living if taken_as(pod) == name), None):
            return before
        ready = [pod for pod in living if made.may_stand_in(pod, backup, job, avoid_nodes)]
        if not ready or await self.is_there(f"{pods}/{name}"):
            return None
        for standby in ready:
            with suppress(NotFound):
                return await self.api.patch(path_of(standby), made.taken(standby, backup))
        return None

    async def ensure_standbys(
        self, job: Workload, model: Object | None, names: Sequence[str], avoid_nodes: Sequence[str], surplus: Sequence[Object]
    ) -> list[Object]:
        """Deletes surplus standbys, and creates standbys of these names from a pod as model."""
        await self.delete_all(surplus, 0)
        if not (model and names):
            return []
        affinity = made.placed(model["spec"].get("affinity", {}), avoid_nodes, await self.topology(job, model))
        model = await self.as_made(job, model)
        bodies = [made.standby_of(model, job, name, affinity, self.settings.rank_keys) for name in names]
        return await side_by_side(self._create_standby(job, body) for body in bodies)

    async def _create_standby(self, job: Workload, body: Object) -> Object:
        """Creates a standby. If the priority class of standbys is not installed, the standby has that of its model."""

        def same(found: Object) -> bool:
            return job_id_of(found) == job.uid and keys.STANDBY_OF in found["metadata"].get("labels", {})

        try:
            return await self.create(job.namespace, body, same)
        except Forbidden as error:
            if made.STANDBY_CLASS not in str(error):
                raise
        spec = {key: value for key, value in body["spec"].items() if key != "priorityClassName"}
        own = body["metadata"]["annotations"].get(made.OWN_CLASS)
        return await self.create(job.namespace, {**body, "spec": {**spec, **({"priorityClassName": own} if own else {})}}, same)

    # ---- the job

    async def ensure_metadata(self, job: Workload, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        """Writes labels and annotations on all objects where those of the job are read."""
        change = {"labels": labels, "annotations": annotations}
        *copies, (path, uid) = job.kind.written_to(job)
        for copy, of in copies:
            with suppress(NotFound):
                await self.api.patch(copy, {"metadata": {**_very(of), **change}})
        await self.api.patch(path, {"metadata": {**_very(uid), **change}})


def _very(uid: str) -> Object:
    return {"uid": uid} if uid else {}


async def delete_pod(api: Api, pod: Object, grace_seconds: int) -> None:
    """Deletes a pod. One that is gone, or whose name belongs to another pod, counts as deleted."""
    try:
        await api.delete(path_of(pod), pod["metadata"]["uid"], grace_seconds)
    except (NotFound, Conflict):
        return


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def path_of(pod: Object) -> str:
    return f"{pods_path(pod['metadata']['namespace'])}/{pod['metadata']['name']}"


def is_on(pod: Object, nodes: Collection[str]) -> bool:
    return pod["spec"].get("nodeName") in nodes


def taken_as(pod: Object) -> str:
    return str(pod["metadata"].get("annotations", {}).get(keys.TAKEN_AS, ""))


def generation_of(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get(keys.GENERATION, "0"))


def job_id_of(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get(keys.JOB_ID, ""))


async def side_by_side(work: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Runs the coroutines, `AT_ONCE` at a time, and returns their results.

    The first error is raised when none is in flight any more.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(part: Coroutine[object, object, T]) -> T:
        async with slots:
            return await part

    done = await asyncio.gather(*(one(part) for part in work), return_exceptions=True)
    found: list[T] = []
    for result in done:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
