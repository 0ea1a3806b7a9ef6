"""An AscendJob under the operator driver with simulated controllers, and a client that dies after a chosen write."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes.kind import Workload
from activities.clusters.kubernetes.kinds import ASCEND_JOB
from activities.clusters.kubernetes.pod_operations import PodOperations
from activities.clusters.kubernetes.reader import Reader
from rekindle.errors import Conflict
from rekindle.settings import Settings
from tests.fakes.ascend_operator import AscendOperator, group_of, groups_path
from tests.fakes.controller import annotations_of, is_terminating, labels_of, pods_until
from tests.fakes.volcano import Volcano
from tests.kubernetes.world.control_plane import Namespace

OLD = "demo-worker-0"
FLOW = {
    "inHotSwitchFlow",
    "needOperatorOpe",
    "needVolcanoOpe",
    "backupNewPodName",
    "backupSourcePodName",
    "podType",
    "fault-type",
}

T = TypeVar("T")


class DiedError(Exception):
    """Raised in place of the death of a worker that runs an activity."""


class MortalApi(Api):
    """API client that dies after its last write: the write was carried out, but its caller does not learn that."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self.writes: list[str] = []
        self.died = False
        self.life: int | None = None
        """Number of writes until it dies; None: it does not die."""

    async def patch(self, path: str, body: Object) -> Object:
        return await self._written("PATCH", path, super().patch(path, body))

    async def delete(self, path: str, uid: str, grace_seconds: int | None = None, version: str = "") -> None:
        await self._written("DELETE", path, super().delete(path, uid, grace_seconds, version))

    async def _written(self, verb: str, path: str, write: Awaitable[T]) -> T:
        done = await write
        self.writes.append(f"{verb} {path.rpartition('/')[2]}")
        if self.life is not None:
            self.life -= 1
            if self.life <= 0:
                self.life, self.died = None, True
                raise DiedError(self.writes[-1])
        return done


class OperatorDriver:
    """The two strategies of an AscendJob, bound to the `PodOperations` that they use."""

    def __init__(self, ops: PodOperations) -> None:
        self._operations = ops
        self.ensure_metadata = ops.ensure_metadata

    def __getattr__(self, name: str) -> Any:
        strategy = ASCEND_JOB.restart if hasattr(ASCEND_JOB.restart, name) else ASCEND_JOB.count
        return partial(getattr(strategy, name), self._operations)


@dataclass
class World:
    """Job of two running pods, its controllers, and the driver under test."""

    namespace: Namespace
    operator: AscendOperator
    volcano: Volcano
    api: MortalApi
    job: Workload
    first: dict[str, Object]
    """Initial pods of the job, by name."""

    @property
    def reader(self) -> Reader:
        return Reader(self.api, Settings(namespaces=(self.namespace.name,)))

    @property
    def driver(self) -> "OperatorDriver":
        return OperatorDriver(PodOperations(self.api, self.reader, Settings()))

    async def pods(self) -> list[Object]:
        return await self.reader.pods(self.job)

    async def pod(self, name: str) -> Object:
        return await self.api.get(self.namespace.path("pods", name))

    @property
    def group(self) -> str:
        return groups_path(self.namespace.name, group_of(self.job.object))

    async def recovery(self) -> str | None:
        """Returns the label of the pod group that switches recovery of processes; None: it has none."""
        return labels_of(await self.api.get(self.group)).get("process-recover-enable")

    async def step(self, call: Callable[[OperatorDriver], Awaitable[T]]) -> T:
        """Runs a call and retries it, as another worker would, if it dies or meets a Conflict."""
        while True:
            try:
                return await call(self.driver)
            except (DiedError, Conflict):
                continue

    # ---- what recoveries do

    async def backup(self) -> Object:
        """Creates a backup pod of the old pod, and returns it when it runs."""
        backup = await self.step(lambda driver: driver.ensure_backup(self.job, self.first[OLD], "a-wish", ()))
        return await self.namespace.until_phase(backup["metadata"]["name"], "Running")

    async def delete_old(self) -> None:
        async def delete(driver: OperatorDriver) -> None:
            for pod in await self.pods():
                if uid(pod) == uid(self.first[OLD]):
                    await driver.ensure_deleted(self.job, pod, 0)

        await self.step(delete)
        await self.namespace.until_gone(self.first[OLD])

    async def promote(self, backup: Object) -> None:
        await self.step(lambda driver: driver.ensure_promoted(self.job, backup))

    async def hot_switch(self) -> Object:
        backup = await self.backup()
        await self.delete_old()
        await self.promote(backup)
        return backup

    async def sweep(self) -> None:
        await self.driver.ensure_no_backups(self.job, await self.pods(), 0)


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def uids(pods: Iterable[Object]) -> set[str]:
    return {uid(pod) for pod in pods}


def backups(pods: Iterable[Object]) -> list[Object]:
    return [pod for pod in pods if "podType" in annotations_of(pod)]


def marks(pods: Iterable[Object]) -> set[str]:
    """Returns all marks of a hot switch that are on these pods."""
    return {mark for pod in pods for mark in (*annotations_of(pod), *labels_of(pod)) if mark in FLOW}


def one_of_each_rank(pods: Iterable[Object]) -> bool:
    ranks = sorted("terminating" if is_terminating(pod) else annotations_of(pod)["hccl/rankIndex"] for pod in pods)
    return ranks == ["0", "1"]


async def until_running(namespace: Namespace) -> dict[str, Object]:
    """Returns the two pods of the job by name, when they run."""
    pods = await pods_until(namespace, lambda pods: [pod["status"].get("phase") for pod in pods] == ["Running"] * 2)
    return {pod["metadata"]["name"]: pod for pod in pods}
