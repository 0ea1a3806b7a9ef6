"""Watches everything that recoveries need from one API server, as one stream of our own objects.

Jobs of every kind that is installed, their pods, all nodes, and namespaces, whose label may say `observe`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from prometheus_client import Counter

from activities.clusters.api_server import BOOKMARK, Api, Change, Object, lean
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.claims import elsewhere
from activities.clusters.kubernetes.events import About, about_job, about_other
from activities.clusters.kubernetes.kind import Kind, Workload
from activities.clusters.kubernetes.kinds.bare_pods import bare_job, is_bare, refuse_misnamed
from activities.clusters.kubernetes.node_reports_index import SaidOfNodes
from activities.clusters.kubernetes.objects import (
    is_managed,
    job_object_of,
    metadata_of,
    node_of,
    pod_of,
    shown_by,
)
from activities.clusters.kubernetes.pod_operations import side_by_side
from activities.clusters.kubernetes.reader import Reader, in_scope
from activities.clusters.kubernetes.reports import Where, of_event, places
from activities.clusters.kubernetes.schemas import Named, checked, reading
from activities.clusters.port import Snapshot
from rekindle.errors import BadInput, NotFound, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import JobObject, JobSpec, Node, Pod, PodTemplate, WatchEvent
from rekindle.model.job import no_restart
from rekindle.model.rules import Rules
from rekindle.policy.detection.sighting import end_of
from rekindle.policy.detection.trimming import kept_of_node, kept_of_pod
from rekindle.settings import Settings

NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"

LONGEST_WAIT = 60.0
"""Maximum seconds between two checks for expired reports. The system clock may be set meanwhile."""

HOLDERS = 10.0
"""Seconds between two checks of the Leases of other installations that recover jobs."""

INSTALLED = 60.0
"""Seconds between two checks for a kind that is not installed, so that its jobs are found without a complete new list."""

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
RELISTS = Counter("rekindle_relists", "Complete lists of a kind of objects, the first one included.", ("kind",))

logger = logging.getLogger("watcher")


@dataclass(frozen=True)
class Stream:
    """List and watch of a path."""

    what: Kind | Where | Literal["pods", "nodes", "namespaces"]
    path: str
    selector: str = ""

    @property
    def kind(self) -> str:
        """Kind of the objects, for people."""
        return self.path.rpartition("/")[2]

    @property
    def query(self) -> dict[str, str]:
        if isinstance(self.what, Where):
            return dict(self.what.query)
        return {"labelSelector": self.selector} if self.selector else {}


@dataclass(frozen=True)
class Found:
    """Objects that exist when the watch begins, by UID."""

    pods: dict[str, Pod]
    nodes: dict[str, Node]


Queue = asyncio.Queue[tuple[Stream, Change] | Exception]
Refuse = Callable[[About, BadInput], None]
Understood = TypeVar("Understood")


class Watch:
    """Run of the watch. When it breaks, a new one is created."""

    def __init__(self, api: Api, reader: Reader, settings: Settings, refuse: Refuse, rules: Rules) -> None:
        """Args:
        refuse: receives objects whose content is invalid.
        rules: which labels and annotations of nodes are kept, and which components report about nodes.
        """
        self._claims = reader.claims
        self._rules, self._said = rules, SaidOfNodes(rules)
        self._api, self._reader, self._settings, self._refuse = api, reader, settings, refuse
        self._jobs: dict[str, Workload] = {}
        """Jobs that ask for recoveries, by UID."""
        self._bare: dict[str, dict[str, Object]] = {}
        """Pods without controller, by job and UID."""
        self._modes: dict[str, str] = {}
        """Mode from the label of each namespace, by name."""
        self._shown: dict[str, int] = {}
        """Hash of what each node showed last, by UID. Most changes of nodes are heartbeats, which leave it unchanged."""

    async def events(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        if self._claims:
            await self._claims.own()
        found = Found({}, {})
        since = [(stream, await self._begin(stream, found)) for stream in self._streams()]
        yield await self._snapshot(found)
        del found
        async with self._changes(since) as changes:
            async for one in changes:
                for event in await self._take(*one) if one else self._ended():
                    yield event

    def paths(self) -> list[tuple[str, dict[str, str]]]:
        """Returns the paths and queries of everything that is listed and watched."""
        return [(stream.path, stream.query) for stream in self._streams()]

    def _streams(self) -> list[Stream]:
        """Returns the streams in the order in which they are read: namespaces, jobs, pods.

        Each is needed to interpret the next.
        """
        scopes = self._reader.scopes
        pods = [Stream("pods", in_scope("pods", scope), label) for scope in scopes for label in self._reader.pod_labels]
        jobs = [Stream(kind, kind.path(scope)) for kind in self._reader.kinds for scope in scopes]
        reports = [Stream(where, where.path) for where in places(self._rules)]
        return [Stream("namespaces", NAMESPACES), *jobs, *reports, Stream("nodes", NODES), *pods]

    @asynccontextmanager
    async def _changes(
        self, streams: list[tuple[Stream, str]]
    ) -> AsyncIterator[AsyncGenerator[tuple[Stream, Change] | None, None]]:
        """Yields the changes of all streams.

        Ends when the first one breaks, or when a missing kind was installed. None: a report about a node has expired.
        """
        queue: Queue = asyncio.Queue(maxsize=100)

        async def pump(stream: Stream, since: str) -> None:
            try:
                if not since:
                    await self._until_installed(stream)
                async for change in self._api.watch(stream.path, since, **stream.query):
                    await queue.put((stream, change))
            except Exception as error:  # noqa: BLE001  (whatever it is, the reader of the queue raises it)
                await queue.put(error)

        async def claim() -> None:
            try:
                await self._keep_claiming()
            except Exception as error:  # noqa: BLE001
                await queue.put(error)

        pumps = [asyncio.create_task(pump(stream, since)) for stream, since in streams]
        pumps.append(asyncio.create_task(claim()))
        try:
            yield self._read_from(queue)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _until_installed(self, stream: Stream) -> None:
        """Waits until a kind is installed.

        Raises:
            WatchExpired, when it is.
        """
        while True:
            await asyncio.sleep(INSTALLED)
            with suppress(NotFound):
                await self._api.list(stream.path)
                raise WatchExpired(f"{stream.path} is there now")

    async def _read_from(self, queue: Queue) -> AsyncGenerator[tuple[Stream, Change] | None, None]:
        while True:
            ends = self._said.next_end
            try:
                async with asyncio.timeout(None if ends is None else min(ends, LONGEST_WAIT)):
                    item = await queue.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(item, Exception):
                raise item
            yield item

    # ---- the beginning

    async def _begin(self, stream: Stream, found: Found) -> str:
        """Reads all objects of a stream one by one, as they are large and there are tens of thousands.

        Returns the version at which the watch continues; empty: the kind is not installed.
        """
        RELISTS.labels(stream.kind).inc()
        try:
            async with aclosing(self._api.everything(stream.path, **stream.query)) as changes:
                async for change in changes:
                    if change.type == BOOKMARK:
                        return str(change.object["metadata"]["resourceVersion"])
                    await self._alone(stream, change.object, self._first(stream, change, found))
        except NotFound:
            if not isinstance(stream.what, Kind):
                raise
        return ""

    async def _first(self, stream: Stream, change: Change, found: Found) -> None:
        """Stores an object that exists at the beginning. No event is sent, as the snapshot contains everything."""
        thing, uid, gone = change.object, change.object["metadata"]["uid"], change.type == "DELETED"
        if isinstance(stream.what, Where):
            self._hear(stream.what, thing, gone=gone)
        elif isinstance(stream.what, Kind):
            self._note_job(Workload(stream.what, lean(thing)))
            if gone:
                self._jobs.pop(uid, None)
        elif stream.what == "namespaces":
            self._note_mode(thing)
        elif stream.what == "nodes":
            found.nodes.pop(uid, None)
            if not gone:
                found.nodes[uid] = self._node(thing)
        else:
            await self._first_pod(change, found)

    async def _first_pod(self, change: Change, found: Found) -> None:
        """Stores a pod that exists at the beginning.

        The job of pods without controller is known only after all pods have been read.
        """
        pod, uid = change.object, change.object["metadata"]["uid"]
        refuse_misnamed(pod)
        found.pods.pop(uid, None)
        if is_bare(pod):
            self._note_bare(pod, change.type)
        elif change.type != "DELETED" and (seen := await self._pod(pod)):
            found.pods[uid] = seen

    async def _snapshot(self, found: Found) -> Snapshot:
        pods = Stream("pods", "")
        bare = [pod for known in list(self._bare.values()) for pod in known.values()]
        for job_id, pod in {_job_id(pod): pod for pod in bare}.items():
            await self._alone(pods, pod, self._renew_bare(job_id))
        stopped = [job_id for job_id in await self._remembered() if job_id not in self._jobs]
        await side_by_side(self._renew_claim(job) for job in list(self._jobs.values()))
        read = {job.uid: self._read(job) for job in list(self._jobs.values())}
        loose = [await self._alone(pods, pod, self._pod(pod)) for pod in bare]
        return Snapshot(
            [job for job in read.values() if job],
            [*found.pods.values(), *(pod for pod in loose if pod)],
            list(found.nodes.values()),
            [*(uid for uid, job in read.items() if job is None), *stopped],
        )

    async def _remembered(self) -> set[str]:
        """Returns the jobs of pods without controller of which templates are stored.

        In the middle of a restart there is nothing else of them.
        """
        found = set()
        for scope in self._reader.scopes:
            async for page in self._api.metadata(in_scope("podtemplates", scope), labelSelector=keys.JOB_ID):
                found |= {_job_id(template) for template in page.items if is_bare(template)}
        return found

    def _node(self, raw: Object) -> Node:
        self._shown[raw["metadata"]["uid"]] = shown_by(raw)
        return self._said.put(kept_of_node(node_of(raw), self._rules))

    def _hear(self, where: Where, thing: Object, *, gone: bool) -> list[Node]:
        """Stores the reports of an object about nodes, and returns the nodes that changed. Errors in events are ignored."""

        def wrong(why: str) -> None:
            if where.read is not of_event:
                self._refuse(about_other("ConfigMap", thing), BadInput(why[: schemas.MOST_CHARACTERS]))

        return self._said.take(where, thing, gone=gone, wrong=wrong)

    # ---- one object's trouble is its owner's

    async def _alone(self, stream: Stream, thing: Object, understood: Awaitable[Understood]) -> Understood | None:
        """Returns the result of reading one object; None if it cannot be read.

        The object's owner is then informed. An exception that an object causes is handled only here.
        """
        try:
            with reading():
                return await understood
        except BadInput as error:
            self._refuse(self._about(stream, thing), error)
            return None

    def _about(self, stream: Stream, thing: Object) -> About:
        if isinstance(stream.what, Kind):
            return about_job(Workload(stream.what, thing))
        kinds = {"pods": "Pod", "nodes": "Node", "namespaces": "Namespace"}
        return about_other(kinds.get(str(stream.what), "ConfigMap"), thing)

    # ---- changes

    def _ended(self) -> list[WatchEvent]:
        return [WatchEvent(type="MODIFIED", kind="Node", object=node) for node in self._said.ended()]

    async def _take(self, stream: Stream, change: Change) -> list[WatchEvent]:
        return await self._alone(stream, change.object, self._follows(stream, change)) or []

    async def _follows(self, stream: Stream, change: Change) -> list[WatchEvent]:
        thing = change.object
        kind: EventType = change.type  # type: ignore[assignment]
        if isinstance(stream.what, Where):
            changed = self._hear(stream.what, thing, gone=kind == "DELETED")
            return [WatchEvent(type="MODIFIED", kind="Node", object=node) for node in changed]
        if stream.what == "nodes":
            return self._take_node(thing, kind)
        if stream.what == "namespaces":
            return await self._take_namespace(thing, kind)
        if stream.what == "pods":
            return await self._take_pod(thing, kind)
        return await self._take_job(Workload(stream.what, lean(thing)), kind)

    def _take_node(self, raw: Object, kind: EventType) -> list[WatchEvent]:
        if kind == "DELETED":
            self._shown.pop(raw["metadata"]["uid"], None)
            return [WatchEvent(type=kind, kind="Node", object=self._said.drop(node_of(raw)))]
        if self._shown.get(raw["metadata"]["uid"]) == shown_by(raw):
            return []
        return [WatchEvent(type=kind, kind="Node", object=self._node(raw))]

    async def _take_namespace(self, namespace: Object, kind: EventType) -> list[WatchEvent]:
        name = namespace["metadata"]["name"]
        before = self._observes(name)
        self._note_mode(namespace)
        if kind == "DELETED" or self._observes(name) == before:
            return []
        own = [one for one in self._jobs.values() if one.namespace == name]
        await side_by_side(self._renew_claim(job) for job in own)
        jobs = [self._read(self._jobs[one.uid]) for one in own]
        return [WatchEvent(type="MODIFIED", kind="Job", object=read) for read in jobs if read]

    async def _take_job(self, job: Workload, kind: EventType) -> list[WatchEvent]:
        before = self._jobs.get(job.uid)
        was = before is not None and before.kind is job.kind
        if kind == "DELETED":
            self._jobs.pop(job.uid, None)
            self._reader.forget(job.uid)
            return [_gone(job)] if was else []
        self._note_job(job)
        if job.uid not in self._jobs:
            return [_gone(job)] if was else []
        await self._renew_claim(job)
        read = self._read(self._jobs[job.uid])
        if read is None:
            return []
        told = [WatchEvent(type="MODIFIED" if was else "ADDED", kind="Job", object=read)]
        if not was:  # its pods may have come before it
            pods = [await self._pod(pod) for pod in await self._reader.pods(job)]
            told += [WatchEvent(type="ADDED", kind="Pod", object=pod) for pod in pods if pod]
        return told

    async def _take_pod(self, pod: Object, kind: EventType) -> list[WatchEvent]:
        refuse_misnamed(pod)
        told = await self._take_bare(pod, kind) if is_bare(pod) else []
        if seen := await self._pod(pod):
            told.append(WatchEvent(type=kind, kind="Pod", object=seen))
        return told

    async def _take_bare(self, pod: Object, kind: EventType) -> list[WatchEvent]:
        """Updates the job that pods without controller form. It changes with them, and ends with the last one."""
        job_id = self._note_bare(pod, kind)
        before = self._jobs.get(job_id)
        await self._renew_bare(job_id)
        job = self._jobs.get(job_id)
        if job is None:
            return [_gone(before)] if before else []
        read = self._read(job)
        return [WatchEvent(type="MODIFIED", kind="Job", object=read)] if read else []

    # ---- which installation recovers a job

    async def _renew_claim(self, job: Workload, *, over: bool = False) -> None:
        """Claims a job that is to be recovered, unless another installation has claimed it.

        Args:
            over: the installation that recovers it is gone.
        """
        if self._claims is None or self._observes(job.namespace):
            return
        with suppress(BadInput), reading():
            if end_of(job_object_of(job, observe=False)):
                return
            claimed = await self._claims.claim(job, over=over)
            if self._jobs.get(job.uid) is job:
                self._jobs[job.uid] = claimed

    async def _keep_claiming(self) -> None:
        """Claims the jobs of installations that are gone. The watch then reports the changed annotation of each job."""
        while self._claims:
            await asyncio.sleep(HOLDERS)
            theirs = [(job, holder) for job in self._jobs.values() if (holder := self._claims.others(job))]
            over = await self._claims.over({holder for _, holder in theirs})
            for job, holder in theirs:
                if holder in over:
                    await self._renew_claim(job, over=True)

    # ---- what is known

    def _note_mode(self, namespace: Object) -> None:
        metadata = checked(Named, namespace)["metadata"]
        self._modes[metadata["name"]] = metadata.get("labels", {}).get(keys.MODE, "")

    def _observes(self, namespace: str) -> bool:
        """Returns whether jobs of the namespace are only observed.

        The namespace's label has precedence over the installation's setting.
        """
        said = self._modes.get(namespace, "")
        return said == "observe" or (self._settings.observe and said != "active")

    def _note_job(self, job: Workload) -> None:
        self._reader.remember(job)
        if is_managed(job) and not self._reader.is_part(job):
            self._jobs[job.uid] = job
        else:
            self._jobs.pop(job.uid, None)

    def _note_bare(self, pod: Object, kind: str) -> str:
        job_id = _job_id(pod)
        pods = self._bare.setdefault(job_id, {})
        pods.pop(pod["metadata"]["uid"], None)
        if kind != "DELETED":
            pods[pod["metadata"]["uid"]] = checked(schemas.Pod, lean(pod))
        return job_id

    async def _renew_bare(self, job_id: str) -> None:
        """Reads again the job of pods without controller. During a restart it has only templates."""
        namespace = job_id.partition(".")[0]
        if pods := list(self._bare.get(job_id, {}).values()):
            self._jobs[job_id] = bare_job(namespace, job_id, pods)
        elif job_id in self._jobs:
            path = f"/api/v1/namespaces/{namespace}/podtemplates"
            if not (await self._api.list(path, labelSelector=f"{keys.JOB_ID}={job_id}")).items:
                del self._jobs[job_id], self._bare[job_id]
        else:
            self._bare.pop(job_id, None)

    def _read(self, job: Workload) -> JobObject | None:
        try:
            with reading():
                others = self._claims.others(job) if self._claims else ""
                read = job_object_of(job, observe=self._observes(job.namespace) or bool(others))
        except BadInput as error:
            self._refuse(about_job(job), error)
            return None
        if others and not end_of(read):
            self._refuse(replace(about_job(job), word="Recoveries"), BadInput(elsewhere(others)))
        if read.queue:
            self._refuse(replace(about_job(job), word="Restarts"), BadInput(no_restart(read.queue)))
        if read.unmovable:
            self._refuse(replace(about_job(job), word="HotSwitches"), BadInput(f"no pod of it is moved: {read.unmovable}"))
        return read

    async def _pod(self, pod: Object) -> Pod | None:
        job = self._jobs.get(await self._reader.owner_uid(pod))
        if job is None or not _is_of(pod, job):
            return None
        return kept_of_pod(pod_of(lean(pod), job, self._settings.rank_keys), self._rules)


def _is_of(pod: Object, job: Workload) -> bool:
    """Returns whether the pod can belong to this job.

    A tenant can write any owner, but cannot change the namespace of the pod.
    """
    return bool(pod["metadata"]["namespace"] == job.namespace)


def _job_id(pod: Object) -> str:
    """Returns the job id that a pod without controller names."""
    return str(pod["metadata"]["labels"][keys.JOB_ID])


def _gone(job: Workload) -> WatchEvent:
    """Returns the event of a deleted job.

    It needs only the job's identity, so that the job ends even if nothing else of its object can be read.
    """
    metadata = metadata_of(checked(Named, {"metadata": job.metadata}))
    spec = JobSpec(pods=1, ranks_per_pod=1, template=PodTemplate(command=("gone",)))
    return WatchEvent(type="DELETED", kind="Job", object=JobObject(kind=job.kind.name, metadata=metadata, spec=spec))
