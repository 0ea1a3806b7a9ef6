"""Implements the port `Cluster` for a Kubernetes API server.

Created by `workers`. The kind of a job decides how its pods are handled.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, suppress

from activities.clusters.api_server import Api, Object
from activities.clusters.kubernetes import schemas
from activities.clusters.kubernetes.budgets import JobBudgets
from activities.clusters.kubernetes.claims import Claims
from activities.clusters.kubernetes.contract_words import ContractWords
from activities.clusters.kubernetes.events import About, about_job, about_other, record
from activities.clusters.kubernetes.kind import Kind, Places, Workload
from activities.clusters.kubernetes.kinds import KINDS
from activities.clusters.kubernetes.missing_rank import is_active, is_backup, lost_rank
from activities.clusters.kubernetes.node_reports_index import SaidOfNodes
from activities.clusters.kubernetes.objects import (
    PodsOf,
    is_managed,
    job_object_of,
    node_of,
    occupant_of,
    pod_of,
    training_side_of,
)
from activities.clusters.kubernetes.pod_operations import AT_ONCE, PodOperations
from activities.clusters.kubernetes.pod_ownership import refusal_of_backup
from activities.clusters.kubernetes.reader import Reader, in_scope, is_name
from activities.clusters.kubernetes.reports import Heard, places
from activities.clusters.kubernetes.schemas import checked, reading
from activities.clusters.kubernetes.terminal import decided
from activities.clusters.kubernetes.tokens import pod_of_token
from activities.clusters.kubernetes.watch import NODES, Watch
from activities.clusters.port import Replacement, Snapshot
from rekindle.errors import BadInput, ClusterError, Forbidden, Invalid, NotFound
from rekindle.model.bounds import cut
from rekindle.model.cluster import ClusterEvent, JobObject, Node, Pod, WatchEvent
from rekindle.model.job import Trait
from rekindle.model.keys import SERIAL_NUMBER
from rekindle.model.rule_file import rules_of
from rekindle.model.senders import Speakers
from rekindle.model.sizes import LONGEST_NAME
from rekindle.policy.detection.pod_ranks import is_over, rank_of
from rekindle.policy.placement import standbys
from rekindle.policy.placement.spares import Occupant
from rekindle.settings import Settings

LAST_EVENTS = 2.0
"""Seconds for which a driver that is closed waits for the events that it is recording."""

MOST_REFUSED = 10_000
"""Maximum number of objects whose last refusal is remembered. If it is exceeded, refusals may be recorded again."""

NOT_OVER = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that occupy what they have requested."""

logger = logging.getLogger("cluster")


class KubernetesCluster:
    """Implements `activities.clusters.port.Cluster`."""

    def __init__(self, api: Api, settings: Settings, kinds: Sequence[Kind] = KINDS, claims: Claims | None = None) -> None:
        """Args:
        claims: which installation recovers which job; by default there is none but this one.
        """
        self._api, self._settings, self.rules = api, settings, rules_of(settings.rules)
        self._claims = claims
        self._reader = Reader(api, settings, kinds, claims)
        self._operations = PodOperations(api, self._reader, settings)
        self.evictions = JobBudgets(api, self._reader, claims)
        self.contract = ContractWords(api, self._operations, self._to_change)
        self._heard = Heard(api, self.rules)
        self._looking = asyncio.Lock()
        self._nodes: Sequence[Node] = ()
        self._looked = float("-inf")
        """Time (monotonic) at which the last completed list of all nodes was started."""
        self._refused: dict[str, str] = {}
        self._recording: set[asyncio.Task[None]] = set()
        self._saying = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Waits a moment for events that are being recorded, and closes the connection."""
        if self._recording:
            _, late = await asyncio.wait(self._recording, timeout=LAST_EVENTS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._api.close()

    # ---- reads

    async def job(self, job_id: str) -> JobObject:
        return job_object_of(await self._reader.job(job_id), observe=self._settings.observe)

    async def pods(self, job_id: str) -> list[Pod]:
        job = await self._reader.job(job_id)
        return self._read(job, await self._reader.pods(job))

    async def pod(self, job_id: str, name: str, uid: str) -> Pod:
        job = await self._reader.job(job_id)
        (pod,) = self._read(job, [await self._raw(job, name, uid)])
        return pod

    async def _raw(self, job: Workload, name: str, uid: str) -> Object:
        if not is_name(name):  # it may come from an annotation, which a tenant can write
            raise NotFound(f"no pod is called {name[:40]!r}")
        pod = await self._api.get(f"/api/v1/namespaces/{job.namespace}/pods/{name}")
        if pod["metadata"]["uid"] != uid or await self._reader.owner_uid(pod) != job.uid:
            raise NotFound(f"no pod {name} of job {job.uid} has the UID {uid}; it has {pod['metadata']['uid']} now")
        return pod

    def _read(self, job: Workload, pods: Sequence[Object]) -> list[Pod]:
        with reading(f"a pod of job {job.uid}"):
            return [pod_of(pod, job, self._settings.rank_keys) for pod in pods]

    async def node(self, name: str) -> Node:
        """Returns a node with the reports of other components about it, as far as the installation's rules use them."""
        node = node_of(await self._api.get(_node(name)))
        reports = await self._heard.of_node(name, node.metadata.annotations.get(SERIAL_NUMBER, ""))
        return node.model_copy(update={"status": node.status.model_copy(update={"reports": reports})})

    async def nodes(self) -> Sequence[Node]:
        """Returns all nodes with the reports of other components about them.

        Concurrent callers share one list, which begins after each of them has asked.

        If our account may not list nodes, or cannot read one, its scheduler's choice is relied on.
        """
        asked = time.monotonic()
        async with self._looking:
            if self._looked < asked:
                began = time.monotonic()
                self._nodes, self._looked = await self._all_nodes(), began
            return self._nodes

    async def _all_nodes(self) -> Sequence[Node]:
        """Reads all nodes in pages.

        There are thousands, of 15 kB each, and more events of them, so other tasks run in between.
        """
        known, found = SaidOfNodes(self.rules), []
        try:
            for where in places(self.rules):
                async for page in self._api.pages(where.path, **dict(where.query)):
                    for thing in page.items:
                        await asyncio.sleep(0)
                        known.take(where, thing, gone=False)
            async for page in self._api.pages(NODES):
                for raw in page.items:
                    await asyncio.sleep(0)
                    with suppress(BadInput), reading():
                        found.append(known.put(node_of(raw)))
        except Forbidden as error:
            logger.warning("nodes not listed", extra={"error": str(error)})
        return found

    async def annotate_node(self, name: str, annotations: dict[str, str | None]) -> None:
        await self._api.patch(_node(name), {"metadata": {"annotations": annotations}})

    async def cordon_node(self, name: str, *, cordoned: bool) -> None:
        await self._api.patch(_node(name), {"spec": {"unschedulable": cordoned or None}})

    async def pods_on(self, node: str) -> Sequence[Pod]:
        """Returns the pods of jobs on a node. All its pods are read with one list; pods of no job cost no further request."""
        found: list[Pod] = []
        for job, pods in await self._reader.on_node(node):
            with suppress(BadInput):
                found += self._read(job, pods) if is_managed(job) else ()
        return [pod for pod in found if not is_over(pod)]

    async def occupants(self) -> Sequence[Occupant]:
        """Reads the pods of all namespaces that are looked after, in pages, so that other tasks run in between."""
        found: list[Occupant] = []
        for scope in self._reader.scopes:
            async for page in self._api.pages(in_scope("pods", scope), fieldSelector=NOT_OVER):
                for raw in page.items:
                    await asyncio.sleep(0)
                    with suppress(BadInput), reading():
                        job_id = await self._reader.owner_uid(raw) if is_backup(raw) else ""
                        found.append(occupant_of(raw, job_id))
        return [one for one in found if one.node]

    async def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        job = await self._reader.job(job_id)
        known = PodsOf(self._settings.rank_keys)
        async with aclosing(self._reader.follow(job)) as states:
            async for pods in states:
                yield known.read(job, pods)

    async def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        async for event in Watch(self._api, self._reader, self._settings, self._refuse, self.rules).events():
            yield event

    async def locate(self, job_id: str) -> None:
        """Waits until the namespace and name of the job are known. Concurrent callers share the wait.

        Raises:
            NotFound: there is no such job.
        """
        await self._reader.locate(job_id)

    async def speakers(self, job_id: str) -> Speakers:
        """Returns the job's pods that are not over, managers included. Pods on the host network have the address of their node.

        Raises:
            NotFound: there is no such job.
        """
        uids: set[str] = set()
        addresses: set[str] = set()
        job = await self._reader.job(job_id)
        with reading(f"a pod of job {job_id}"):
            pods = [*await self._reader.pods(job, _network), *map(_network, await self._reader.managers(job))]
            for pod in (checked(schemas.Speaker, pod) for pod in pods):
                status = pod["status"]
                if status.get("phase") in ("Succeeded", "Failed"):
                    continue
                uids.add(pod["metadata"]["uid"])
                addresses |= {one.get("ip", "") for one in status.get("podIPs", ())} | {status.get("podIP", "")}
                if pod["spec"].get("hostNetwork"):
                    addresses.add(status.get("hostIP", ""))
        return Speakers(training_side_of(job), frozenset(uids), frozenset(addresses - {""}))

    async def job_of_pod(self, namespace: str, name: str, uid: str) -> str:
        """Returns the UID of the job that a pod belongs to, or that it is the manager of.

        Raises:
            NotFound: there is no such pod. Refused: it is of no job, or of which one is unknown.
        """
        return await self._reader.job_of_pod(namespace, name, uid)

    async def pod_of_token(self, token: str) -> str:
        """Returns the UID of the pod that the token is bound to.

        Raises:
            Refused: the token is invalid, or not for us.
        """
        return await pod_of_token(self._api, token)

    # ---- writes

    async def _to_change(self, job_id: str) -> Workload:
        """Returns the job, if this installation recovers it.

        Raises:
            Forbidden: another installation does.
        """
        job = await self._reader.job(job_id)
        if self._claims:
            await self._claims.ensure(job)
        return job

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        job = await self._to_change(old.metadata.owner_uid)
        raw = await self._raw(job, old.metadata.name, old.metadata.uid)
        (backup,) = self._read(job, [await job.kind.count.ensure_backup(self._operations, job, raw, name, avoid_nodes)])
        return backup

    async def refusal_of_backup(self, job_id: str) -> str:
        job = await self._reader.job(job_id)
        pods = await self._reader.pods(job)
        living = (
            (rank, raw)
            for raw, pod in zip(pods, self._read(job, pods), strict=True)
            if is_active(raw) and raw["spec"].get("nodeName") and (rank := rank_of(pod)) is not None
        )
        _, last = max(living, key=lambda one: one[0], default=(0, None))
        return await refusal_of_backup(self._operations, job, last) if last else ""

    async def ensure_replacement(self, job_id: str, pod_rank: int, name: str, avoid_nodes: Sequence[str]) -> Replacement:
        job, pods = await self._decided(job_id)
        ranks = [rank_of(pod) for pod in self._read(job, pods)]
        lost = lost_rank(pod_rank, list(zip(ranks, pods, strict=True)), avoid_nodes)
        made = self._read(job, [await job.kind.count.ensure_replacement(self._operations, job, lost, name, avoid_nodes)])
        unasked = () if job.kind.count.makes_pods else lost.more  # otherwise the controller created them meanwhile
        old = self._read(job, [pod for pod in (lost.old, *unasked) if pod])
        return Replacement(made[0], next(iter(old), None))

    async def ensure_standbys(self, job_id: str, count: int, avoid_nodes: Sequence[str]) -> list[Pod]:
        job = await self._to_change(job_id)
        if count and Trait.NO_STANDBYS in job.kind.traits:
            raise Invalid(f"{job.kind.name} {job.name} cannot have standbys: another party creates its pods")
        raw = await self._reader.pods(job)
        by_uid = {pod["metadata"]["uid"]: pod for pod in raw}
        plan = standbys.plan(_stem_of_standbys(job), self._read(job, raw), count, avoid_nodes)
        model = by_uid[plan.model.metadata.uid] if plan.model else None
        surplus = [by_uid[pod.metadata.uid] for pod in plan.end]
        new = await self._operations.ensure_standbys(job, model, plan.new, plan.avoid_nodes, surplus)
        return [*plan.stay, *self._read(job, new)]

    async def ensure_promoted(self, job_id: str, name: str, uid: str) -> None:
        job = await self._to_change(job_id)
        await job.kind.count.ensure_promoted(self._operations, job, await self._raw(job, name, uid))

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        try:
            job = await self._to_change(job_id)
            pod = await self._raw(job, name, uid)
        except NotFound:
            return
        await job.kind.count.ensure_deleted(self._operations, job, pod, grace_seconds)

    async def ensure_no_backups(self, job_id: str, grace_seconds: int) -> list[Pod]:
        job = await self._to_change(job_id)
        pods = await self._reader.pods(job)
        await job.kind.count.ensure_no_backups(self._operations, job, pods, grace_seconds)
        return self._read(job, [pod for pod in pods if is_backup(pod)])

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        job, pods = await self._decided(job_id)
        await job.kind.restart.ensure_stopped(self._operations, job, pods, grace_seconds, lost_nodes)
        return self._read(job, pods)

    async def _decided(self, job_id: str) -> tuple[Workload, Sequence[Object]]:
        """Returns the job and its pods when its controllers have decided what to do about failed pods."""
        job = await self._to_change(job_id)
        return await decided(self._operations, job, await self._reader.pods(job))

    async def ensure_pods(
        self, job_id: str, generation: str, avoid_nodes: Sequence[str], shun_nodes: Sequence[str] = ()
    ) -> list[Pod]:
        job, _ = await self._decided(job_id)
        return self._read(
            job, await job.kind.restart.ensure_pods(self._operations, job, generation, Places(avoid_nodes, shun_nodes))
        )

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        job = await self._to_change(job_id)
        await self._operations.ensure_metadata(job, labels, annotations)

    # ---- events

    def _refuse(self, about: About, error: BadInput) -> None:
        """Logs what is wrong with an object and records it as an event of the object, once for each problem."""
        key = f"{about.uid}/{about.word}"
        if self._refused.get(key) == str(error):
            return
        if len(self._refused) >= MOST_REFUSED:
            self._refused.clear()
        self._refused[key] = str(error)
        logger.warning("object refused", extra={"object": about.uid, "object_name": about.name, "error": str(error)})
        event = ClusterEvent(name=about.name, kind=about.kind, reason=f"{about.word}Refused", message=str(error), type="Warning")
        task = asyncio.create_task(self._tell(about, event))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    async def _tell(self, about: About, event: ClusterEvent) -> None:
        try:
            async with self._saying:
                await record(self._api, about, event)
        except ClusterError as error:
            logger.warning("event about a refused object not recorded", extra={"object": about.uid, "error": str(error)})

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        job = await self._reader.job(job_id)
        await record(self._api, await self._about(job, event), event)

    async def _about(self, job: Workload, event: ClusterEvent) -> About:
        """Returns the object that an event is about: the job, or the node or pod that the event names."""
        paths = {"Node": f"{NODES}/{event.name}", "Pod": f"/api/v1/namespaces/{job.namespace}/pods/{event.name}"}
        if event.kind in paths and is_name(event.name):
            return about_other(event.kind, await self._api.get(paths[event.kind]))
        return about_job(job)


def _network(pod: Object) -> Object:
    """Returns the fields of a pod that `shapes.Speaker` checks."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return {
        "metadata": {key: metadata.get(key) for key in ("name", "namespace", "uid")},
        "spec": {"hostNetwork": spec.get("hostNetwork")},
        "status": {key: status.get(key) for key in ("phase", "podIP", "podIPs", "hostIP")},
    }


def _stem_of_standbys(job: Workload) -> str:
    """Returns the prefix of the names of the job's standbys.

    It contains part of the UID, as a job of another kind may have the same name. It is short, as a pod's name must fit into its
    host name of 63 characters.
    """
    return f"{job.name[:40].rstrip('-.')}-{job.uid[:5]}"


def _node(name: str) -> str:
    """Returns the API path of a node.

    Raises NotFound if the text is not a valid name: people and training sides write names of nodes.
    """
    if not is_name(name):
        raise NotFound(f"there is no node {cut(name, LONGEST_NAME)!r}")
    return f"{NODES}/{name}"
