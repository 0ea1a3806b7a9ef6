"""Reads from Kubernetes: a job by its UID, the pods of a job, and the job of a pod. Used by the drivers and the watch."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from activities.clusters.api_server import Api, Listing, Object, lean
from activities.clusters.kubernetes.claims import Claims
from activities.clusters.kubernetes.kind import Kind, Workload, group_of
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.kinds.bare_pods import BARE_ID, bare_job, is_bare
from activities.clusters.kubernetes.objects import is_managed
from activities.clusters.kubernetes.pod_objects import controller_of
from activities.clusters.kubernetes.schemas import Pod, PodTemplate, checked, reading
from rekindle.errors import BadInput, ClusterError, ClusterUnavailable, NotFound, Refused, WatchExpired
from rekindle.model.keys import JOB_ID, MANAGER_OF
from rekindle.model.sizes import LONGEST_NAME
from rekindle.settings import Settings

LOOK_GAP = 1.0
"""Minimum seconds between two lists of all jobs. Anybody may name a job that does not exist."""

LOOK_REST = 5.0
"""Minimum time between two lists on behalf of unknown callers, as a multiple of the duration of the last list.

Lists of a large cluster have many megabytes.
"""

LEVELS = 3
"""Maximum levels of controllers above a pod: a Job, its JobSet, and the TrainJob of that.

Tenants can write owners that own each other.
"""

MOST_OWNERS = 5
"""Owners of a pod that are checked. Usually there is one; tenants can write very many."""

MOST_TOPS = 100_000
"""Maximum number of jobs whose top-level job is cached. If it is exceeded, jobs are read again."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Pattern of the names of objects that the API server accepts."""


def is_name(text: str) -> bool:
    """Returns whether the text is a valid name of an object. Other text must not become part of a path."""
    return len(text) <= LONGEST_NAME and bool(NAME.fullmatch(text))


class Reader:
    def __init__(self, api: Api, settings: Settings, kinds: Sequence[Kind] = KINDS, claims: Claims | None = None) -> None:
        """Args:
            claims: which installation recovers which job; by default there is none but this one.

        Raises:
            BadInput: a setting names a kind that there is not.
        """
        self._api, self.kinds, self.claims = api, kinds, claims
        self._parts = {kind.made_of for kind in kinds if kind.made_of}
        self._owners = {(kind.group, kind.name): kind for kind in (*kinds, *self._parts)}
        self.scopes = settings.namespaces or ("",)
        self._job_keys = _job_keys(settings, kinds)
        self._where: dict[str, tuple[Kind, str, str]] = {}
        """Kind, namespace and name of the known jobs, by UID."""
        self._above_of: dict[str, Object] = {}
        """Owner reference of the controller of a job that is part of another job, by the job's UID."""
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        """Time at which all jobs were last listed."""
        self._look_took = 0.0
        self._look_failed: ClusterError | None = None
        self._tops: dict[str, str] = {}
        """UID of the top-level job of a batch Job, by the UID of a Job that was not seen itself."""
        self._marks = {kind.indexing.mark[0] for kind in kinds if kind.indexing.mark[0]}
        self._marked: dict[str, dict[str, str]] = {}
        """Marks of the objects that create pods, by UID."""
        self._strange: set[tuple[str, ...]] = set()
        """Namespace, kind, name and UID of owners that do not exist and never will."""

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
        """Waits until the namespace and name of the job are known. Concurrent callers share the requests.

        Raises:
            NotFound: there is no such job.
        """
        if "." in job_id or job_id in self._where:
            return
        await self._look_around(max(LOOK_GAP, LOOK_REST * self._look_took))
        if job_id not in self._where:
            raise NotFound(f"no job has the UID {job_id}")

    async def _look_around(self, gap: float) -> None:
        """Lists all jobs. Concurrent callers share one list, and no caller can cause more frequent lists.

        Args:
            gap: minimum seconds since the last list.
        """
        asked = _now()
        async with self._looking:
            if self._looked > asked:
                if self._look_failed:  # callers share a failed list too: it does not show that there is no such job
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
        for kind in self.kinds:
            for scope in self.scopes:
                with suppress(NotFound):  # the kind is not installed
                    async for page in self._api.metadata(kind.path(scope)):
                        for item in page.items:
                            self.remember(Workload(kind, item))
                            gone.discard(item["metadata"]["uid"])
        for job_id in gone:
            self.forget(job_id)

    def remember(self, job: Workload) -> None:
        """Stores where a job is, so that it is found by its UID.

        Also stores what it is part of, so that this is not read for each of its pods.
        """
        self._where[job.uid] = (job.kind, job.namespace, job.name)
        self._above_of.pop(job.uid, None)
        self._note_marks(job)
        if self.is_part(job) and (above := controller_of(job.object)):
            self._above_of[job.uid] = above

    def _note_marks(self, part: Workload) -> None:
        labels = part.metadata.get("labels") or {}
        if marks := {key: labels[key] for key in self._marks if key in labels}:
            self._marked[part.uid] = marks

    def forget(self, job_id: str) -> None:
        """Removes everything that is cached about the job."""
        self._where.pop(job_id, None)
        self._above_of.pop(job_id, None)
        self._tops.pop(job_id, None)
        self._marked.pop(job_id, None)

    def where(self, job_id: str) -> tuple[str, str] | None:
        """Returns namespace and name of a known job; None: it is gone, or was never seen."""
        return found[1:] if (found := self._where.get(job_id)) else None

    async def seen(self, job_id: str) -> Workload | None:
        """Returns the object of a known job, unchecked; None: it is gone, or was never seen."""
        if (where := self._where.get(job_id)) is None:
            return None
        kind, namespace, name = where
        try:
            job = Workload(kind, await self._api.get(kind.path(namespace, name)))
        except NotFound:
            del self._where[job_id]
            return None
        if job.uid != job_id:
            return None
        self.remember(job)
        return job

    async def _bare(self, job_id: str) -> Workload | None:
        """Returns the job of pods without controller, from the pods or from the templates that a restart left.

        Its id contains their namespace.
        """
        namespace = job_id.partition(".")[0]
        if not BARE_ID.fullmatch(job_id) or not {"", namespace} & set(self.scopes):
            return None
        for plural, shape in (("pods", Pod), ("podtemplates", PodTemplate)):
            found = (await self._api.list(in_scope(plural, namespace), labelSelector=f"{JOB_ID}={job_id}")).items
            if own := [checked(shape, thing) for thing in found if is_bare(thing)]:
                return bare_job(namespace, job_id, own)
        return None

    # ---- pods

    async def pods(self, job: Workload, keep: Callable[[Object], Object] = lean) -> list[Object]:
        """Returns all pods of a job, terminating ones too.

        Args:
            keep: reduces a pod to what is needed; a pod may have 100 KiB, and a job thousands of pods.
        """
        return (await self._listing(job, keep)).items

    async def on_node(self, node: str) -> list[tuple[Workload, list[Object]]]:
        """Returns the pods of jobs on a node, by job.

        Tenants may write any owner on a pod: all pods of unknown jobs together cost one list of jobs.
        """
        if not is_name(node):
            return []
        by_job: dict[str, list[Object]] = {}
        labels = set(self.pod_labels)
        for scope in self.scopes:
            for pod in (await self._api.list(in_scope("pods", scope), fieldSelector=f"spec.nodeName={node}")).items:
                if labels & pod["metadata"].get("labels", {}).keys() and (uid := await self.owner_uid(pod)):
                    by_job.setdefault(uid, []).append(pod)
        if any("." not in uid and uid not in self._where for uid in by_job):
            await self._look_around(LOOK_GAP)
        found = []
        for uid, pods in by_job.items():
            with suppress(BadInput), reading(f"job {uid}"):
                if job := await (self._bare(uid) if "." in uid else self.seen(uid)):
                    found.append((job.checked(), [pod for pod in pods if pod["metadata"]["namespace"] == job.namespace]))
        return found

    async def parts(self, job: Workload) -> list[Workload]:
        """Returns the objects that create the pods of a job; empty if the job does so itself."""
        if (kind := job.kind.made_of) is None:
            return []
        parts = [
            Workload(kind, one)
            for one in (await self._api.list(kind.path(job.namespace), labelSelector=self._selector(job))).items
        ]
        return [part.checked() for part in parts if await self._top(job.namespace, part.reference) == job.uid]

    async def managers(self, job: Workload) -> list[Object]:
        """Returns the pods of the training side's manager that have a separate controller."""
        return (await self._api.list(_pods_path(job), labelSelector=f"{MANAGER_OF}={job.name}")).items

    async def job_of_pod(self, namespace: str, name: str, uid: str) -> str:
        """Returns the UID of the job that a pod belongs to, or that it says it is the manager of.

        Raises:
            NotFound: there is no such pod. Refused: it is of no job, or of which one is unknown.
        """
        if not (is_name(namespace) and is_name(name)) or not {"", namespace} & set(self.scopes):
            raise NotFound(f"the token's pod {namespace[:40]}/{name[:40]} is in no namespace that is looked after")
        pods = (await self._api.list(in_scope("pods", namespace), fieldSelector=f"metadata.name={name}")).items
        with reading(f"pod {name}"):
            pod = next((checked(Pod, pod) for pod in pods if pod["metadata"]["uid"] == uid), None)
        if pod is None:
            raise NotFound(f"the token's pod {namespace}/{name} is not there any more")
        if said := pod["metadata"].get("labels", {}).get(MANAGER_OF, ""):
            return (await self._named(namespace, said)).uid
        job = await self._of_pod(namespace, pod)
        if job is None or not is_managed(job):
            of = f"{job.kind.name} {job.name}, which asks for no recoveries" if job else "no job of this namespace"
            raise Refused(f"the token's pod {namespace}/{name} is of {of}: its label {MANAGER_OF} may name the job")
        return job.uid

    async def _of_pod(self, namespace: str, pod: Object) -> Workload | None:
        """Returns the job that a pod belongs to, if that is in the pod's namespace.

        Tenants can name owners of other namespaces.
        """
        found = await self.owner_uid(pod)
        if "." in found:
            job = await self._bare(found)
        else:
            with suppress(NotFound):
                await self.locate(found)
            job = await self.seen(found)
        return job if job and job.namespace == namespace else None

    async def _named(self, namespace: str, name: str) -> Workload:
        """Returns the job with this name that asks for recoveries."""
        found = []
        for kind in self.kinds if is_name(name) else ():
            with suppress(NotFound):  # or the kind is not installed
                job = Workload(kind, await self._api.get(kind.path(namespace, name)))
                self.remember(job)
                found += [job] if kind.has_object and is_managed(job) and not self.is_part(job) else []
        if len(found) == 1:
            return found[0]
        kinds = " and ".join(f"the {job.kind.name}" for job in found) or "nothing"
        raise Refused(
            f"the label {MANAGER_OF}={name[:63]} of the token's pod names {kinds} of namespace {namespace}: "
            "accepted is the name of one job that asks for recoveries"
        )

    async def _listing(self, job: Workload, keep: Callable[[Object], Object] = lean) -> Listing:
        found = []
        async for page in self._api.pages(_pods_path(job), labelSelector=self._selector(job)):
            found += [keep(pod) for pod in page.items if await self.owner_uid(pod) == job.uid]
        return Listing(found, page.resource_version)

    async def follow(self, job: Workload) -> AsyncGenerator[list[Object], None]:
        """Yields all pods of a job, and again after each change. A slow consumer gets several changes at once."""
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
        """Keeps `pods` up to date with the watch. Ends with an error when the watch does."""
        async with aclosing(self._api.watch(_pods_path(job), since, labelSelector=self._selector(job))) as changes:
            async for change in changes:
                if await self.owner_uid(change.object) != job.uid:
                    continue
                if change.type == "DELETED":
                    pods.pop(change.object["metadata"]["uid"], None)
                else:
                    pods[change.object["metadata"]["uid"]] = lean(change.object)
                changed.set()

    async def until(self, job: Workload, done: Callable[[Sequence[Object]], bool], limit: float) -> list[Object]:
        """Returns the job's pods as soon as `done` is true, or as they were last seen within `limit` seconds.

        They are always read once: without an answer of the API server it is not known that they are gone.
        """
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
        """Labels of which every pod of a job carries one. The pods of a job with parts carry those of the parts."""
        own = (kind.pod_label for kind in self.kinds if kind.made_of not in self.kinds)
        return list(dict.fromkeys((JOB_ID, *own, *self._job_keys.values())))

    def _selector(self, job: Workload) -> str:
        ((label, value),) = self.selector(job).items()
        return f"{label}={value}"

    def selector(self, job: Workload) -> dict[str, str]:
        """Returns the label that every pod of the job carries."""
        named = self._job_keys.get(job.kind.name)
        return {named: job.name} if named else job.selector

    async def selector_of_ranks(self, job: Workload) -> dict[str, str]:
        """Returns labels that every pod with a rank carries.

        They are the marks of the parts with ranks, or a usual name if no part is marked.
        """
        own = job.kind.indexing
        if not own.carries_ranks:
            return self.selector(job)
        key, wanted = own.mark
        marked = (part for part in await self.parts(job) if part.metadata.get("labels", {}).get(key) == wanted)
        names = {part.metadata["labels"].get(own.type_label, "") for part in marked}
        name = names.pop() if len(names) == 1 else own.carries_ranks
        return {**self.selector(job), own.type_label: name or own.carries_ranks}

    async def owner_uid(self, pod: Object) -> str:
        """Returns the UID of the job that a pod belongs to; empty: no known one.

        The pod's controller decides. A pod without controller is a job's own by its label, or was created or released by a
        recovery: then the mark of the recovery and an owner must agree. The caller must check that the job is in the pod's
        namespace. The marks of the controller are copied to the pod.
        """
        metadata = pod["metadata"]
        if controller := controller_of(pod):
            above = await self._above(metadata["namespace"], controller)
            if marks := self._marked.get(str(controller["uid"])):
                metadata["labels"] = {**(metadata.get("labels") or {}), **marks}
            return above
        said = str(metadata.get("labels", {}).get(JOB_ID, ""))
        if not said or is_bare(pod):
            return said
        for owner in metadata.get("ownerReferences", ())[:MOST_OWNERS]:
            if await self._above(metadata["namespace"], owner) == said:
                return said
        return ""

    async def _above(self, namespace: str, owner: Object) -> str:
        """Returns the UID of the job that is the owner of a pod, or that the owner is part of."""
        return await self._top(namespace, owner) if self._kind_of(owner) in self._parts else str(owner["uid"])

    def _kind_of(self, owner: Object) -> Kind | None:
        """Returns the kind of an owner; None: it is unknown.

        Kinds of other groups may have the same name: Volcano has a Job too.
        """
        return self._owners.get((group_of(owner.get("apiVersion", "")), owner["kind"]))

    async def _top(self, namespace: str, owner: Object, levels: int = LEVELS) -> str:
        """Returns the UID of the topmost controlling job: a TrainJob creates a JobSet, and a JobSet creates Jobs."""
        uid, kind = str(owner["uid"]), self._kind_of(owner)
        known = self._where.get(uid)
        if known and known[0] is kind and known[1:] == (namespace, owner["name"]):
            above = self._above_of.get(uid)
            return await self._top(namespace, above, levels - 1) if above and levels > 1 else uid
        if kind and uid not in self._tops:
            if (found := await self._found(kind, namespace, owner)) is None:
                return uid
            above = controller_of(found.object) if self.is_part(found) else None
            if len(self._tops) >= MOST_TOPS:
                self._marked = {known: marks for known, marks in self._marked.items() if known in self._where}
                self._tops.clear()
            self._note_marks(found)
            self._tops[uid] = await self._top(namespace, above, levels - 1) if above and levels > 1 else uid
        return self._tops.get(uid, uid)

    def is_part(self, job: Workload) -> bool:
        """Returns whether a job of a known kind controls this job."""
        above = controller_of(job.object)
        return above is not None and self._kind_of(above) is not None

    async def _found(self, kind: Kind, namespace: str, owner: Object) -> Workload | None:
        """Returns the owner object; None: it is gone, or a tenant invented it. An invented owner is requested only once."""
        name, uid = str(owner["name"]), str(owner["uid"])
        if not (is_name(name) and is_name(uid)):  # they become part of a path, and are stored
            return None
        place = (kind.path(namespace, name), uid)
        if place in self._strange:
            return None
        with suppress(NotFound):
            found = Workload(kind, await self._api.get(place[0]))
            if found.uid == uid:
                return found
        if len(self._strange) >= MOST_TOPS:
            self._strange.clear()
        self._strange.add(place)
        return None


def _job_keys(settings: Settings, kinds: Sequence[Kind]) -> dict[str, str]:
    """Returns the labels that the installation configures, by kind. Pods of our own kind are not found by name."""
    named = [kind.name for kind in kinds if kind.pod_label != JOB_ID]
    if wrong := [name for name in settings.job_keys if name not in named]:
        raise BadInput(f"REKINDLE_JOB_KEYS: kind {wrong[0]!r} is not accepted, use {', '.join(sorted(named))}")
    return dict(settings.job_keys)


def in_scope(plural: str, scope: str) -> str:
    """Returns the path of all objects of a core kind, in a namespace or, without one, in all."""
    return f"/api/v1/namespaces/{scope}/{plural}" if scope else f"/api/v1/{plural}"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _pods_path(job: Workload) -> str:
    return f"/api/v1/namespaces/{job.namespace}/pods"
