"""The controller of our own jobs on Kubernetes: `python -P -m workers.operator`, one for each cluster.

A TrainingJob object becomes a Service for its manager and its first pods; its pods become its phase. Workers that fail stay:
recoveries replace them. Nothing is remembered: everything follows from the objects as they are. What one job raises, whatever
its object says, is that job's affair and keeps no other one waiting.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.clusters.api_server import BOOKMARK, Api, Object, check_version, lean
from activities.clusters.kubernetes.events import about_job, record
from activities.clusters.kubernetes.hands import Hands, delete_pod
from activities.clusters.kubernetes.kind import Places, Workload
from activities.clusters.kubernetes.kinds import TRAINING_JOB
from activities.clusters.kubernetes.kinds.training_job import MASTER_PORT, pods_of_training_job
from activities.clusters.kubernetes.lost_rank import is_standby
from activities.clusters.kubernetes.objects import PodsOf, job_object_of
from activities.clusters.kubernetes.pod_objects import avoided_by, controller_of, is_manager, placed
from activities.clusters.kubernetes.reader import Reader, in_scope
from rekindle.errors import MALFORMED, BadInput, ClusterError, Conflict, RekindleError, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import ClusterEvent, JobPhase
from rekindle.model.manifest import job_of
from rekindle.settings import Settings, read_settings
from rekindle.telemetry import configure_logging
from workers import own_status
from workers.own_jobs import FIRST, MANAGER_RESTARTS, phase_of
from workers.process import Process, patiently, run

PAUSE = 0.5
"""Seconds before what failed is tried again; doubles for each job up to `LONGEST`."""

LONGEST = 30.0

LONG = 8.0
"""The pause behind which also what may pass by itself is said on the job, such as a webhook that does not answer."""

GATHER = 0.02
"""Seconds in which several changes become one look: a job's pods start all at once."""

Take = Callable[[str, Object], None]

logger = logging.getLogger("operator")


@dataclass(frozen=True)
class Trouble:
    """Why a job is not done yet, and how long it waits for the next try."""

    words: str = ""
    pause: float = PAUSE / 2
    timer: asyncio.TimerHandle | None = None


class Operator:
    def __init__(self, api: Api, settings: Settings) -> None:
        self._api, self._settings = api, settings
        self._reader = Reader(api, settings)
        self._hands = Hands(api, self._reader, settings)
        self._jobs: dict[str, Workload] = {}
        self._pods: dict[str, dict[str, Object]] = {}
        """By namespace and job, and by UID: a label of a pod elsewhere makes it no pod of the job."""
        self._read: dict[str, PodsOf] = {}
        self._dirty: dict[str, dict[str, None]] = {}
        """By namespace, jobs that something happened to, the oldest first."""
        self._busy: set[str] = set()
        """Namespaces of which a job is attended to."""
        self._happened = asyncio.Event()
        self._troubles: dict[str, Trouble] = {}

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
        self._busy.clear()
        streams: list[tuple[str, Take]] = [(TRAINING_JOB.path(scope), self._take_job) for scope in self._reader.scopes]
        streams += [(in_scope("pods", scope), self._take_pod) for scope in self._reader.scopes]
        listings = []
        for path, take in streams:
            selector = {"labelSelector": keys.JOB_ID} if take == self._take_pod else {}
            listings.append((path, take, selector, await self._take_all(path, take, selector)))
        async with asyncio.TaskGroup() as group:
            for path, take, selector, since in listings:
                group.create_task(self._follow(path, take, selector, since))
            group.create_task(self._work())

    async def _take_all(self, path: str, take: Take, selector: dict[str, str]) -> str:
        """All that is there, one by one; answers where a watch goes on."""
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
            return  # what was said of its trouble is no reason to try again at once: words may differ each time
        self._look_at(uid)

    def _take_pod(self, change: str, pod: Object) -> None:
        uid = pod["metadata"]["labels"][keys.JOB_ID]
        if (controller_of(pod) or {}).get("uid") != uid:
            return  # its label is a tenant's word
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
        """One job of a namespace at a time: one tenant may have a thousand jobs of thousands of pods that nobody admits."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._happened.wait()
                self._happened.clear()
                for namespace in self._dirty.keys() - self._busy:
                    self._busy.add(namespace)
                    group.create_task(self._work_in(namespace))

    async def _work_in(self, namespace: str) -> None:
        """Until nothing more has happened there."""
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
        """Here, and nowhere else, an exception ends that a job has caused."""
        try:
            await self._reconcile(job)
            if self._troubles.pop(job.uid, None):
                self._look_at(job.uid)  # its status may have gone unheeded
        except (RekindleError, *MALFORMED) as error:
            await self._try_again_later(job, error)

    async def _try_again_later(self, job: Workload, error: Exception) -> None:
        """Ever more rarely, up to a limit. Trouble that waiting alone does not end is said on the job, once."""
        last = self._troubles.get(job.uid, Trouble())
        ours = isinstance(error, RekindleError)
        words = str(error) if ours else f"it cannot be served: {type(error).__name__}: {error}"
        pause = min(2 * last.pause, LONGEST)
        if last.timer:
            last.timer.cancel()
        timer = asyncio.get_running_loop().call_later(pause, self._look_at, job.uid)
        self._troubles[job.uid] = Trouble(words, pause, timer)
        extra = {"job": job.uid, "job_name": job.name, "error": words}
        logger.warning("not done yet, trying again", extra=extra, exc_info=not ours)
        if isinstance(error, RekindleError) and error.retryable and pause < LONG:
            return
        await self._tell_trouble(job, words)
        if words == last.words:
            return
        event = ClusterEvent(name=job.name, kind=job.kind.name, reason="NotDoneYet", message=words, type="Warning")
        try:
            await record(self._api, about_job(job), event)
        except ClusterError as unheard:
            logger.warning("not recorded", extra={**extra, "error": str(unheard)})

    async def _reconcile(self, job: Workload) -> None:
        status = job.object.get("status", {})
        if not status.get("phase") or status.get("message"):  # nothing was begun: its object said what means nothing
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
        """Everything that a job needs, found again if it was begun before."""
        await self._ensure_service(job)
        await self._end_others(job, self._pods_of(job))
        if all(pod["metadata"]["labels"].get(keys.GENERATION) == FIRST for pod in self._pods_of(job)):
            made = await TRAINING_JOB.restart.ensure_pods(self._hands, job.checked(), FIRST, Places())
            await self._end_others(job, made)  # of an earlier try, and not seen before
        found = await self._api.get(job.path)
        if _words(found) != _words(job.object):
            raise Conflict("its owner changed it while its pods were made")
        await self._tell_phase(job, JobPhase.PENDING, "", of=found["metadata"]["resourceVersion"])

    async def _end_others(self, job: Workload, pods: Sequence[Object]) -> None:
        """Pods that were made before the job's owner changed it: it may say anything else until it has begun.

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
        """The name under which ranks find their manager. That of a deleted job of this name goes a moment later, and would
        leave this one without."""
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
        """One manager while workers train, whatever became of the last one: nothing is lost with it. A failed one goes first,
        and its name is free when its end is seen; then there is none. Recoveries that stop a job end its workers before its
        manager, so a job that is being stopped is not taken for one that has lost it."""
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
        """In the life of the job that a worker's pod says, and rather off the nodes that this keeps off: what was cordoned when
        it was made may be all that takes pods now, and training waits for its manager."""
        generation = worker["metadata"]["labels"].get(keys.GENERATION, FIRST)
        wanted = pods_of_training_job(job, generation, Places(), self._settings.gateway_address)
        manager = next(pod for pod in wanted if is_manager(pod))
        manager["metadata"]["annotations"][keys.RESTARTS] = str(restarts)
        manager["spec"]["affinity"] = placed(manager["spec"].get("affinity", {}), (), shun_nodes=avoided_by(worker))
        with suppress(Conflict):  # somebody else has just made it: a recovery that starts the job
            await self._api.create(f"/api/v1/namespaces/{job.namespace}/pods", manager)

    async def _tell_phase(self, job: Workload, phase: JobPhase, message: str, of: str = "") -> None:
        """Written where it is news. What was written is known at once: the watch may show an older object before.

        Args:
            of: the version that the object must have still; empty: whatever it says by now.
        """
        status = own_status.told(job.object, phase, message, _moment())
        if job.object.get("status", {}).get("phase") != phase.value:
            logger.info("job", extra={"job": job.uid, "job_name": job.name, "phase": phase, "reason": message})
        await self._write_status(job, status, of)

    async def _tell_trouble(self, job: Workload, words: str) -> None:
        try:
            await self._write_status(job, own_status.in_trouble(job.object, words, _moment()))
        except (ClusterError, *MALFORMED) as error:
            logger.warning("its trouble is not written", extra={"job": job.uid, "error": str(error)})

    async def _write_status(self, job: Workload, status: Object, of: str = "") -> None:
        if job.object.get("status") == status:
            return
        same = {"uid": job.uid, **({"resourceVersion": of} if of else {})}
        written = await self._api.patch(f"{job.path}/status", {"metadata": same, "status": status})
        if job.uid in self._jobs:
            self._jobs[job.uid] = Workload(TRAINING_JOB, lean(written))


def _kept(pod: Object) -> Object:
    """What is looked at of a pod: there are thousands, of 100 KiB each."""
    metadata, spec, status = lean(pod)["metadata"], pod.get("spec"), pod.get("status")
    if not (isinstance(spec, dict) and isinstance(status, dict)):
        return pod  # whoever reads it says so
    kept = {"containers": [{"name": "training"}], "affinity": spec.get("affinity") or {}}
    return {"metadata": metadata, "spec": kept, "status": {"phase": status.get("phase")}}


def _without_status(job: Object) -> Object:
    """What others than we say of a job."""
    metadata = {key: value for key, value in job["metadata"].items() if key != "resourceVersion"}
    return {**{key: value for key, value in job.items() if key != "status"}, "metadata": metadata}


def _words(job: Object) -> str:
    """Which version of what its owner says."""
    return str(job["metadata"].get("generation", ""))


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _place(namespace: str, job_id: str) -> str:
    return f"{namespace}/{job_id}"


def _is_active(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")


def _restarts(manager: Object) -> int:
    """How many managers failed before this one, one after the other."""
    said = manager["metadata"].get("annotations", {}).get(keys.RESTARTS, "")
    return int(said) if said.isdecimal() and len(said) < 4 else 0


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
