"""The controller of our own jobs on Kubernetes: `python -P -m workers.operator`, one for each cluster.

It creates a Service for the manager of a TrainingJob, and its first pods, and derives the job's phase from its pods. Failed
workers stay: recoveries replace them. It keeps no state: everything follows from the current objects. An exception
that one job causes, whatever its object says, does not delay other jobs.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.clusters.api_server import BOOKMARK, Api, Object, check_version, lean
from activities.clusters.kubernetes.events import about_job, record
from activities.clusters.kubernetes.kind import Places, Workload
from activities.clusters.kubernetes.kinds import TRAINING_JOB
from activities.clusters.kubernetes.kinds.training_job import MASTER_PORT, pods_of_training_job
from activities.clusters.kubernetes.missing_rank import is_standby
from activities.clusters.kubernetes.objects import PodsOf, job_object_of
from activities.clusters.kubernetes.pod_objects import avoided_by, controller_of, is_manager, placed
from activities.clusters.kubernetes.pod_operations import PodOperations, delete_pod
from activities.clusters.kubernetes.reader import Reader, in_scope
from rekindle.errors import MALFORMED, BadInput, ClusterError, Conflict, NotFound, RekindleError, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import ClusterEvent, JobPhase
from rekindle.model.examined import Problem
from rekindle.model.manifest import job_of
from rekindle.settings import Settings, read_settings
from rekindle.telemetry import configure_logging
from workers import training_job_status
from workers.own_workload import OwnWorkload, check_of, own_workload
from workers.process import Process, patiently, run
from workers.training_job_phase import FIRST, MANAGER_RESTARTS, phase_of

PAUSE = 0.5
"""Seconds before a failed job is retried; doubles for each job up to `LONGEST`."""

LONGEST = 30.0

LONG = 8.0
"""Pause from which even errors that may pass by themselves are reported on the job, such as a webhook that does not answer."""

GATHER = 0.02
"""Seconds for which changes are gathered into one reconciliation: a job's pods start all at once."""

Take = Callable[[str, Object], None]

logger = logging.getLogger("operator")


@dataclass(frozen=True)
class Trouble:
    """State of a job that could not be reconciled: the error, and the pause before the next try."""

    words: str = ""
    pause: float = PAUSE / 2
    timer: asyncio.TimerHandle | None = None


class Operator:
    def __init__(self, api: Api, settings: Settings) -> None:
        self._api, self._settings = api, settings
        self._reader = Reader(api, settings)
        self._operations = PodOperations(api, self._reader, settings)
        self._jobs: dict[str, Workload] = {}
        self._pods: dict[str, dict[str, Object]] = {}
        """Pods by namespace and job, and by UID. The namespace is part of the key, as pods elsewhere may carry the job's
        label."""
        self._read: dict[str, PodsOf] = {}
        self._dirty: dict[str, dict[str, None]] = {}
        """Jobs with changes, by namespace, the oldest change first."""
        self._busy: set[str] = set()
        """Namespaces in which a job is being reconciled."""
        self._happened = asyncio.Event()
        self._troubles: dict[str, Trouble] = {}
        self.problem = ""
        """Reason for which no job is served; empty: jobs are."""

    async def run(self) -> None:
        """Watches jobs and pods and reconciles jobs, until it is cancelled."""
        while True:
            try:
                await self._watch_for_a_while()
            except* NotFound as missing:
                if not self.problem:
                    logger.warning("own kind not served", extra={"error": str(missing.exceptions[0])})
                self.problem = (
                    f"{TRAINING_JOB.api_version} of {TRAINING_JOB.plural} is not served: install the chart rekindle-crds"
                )
            except* (ClusterError, WatchExpired) as broken:
                logger.info("operator watch interrupted, listing again", extra={"reason": str(broken.exceptions[0])})
            await asyncio.sleep(PAUSE)

    async def _watch_for_a_while(self) -> None:
        self._jobs.clear()
        self._pods.clear()
        self._busy.clear()
        streams: list[tuple[str, Take]] = [(TRAINING_JOB.path(scope), self._take_job) for scope in self._reader.scopes]
        streams += [(in_scope("pods", scope), self._take_pod) for scope in self._reader.scopes]
        listings = []
        for path, take in streams:
            selector = {"labelSelector": keys.JOB_ID} if take == self._take_pod else {}
            listings.append((path, take, selector, await self._take_all(path, take, selector)))
        self.problem = ""
        async with asyncio.TaskGroup() as group:
            for path, take, selector, since in listings:
                group.create_task(self._follow(path, take, selector, since))
            group.create_task(self._work())

    async def _take_all(self, path: str, take: Take, selector: dict[str, str]) -> str:
        """Passes all existing objects to `take`, one by one. Returns the resource version at which a watch continues."""
        since = ""
        async with aclosing(self._api.everything(path, **selector)) as changes:
            async for change in changes:
                if change.type == BOOKMARK:
                    since = str(change.object["metadata"]["resourceVersion"])
                else:
                    take(change.type, change.object)
        return since

    async def _follow(self, path: str, take: Take, selector: dict[str, str], since: str) -> None:
        async for change in self._api.watch(path, since, **selector):
            take(change.type, change.object)

    def _take_job(self, change: str, job: Object) -> None:
        uid = job["metadata"]["uid"]
        if change == "DELETED":
            self._jobs.pop(uid, None)
            self._read.pop(uid, None)
            self._troubles.pop(uid, None)
            return
        before, self._jobs[uid] = self._jobs.get(uid), Workload(TRAINING_JOB, lean(job))
        if uid in self._troubles and before and _without_status(before.object) == _without_status(job):
            return  # a change of the status alone, such as another error message, is no reason to try again at once
        self._look_at(uid)

    def _take_pod(self, change: str, pod: Object) -> None:
        uid = pod["metadata"]["labels"][keys.JOB_ID]
        if (controller_of(pod) or {}).get("uid") != uid:
            return  # any tenant can set this label
        place = _place(pod["metadata"]["namespace"], uid)
        pods = self._pods.setdefault(place, {})
        pods.pop(pod["metadata"]["uid"], None)
        if change != "DELETED":
            pods[pod["metadata"]["uid"]] = _kept(pod)
        if not pods:
            del self._pods[place]
        self._look_at(uid)

    def _pods_of(self, job: Workload) -> list[Object]:
        return list(self._pods.get(_place(job.namespace, job.uid), {}).values())

    def _look_at(self, uid: str) -> None:
        if job := self._jobs.get(uid):
            self._dirty.setdefault(job.namespace, {})[uid] = None
            self._happened.set()

    # ---- what follows from what is seen

    async def _work(self) -> None:
        """Reconciles one job of each namespace at a time: a tenant may have a thousand jobs of thousands of pods that are not
        admitted."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._happened.wait()
                self._happened.clear()
                for namespace in self._dirty.keys() - self._busy:
                    self._busy.add(namespace)
                    group.create_task(self._work_in(namespace))

    async def _work_in(self, namespace: str) -> None:
        """Reconciles the changed jobs of a namespace until none is left."""
        while jobs := self._dirty.get(namespace):
            await asyncio.sleep(GATHER)
            uid = next(iter(jobs))
            del jobs[uid]
            job = self._jobs.get(uid)
            if job and not job.metadata.get("deletionTimestamp"):
                await self._attend_to(job)
        self._dirty.pop(namespace, None)
        self._busy.discard(namespace)

    async def _attend_to(self, job: Workload) -> None:
        """Reconciles a job. All exceptions that a job causes are handled here."""
        try:
            await self._reconcile(job)
            if self._troubles.pop(job.uid, None):
                self._look_at(job.uid)  # changes of its status were ignored meanwhile
        except (RekindleError, *MALFORMED) as error:
            await self._try_again_later(job, error)

    async def _try_again_later(self, job: Workload, error: Exception) -> None:
        """Schedules the next try with a growing pause, up to a limit. Errors that waiting alone does not solve are reported
        once."""
        last = self._troubles.get(job.uid, Trouble())
        ours = isinstance(error, RekindleError)
        words = str(error) if ours else f"it cannot be served: {type(error).__name__}: {error}"
        pause = min(2 * last.pause, LONGEST)
        if last.timer:
            last.timer.cancel()
        timer = asyncio.get_running_loop().call_later(pause, self._look_at, job.uid)
        self._troubles[job.uid] = Trouble(words, pause, timer)
        extra = {"job": job.uid, "job_name": job.name, "error": words}
        logger.warning("job not reconciled, retrying", extra=extra, exc_info=not ours)
        if isinstance(error, RekindleError) and error.retryable and pause < LONG:
            return
        await self._tell_trouble(job, words)
        if words == last.words:
            return
        event = ClusterEvent(name=job.name, kind=job.kind.name, reason="NotDoneYet", message=words, type="Warning")
        try:
            await record(self._api, about_job(job), event)
        except ClusterError as unheard:
            logger.warning("event about a delayed job not recorded", extra={**extra, "error": str(unheard)})

    async def _reconcile(self, job: Workload) -> None:
        status = job.object.get("status", {})
        if not status.get("phase") or status.get("message"):  # nothing was begun: its object was invalid
            try:
                job_of(job_object_of(job, observe=False), self._settings.limits)
                await self._begin(job)
            except BadInput as error:
                await self._tell_phase(job, JobPhase.FAILED, str(error))
            return
        read, pods = job_object_of(job, observe=False), self._pods_of(job)
        if read.spec.manager:
            await self._ensure_manager(job.checked(), pods)
        known = self._read.setdefault(job.uid, PodsOf(self._settings.rank_keys))
        phase = phase_of(read, known.read(job, pods))
        if phase is JobPhase.PENDING and phase is not read.status.phase:  # its ranks look for their manager again
            await self._ensure_service(job)
        await self._tell_phase(job, phase, "")

    async def _begin(self, job: Workload) -> None:
        """Creates all objects of a job; those of an earlier try are reused."""
        await self._ensure_service(job)
        await self._end_others(job, self._pods_of(job))
        if all(pod["metadata"]["labels"].get(keys.GENERATION) == FIRST for pod in self._pods_of(job)):
            made = await TRAINING_JOB.restart.ensure_pods(self._operations, job.checked(), FIRST, Places())
            await self._end_others(job, made)  # of an earlier try, and not seen before
        found = await self._api.get(job.path)
        if _words(found) != _words(job.object):
            raise Conflict("its owner changed it while its pods were made")
        await self._tell_phase(job, JobPhase.PENDING, "", of=found["metadata"]["resourceVersion"])

    async def _end_others(self, job: Workload, pods: Sequence[Object]) -> None:
        """Deletes pods that were created before the owner changed the job, which is allowed until the job has begun.

        Raises:
            Conflict: there were some.
        """
        now = _words(job.object)
        others = [pod for pod in pods if pod["metadata"].get("annotations", {}).get(keys.OBJECT_GENERATION, now) != now]
        for pod in others:
            await delete_pod(self._api, pod, 0)
        if others:
            raise Conflict(f"{len(others)} pods of what the job said before it was changed go first")

    async def _ensure_service(self, job: Workload) -> None:
        """Creates the Service by which ranks find their manager.

        A deleted job of the same name may still own the Service; it vanishes a moment later. The creation is then retried.
        """
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
        path = f"/api/v1/namespaces/{job.namespace}/services"
        try:
            await self._api.create(path, service)
        except Conflict:
            found = await self._api.get(f"{path}/{name}")
            if job.uid not in {owner["uid"] for owner in found["metadata"].get("ownerReferences", ())}:
                raise Conflict(f"service {name} is there, and is not this job's") from None

    async def _ensure_manager(self, job: Workload, pods: Sequence[Object]) -> None:
        """Keeps one manager while workers train, whatever happened to the last one: nothing is lost with a manager.

        A failed manager is deleted first, and its name is free when its end is seen. Recoveries that stop a job end its workers
        before its manager, so that a job that is being stopped does not get a new one.
        """
        training = [pod for pod in pods if not (is_manager(pod) or is_standby(pod)) and _is_active(pod)]
        managers = [pod for pod in pods if is_manager(pod)]
        if not training or any(pod["status"].get("phase") != "Failed" for pod in managers):
            return
        if not managers:
            await self._create_manager(job, training[0])
        elif _restarts(managers[0]) < MANAGER_RESTARTS:
            await self._replace_manager(job, managers[0], training[0])

    async def _replace_manager(self, job: Workload, failed: Object, worker: Object) -> None:
        await delete_pod(self._api, failed, 0)
        await self._create_manager(job, worker, _restarts(failed) + 1)

    async def _create_manager(self, job: Workload, worker: Object, restarts: int = 0) -> None:
        """Creates a manager of the same generation as a worker's pod.

        The nodes that the worker avoids are only less preferred: what was cordoned when the worker was created may be the only
        place for pods now, and training waits for its manager.
        """
        generation = worker["metadata"]["labels"].get(keys.GENERATION, FIRST)
        wanted = pods_of_training_job(job, generation, Places(), self._settings.gateway_address)
        manager = next(pod for pod in wanted if is_manager(pod))
        manager["metadata"]["annotations"][keys.RESTARTS] = str(restarts)
        manager["spec"]["affinity"] = placed(manager["spec"].get("affinity", {}), (), shun_nodes=avoided_by(worker))
        with suppress(Conflict):  # a recovery that starts the job has just created it
            await self._api.create(f"/api/v1/namespaces/{job.namespace}/pods", manager)

    async def _tell_phase(self, job: Workload, phase: JobPhase, message: str, of: str = "") -> None:
        """Writes the phase if it has changed. The result is stored at once, since the watch may show an older object first.

        Args:
            of: resource version that the object must still have; empty: any.
        """
        status = training_job_status.told(job.object, phase, message, _moment())
        if job.object.get("status", {}).get("phase") != phase.value:
            logger.info("job phase changed", extra={"job": job.uid, "job_name": job.name, "phase": phase, "reason": message})
        await self._write_status(job, status, of)

    async def _tell_trouble(self, job: Workload, words: str) -> None:
        try:
            await self._write_status(job, training_job_status.in_trouble(job.object, words, _moment()))
        except (ClusterError, *MALFORMED) as error:
            logger.warning("failure of a job not written to its status", extra={"job": job.uid, "error": str(error)})

    async def _write_status(self, job: Workload, status: Object, of: str = "") -> None:
        if job.object.get("status") == status:
            return
        same = {"uid": job.uid, **({"resourceVersion": of} if of else {})}
        written = await self._api.patch(f"{job.path}/status", {"metadata": same, "status": status})
        if job.uid in self._jobs:
            self._jobs[job.uid] = Workload(TRAINING_JOB, lean(written))


def _kept(pod: Object) -> Object:
    """Returns the parts of a pod that are used: there are thousands of pods, of 100 KiB each."""
    metadata, spec, status = lean(pod)["metadata"], pod.get("spec"), pod.get("status")
    if not (isinstance(spec, dict) and isinstance(status, dict)):
        return pod  # its reader reports the error
    kept = {"containers": [{"name": "training"}], "affinity": spec.get("affinity") or {}}
    return {"metadata": metadata, "spec": kept, "status": {"phase": status.get("phase")}}


def _without_status(job: Object) -> Object:
    """Returns the job object without its status, which only the operator writes."""
    metadata = {key: value for key, value in job["metadata"].items() if key != "resourceVersion"}
    return {**{key: value for key, value in job.items() if key != "status"}, "metadata": metadata}


def _words(job: Object) -> str:
    """Returns the generation of the job object, which changes with its owner's edits."""
    return str(job["metadata"].get("generation", ""))


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _place(namespace: str, job_id: str) -> str:
    return f"{namespace}/{job_id}"


def _is_active(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")


def _restarts(manager: Object) -> int:
    """Returns the number of managers that failed in succession before this one."""
    said = manager["metadata"].get("annotations", {}).get(keys.RESTARTS, "")
    return int(said) if said.isdecimal() and len(said) < 4 else 0


async def serve(settings: Settings, process: Process, workload: OwnWorkload) -> None:
    async with Api(settings.kubeconfig) as api:
        await patiently(lambda: check_version(api))
        operator = Operator(api, settings)

        async def why() -> Problem | None:
            return Problem(reason="KindNotServed", words=operator.problem) if operator.problem else None

        process.ready("operator", check_of(why))
        keeping = asyncio.create_task(workload.keep(why))
        await process.until_stopped(operator.run())
        keeping.cancel()


async def main() -> None:
    settings = read_settings()
    configure_logging("operator", settings)
    running = Process(settings, has_temporal=False)
    async with running as process, own_workload(settings, "operator") as workload, workload.explaining():
        await serve(settings, process, workload)
    logger.info("operator stopped")


if __name__ == "__main__":
    run(main)
