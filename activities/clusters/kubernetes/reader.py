"""What is read of Kubernetes: a job by its UID, the pods of a job, and the job of a pod. Used by the drivers and the watch."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from activities.clusters.api_server import Api, Listing, Object
from activities.clusters.kubernetes.kinds import BARE, BATCH_JOB, BATCH_JOB_NAME, BY_NAME, KINDS, TRAINING_JOB, Kind, Workload
from activities.clusters.kubernetes.objects import bare_job, is_bare
from activities.clusters.kubernetes.pod_objects import controller_of
from activities.clusters.kubernetes.shapes import Pod, PodTemplate, checked, reading
from rekindle.errors import ClusterError, ClusterUnavailable, NotFound, WatchExpired
from rekindle.model.keys import JOB_ID, JOB_NAME, MANAGER_OF
from rekindle.model.sizes import LONGEST_NAME
from rekindle.settings import Settings

LOOK_GAP = 1.0
"""Seconds between two lists of all jobs: anybody may name a job that there is not."""

LOOK_REST = 5.0
"""For strangers, how many times as long as the last list took: those of a large cluster are many megabytes."""

LEVELS = 3
"""Controllers above a pod: a Job, its JobSet, and the TrainJob of that. Tenants can write owners that own each other."""

MOST_OWNERS = 5
"""Owners of a pod that are looked at. Real ones have one; tenants can write very many."""

MOST_TOPS = 100_000
"""Jobs of which is remembered what they are parts of; asked again at worst."""

BARE_ID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\.[-A-Za-z0-9_.]*[A-Za-z0-9]")
"""Id of pods that nobody controls: their namespace, a dot, and a word of their owner's."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Of an object, as far as the API server admits it."""


def is_name(text: str) -> bool:
    """Whether an object may be called so; whatever else somebody wrote must not become a part of a path."""
    return len(text) <= LONGEST_NAME and bool(NAME.fullmatch(text))


class Reader:
    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self.scopes = settings.namespaces or ("",)
        self._job_keys: dict[str, str] = dict(settings.job_keys.items())
        self._where: dict[str, tuple[Kind, str, str]] = {}
        """Kind, namespace and name of the jobs that were seen, by UID."""
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        """When all jobs were listed last."""
        self._look_took = 0.0
        self._look_failed: ClusterError | None = None
        self._tops: dict[str, str] = {}
        """UID of the job that a batch Job is a part of, by the Job's UID."""
        self._strange: set[tuple[str, ...]] = set()
        """Namespace, kind, name and UID of owners that are not there, and never will be."""

    # ---- jobs

    async def job(self, job_id: str) -> Workload:
        """The job object with this UID, or NotFound.

        Raises:
            BadInput: it cannot be read.
        """
        with reading(f"job {job_id}"):
            return (await self._job(job_id)).checked()

    async def _job(self, job_id: str) -> Workload:
        found = await (self._bare(job_id) if "." in job_id else self._of_an_object(job_id))
        if found is None:
            raise NotFound(f"no job has the UID {job_id}")
        return found

    async def _of_an_object(self, job_id: str) -> Workload | None:
        if found := await self.seen(job_id):
            return found
        await self._look_around(LOOK_GAP)
        return await self.seen(job_id)

    async def locate(self, job_id: str) -> None:
        """Returns when it is known where the job is: who waits for that with all others costs no request.

        Raises:
            NotFound: nowhere.
        """
        if "." in job_id or job_id in self._where:
            return
        await self._look_around(max(LOOK_GAP, LOOK_REST * self._look_took))
        if job_id not in self._where:
            raise NotFound(f"no job has the UID {job_id}")

    async def _look_around(self, gap: float) -> None:
        """Lists all jobs. Whoever asks at the same time shares one list, and nobody can make us list more often.

        Args:
            gap: seconds since the last time.
        """
        asked = _now()
        async with self._looking:
            if self._looked > asked:
                if self._look_failed:  # who shares a look shares its failure: nobody knows that there is no such job
                    raise self._look_failed
                return
            await asyncio.sleep(self._looked + gap - _now())
            self._looked = began = _now()
            self._look_failed = ClusterUnavailable("who listed all jobs has given up")
            try:
                await self._remember_all()
            except ClusterError as error:
                self._look_failed = error
                raise
            self._look_failed, self._look_took = None, _now() - began

    async def _remember_all(self) -> None:
        gone = set(self._where)
        for kind in KINDS:
            for scope in self.scopes:
                for item in (await self.jobs(kind.path(scope))).items:
                    self.remember(Workload(kind, item))
                    gone.discard(item["metadata"]["uid"])
        for job_id in gone:
            self.forget(job_id)

    def remember(self, job: Workload) -> None:
        """Where a job is, so that it is found by its UID. Of a Job that is a part of nothing its pods are not asked for again."""
        self._where[job.uid] = (job.kind, job.namespace, job.name)
        if job.kind is BATCH_JOB and not _has_top(job.object):
            self._tops[job.uid] = job.uid

    def forget(self, job_id: str) -> None:
        """Nothing is left of the job."""
        self._where.pop(job_id, None)
        self._tops.pop(job_id, None)

    async def jobs(self, path: str) -> Listing:
        """All job objects of a kind; none where the kind is not installed."""
        try:
            return await self._api.list(path)
        except NotFound:
            return Listing([], "")

    async def seen(self, job_id: str) -> Workload | None:
        """A job with an object, where one was seen before; None: it is not there any more, or was never seen. Nothing of it is
        checked."""
        if (where := self._where.get(job_id)) is None:
            return None
        kind, namespace, name = where
        try:
            job = Workload(kind, await self._api.get(kind.path(namespace, name)))
        except NotFound:
            del self._where[job_id]
            return None
        return job if job.uid == job_id else None

    async def _bare(self, job_id: str) -> Workload | None:
        """Pods that nobody controls, or what a restart remembers of them. Their job's id says in which namespace they are."""
        namespace = job_id.partition(".")[0]
        if not BARE_ID.fullmatch(job_id) or not {"", namespace} & set(self.scopes):
            return None
        for plural, shape in (("pods", Pod), ("podtemplates", PodTemplate)):
            found = (await self._api.list(in_scope(plural, namespace), labelSelector=f"{JOB_ID}={job_id}")).items
            if own := [checked(shape, thing) for thing in found if is_bare(thing)]:
                return bare_job(namespace, job_id, own)
        return None

    # ---- pods

    async def pods(self, job: Workload) -> list[Object]:
        """All pods of a job, terminating ones too."""
        return (await self._listing(job)).items

    async def parts(self, job: Workload) -> list[Workload]:
        """The Jobs that make the pods of a JobSet or a TrainJob."""
        jobs = (await self._api.list(BATCH_JOB.path(job.namespace), labelSelector=self._selector(job))).items
        parts = [Workload(BATCH_JOB, one) for one in jobs]
        return [part.checked() for part in parts if await self._top(job.namespace, part.reference) == job.uid]

    async def managers(self, job: Workload) -> list[Object]:
        """Pods of the training side's manager that a controller of their own looks after."""
        return (await self._api.list(_pods_path(job), labelSelector=f"{MANAGER_OF}={job.name}")).items

    async def _listing(self, job: Workload) -> Listing:
        listing = await self._api.list(_pods_path(job), labelSelector=self._selector(job))
        return Listing([pod for pod in listing.items if await self.owner_uid(pod) == job.uid], listing.resource_version)

    async def follow(self, job: Workload) -> AsyncGenerator[list[Object], None]:
        """All pods of a job, and again after each change. Whoever is still busy with the last one sees several at once."""
        listing = await self._listing(job)
        pods = {pod["metadata"]["uid"]: pod for pod in listing.items}
        yield list(pods.values())
        changed = asyncio.Event()
        taking = asyncio.create_task(self._take(job, listing.resource_version, pods, changed))
        taking.add_done_callback(lambda _: changed.set())
        try:
            while True:
                await changed.wait()
                changed.clear()
                if taking.done():
                    taking.result()
                yield list(pods.values())
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _take(self, job: Workload, since: str, pods: dict[str, Object], changed: asyncio.Event) -> None:
        """Keeps the pods up to date; ends with the watch, by an error."""
        async with aclosing(self._api.watch(_pods_path(job), since, labelSelector=self._selector(job))) as changes:
            async for change in changes:
                if await self.owner_uid(change.object) != job.uid:
                    continue
                if change.type == "DELETED":
                    pods.pop(change.object["metadata"]["uid"], None)
                else:
                    pods[change.object["metadata"]["uid"]] = change.object
                changed.set()

    async def until(self, job: Workload, done: Callable[[Sequence[Object]], bool], limit: float) -> list[Object]:
        """The job's pods as soon as `done`, or as they were seen last within `limit` seconds. They are looked at in any case:
        while an API server has not answered nobody knows that they are gone."""
        pods: list[Object] | None = None
        try:
            async with asyncio.timeout(limit), aclosing(self.follow(job)) as states:
                async for pods in states:
                    if done(pods):
                        break
        except TimeoutError:
            pass
        except WatchExpired as error:
            raise ClusterUnavailable(f"the watch ended: {error}") from error
        return await self.pods(job) if pods is None else pods

    @property
    def pod_labels(self) -> Sequence[str]:
        """Every pod of a job carries one of them; those of a JobSet are pods of its Jobs."""
        return list(dict.fromkeys((JOB_ID, JOB_NAME, BATCH_JOB_NAME, *self._job_keys.values())))

    def _selector(self, job: Workload) -> str:
        ((label, value),) = self.selector(job).items()
        return f"{label}={value}"

    def selector(self, job: Workload) -> dict[str, str]:
        """The label that every pod of the job carries."""
        by_uid = job.kind in (TRAINING_JOB, BARE)
        return {self._job_keys.get(job.kind.name, job.kind.pod_label): job.uid if by_uid else job.name}

    async def owner_uid(self, pod: Object) -> str:
        """UID of the job that a pod is of; empty: of none that we know. Who controls it says so. What nobody controls is a pod of
        its own, by its label, or was made or released by a recovery: then the mark of a recovery and an owner say the same. That
        this job is in the pod's namespace is for the caller to see."""
        metadata = pod["metadata"]
        if controller := controller_of(pod):
            return await self._above(metadata["namespace"], controller)
        said = str(metadata.get("labels", {}).get(JOB_ID, ""))
        if not said or is_bare(pod):
            return said
        for owner in metadata.get("ownerReferences", ())[:MOST_OWNERS]:
            if await self._above(metadata["namespace"], owner) == said:
                return said
        return ""

    async def _above(self, namespace: str, owner: Object) -> str:
        """UID of the job that an owner of a pod is, or is a part of."""
        return await self._top(namespace, owner) if owner["kind"] == BATCH_JOB.name else str(owner["uid"])

    async def _top(self, namespace: str, owner: Object, levels: int = LEVELS) -> str:
        """UID of the job that controls the controller, and so on: a JobSet makes Jobs, a TrainJob makes a JobSet."""
        uid = str(owner["uid"])
        if uid not in self._tops:
            if (found := await self._owner(namespace, owner)) is None:
                return uid
            above = controller_of(found) if levels > 1 and _has_top(found) else None
            if len(self._tops) >= MOST_TOPS:
                self._tops.clear()
            self._tops[uid] = await self._top(namespace, above, levels - 1) if above else uid
        return self._tops[uid]

    async def _owner(self, namespace: str, owner: Object) -> Object | None:
        """None: it is gone, or a tenant made it up. Nobody is made to ask for such a one twice."""
        kind, name, uid = str(owner["kind"]), str(owner["name"]), str(owner["uid"])
        place = (namespace, kind, name, uid)
        if place in self._strange or not (is_name(name) and is_name(uid)):  # they become a part of a path, and are kept
            return None
        try:
            found = await self._api.get(BY_NAME[kind].path(namespace, name))
        except NotFound:
            found = {"metadata": {"uid": ""}}
        if found["metadata"]["uid"] == uid:
            return found
        if len(self._strange) >= MOST_TOPS:
            self._strange.clear()
        self._strange.add(place)
        return None


def _has_top(thing: Object) -> bool:
    """Whether a job of a kind that we know controls it."""
    above = controller_of(thing)
    return above is not None and above["kind"] in BY_NAME


def in_scope(plural: str, scope: str) -> str:
    """The path of all things of a kind of the core, in a namespace or, without one, in all."""
    return f"/api/v1/namespaces/{scope}/{plural}" if scope else f"/api/v1/{plural}"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _pods_path(job: Workload) -> str:
    return f"/api/v1/namespaces/{job.namespace}/pods"
