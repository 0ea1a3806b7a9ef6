"""The controller of our own jobs on Kubernetes: `python -P -m workers.operator`, one for each cluster.

A TrainingJob object becomes a Service for its manager and its first pods; its pods become its phase. Workers that fail stay:
recoveries replace them. Nothing is remembered: everything follows from the objects as they are.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from activities.kube import Api, Object, check_version
from activities.kubernetes.direct import DirectDriver, delete_pod
from activities.kubernetes.kinds import TRAINING_JOB, Workload
from activities.kubernetes.objects import PodsOf, job_object_of
from activities.kubernetes.pods import MASTER_PORT, is_manager, pods_of_training_job
from activities.kubernetes.reader import Reader, in_scope
from rekindle.errors import BadInput, ClusterError, Conflict, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import JobPhase
from rekindle.model.manifest import job_of
from rekindle.settings import Settings, read_settings
from rekindle.telemetry import configure_logging
from workers.cluster.jobs import FIRST, MANAGER_RESTARTS, phase_of
from workers.process import Process, patiently, run

PAUSE = 0.5
"""Seconds before what failed is tried again."""

GATHER = 0.02
"""Seconds in which several changes become one look: a job's pods start all at once."""

Take = Callable[[str, Object], None]

logger = logging.getLogger("operator")


class Operator:
    def __init__(self, api: Api, settings: Settings) -> None:
        self._api, self._settings = api, settings
        self._reader = Reader(api, settings)
        self._direct = DirectDriver(api, self._reader, settings)
        self._jobs: dict[str, Workload] = {}
        self._pods: dict[str, dict[str, Object]] = {}
        """By job and UID."""
        self._read: dict[str, PodsOf] = {}
        self._dirty: dict[str, None] = {}
        """Jobs that something happened to, the oldest first."""
        self._happened = asyncio.Event()
        self._restarts = Counter[str]()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self._watch_for_a_while()
            except* (ClusterError, WatchExpired) as broken:
                logger.info("the watch broke, everything is listed again", extra={"reason": str(broken.exceptions[0])})
            await asyncio.sleep(PAUSE)

    async def _watch_for_a_while(self) -> None:
        self._jobs.clear()
        self._pods.clear()
        streams: list[tuple[str, Take]] = [(TRAINING_JOB.path(scope), self._take_job) for scope in self._reader.scopes]
        streams += [(in_scope("pods", scope), self._take_pod) for scope in self._reader.scopes]
        listings = []
        for path, take in streams:
            selector = {"labelSelector": keys.JOB_ID} if take == self._take_pod else {}
            listing = await self._api.list(path, **selector)
            for item in listing.items:
                take("ADDED", item)
            listings.append((path, take, selector, listing.resource_version))
        async with asyncio.TaskGroup() as group:
            for path, take, selector, since in listings:
                group.create_task(self._follow(path, take, selector, since))
            group.create_task(self._work())

    async def _follow(self, path: str, take: Take, selector: dict[str, str], since: str) -> None:
        async for change in self._api.watch(path, since, **selector):
            take(change.type, change.object)

    def _take_job(self, change: str, job: Object) -> None:
        uid = job["metadata"]["uid"]
        if change == "DELETED":
            self._jobs.pop(uid, None)
            self._read.pop(uid, None)
            self._restarts.pop(uid, 0)
            return
        self._jobs[uid] = Workload(TRAINING_JOB, job)
        self._look_at(uid)

    def _take_pod(self, change: str, pod: Object) -> None:
        uid = pod["metadata"]["labels"][keys.JOB_ID]
        pods = self._pods.setdefault(uid, {})
        pods.pop(pod["metadata"]["uid"], None)
        if change != "DELETED":
            pods[pod["metadata"]["uid"]] = pod
        self._look_at(uid)

    def _look_at(self, uid: str) -> None:
        self._dirty[uid] = None
        self._happened.set()

    # ---- what follows from what is seen

    async def _work(self) -> None:
        """One job at a time: each needs a few requests at its birth, and next to none later."""
        while True:
            await self._happened.wait()
            await asyncio.sleep(GATHER)
            uid = next(iter(self._dirty))
            del self._dirty[uid]
            if not self._dirty:
                self._happened.clear()
            job = self._jobs.get(uid)
            if job is None or job.metadata.get("deletionTimestamp"):
                continue
            try:
                await self._reconcile(job)
            except BadInput as error:
                await self._tell_phase(job, JobPhase.FAILED, str(error))
            except ClusterError as error:
                logger.warning("not done yet, trying again", extra={"job": uid, "job_name": job.name, "error": str(error)})
                asyncio.get_running_loop().call_later(PAUSE, self._look_at, uid)

    async def _reconcile(self, job: Workload) -> None:
        status = job.object.get("status", {})
        if status.get("message"):
            return  # what is wrong with it stays wrong
        read = job_object_of(job, observe=False)
        if not status.get("phase"):
            job_of(read, self._settings.limits)
            await self._begin(job)
            return
        pods = list(self._pods.get(job.uid, {}).values())
        await self._restart_manager(job, pods)
        known = self._read.setdefault(job.uid, PodsOf(self._settings.rank_keys))
        phase = phase_of(read, known.read(job, pods))
        if phase is not read.status.phase:
            await self._tell_phase(job, phase, "")

    async def _begin(self, job: Workload) -> None:
        """Everything that a job needs, found again if it was begun before."""
        name = f"{job.name}-manager"
        service = {
            "metadata": {"name": name, "namespace": job.namespace, "ownerReferences": [job.reference]},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {keys.JOB_ID: job.uid, keys.REPLICA_TYPE: "manager"},
                "ports": [{"name": "ranks", "port": MASTER_PORT}],
            },
        }
        with suppress(Conflict):
            await self._api.create(f"/api/v1/namespaces/{job.namespace}/services", service)
        if all(pod["metadata"]["labels"].get(keys.GENERATION) == FIRST for pod in self._pods.get(job.uid, {}).values()):
            await self._direct.ensure_pods(job, FIRST, ())
        await self._tell_phase(job, JobPhase.PENDING, "")

    async def _restart_manager(self, job: Workload, pods: Sequence[Object]) -> None:
        """A manager that failed while ranks live starts again: nothing is lost with it."""
        staying = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        failed = [pod for pod in staying if is_manager(pod) and pod["status"].get("phase") == "Failed"]
        training = any(pod["status"].get("phase") in ("Pending", "Running") and not is_manager(pod) for pod in staying)
        if not failed or not training or self._restarts[job.uid] >= MANAGER_RESTARTS:
            return
        self._restarts[job.uid] += 1
        await delete_pod(self._api, failed[0], 0)
        generation = failed[0]["metadata"]["labels"][keys.GENERATION]
        manager = next(
            pod for pod in pods_of_training_job(job, generation, (), self._settings.gateway_address) if is_manager(pod)
        )
        await self._api.create(f"/api/v1/namespaces/{job.namespace}/pods", manager)

    async def _tell_phase(self, job: Workload, phase: JobPhase, message: str) -> None:
        status = {"phase": phase.value, "message": message}
        if job.object.get("status") != status:
            logger.info("job", extra={"job": job.uid, "job_name": job.name, "phase": phase, "reason": message})
            await self._api.patch(f"{job.path}/status", {"metadata": {"uid": job.uid}, "status": status})


async def main() -> None:
    settings = read_settings()
    configure_logging("operator", settings)
    async with Process(settings) as process, Api(settings.kubeconfig) as api:
        await patiently(lambda: check_version(api))
        process.ready("operator")
        await process.until_stopped(Operator(api, settings).run())
    logger.info("stopped")


if __name__ == "__main__":
    run(main)
