"""Driver for the local cluster: implements the port `Cluster` over the cluster's Unix socket. Created by `workers`."""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path

from activities.clusters.port import Replacement, Snapshot
from rekindle.cluster_client import ClusterClient
from rekindle.errors import Conflict, NotFound, WatchExpired
from rekindle.model import keys
from rekindle.model.cluster import ClusterEvent, JobObject, Node, ObjectMeta, Pod, PodPhase, PodRole, PodSpec, WatchEvent
from rekindle.model.rule_file import plain
from rekindle.model.rules import Rules
from rekindle.policy.detection.pod_ranks import is_over, is_standby, last_holder, latest_generation
from rekindle.policy.placement import spares, standbys
from rekindle.policy.placement.spares import Occupant

RANKS = (keys.RANK_INDEX, keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS)
"""Annotations of a pod that are about its rank."""


class LocalCluster:
    """Implements `activities.clusters.port.Cluster`."""

    evictions = None
    contract = None

    def __init__(self, socket: Path, rules: Rules | None = None) -> None:
        """Args:
        rules: by default the ready-made set `plain`.
        """
        self._client, self.rules = ClusterClient(socket), rules or plain()

    async def close(self) -> None:
        await self._client.close()

    async def job(self, job_id: str) -> JobObject:
        job = await self._client.job(job_id)
        if job.metadata.uid != job_id:
            raise NotFound(f"no job has the UID {job_id}")
        return job

    async def pods(self, job_id: str) -> list[Pod]:
        return await self._client.pods(job_id)

    async def pod(self, job_id: str, name: str, uid: str) -> Pod:
        pod = await self._client.pod(name)
        if (pod.metadata.uid, pod.metadata.owner_uid) != (uid, job_id):
            raise NotFound(f"no pod {name} of job {job_id} has the UID {uid}; it has {pod.metadata.uid} now")
        return pod

    async def node(self, name: str) -> Node:
        return await self._client.node(name)

    async def nodes(self) -> Sequence[Node]:
        return await self._client.nodes()

    async def annotate_node(self, name: str, annotations: dict[str, str | None]) -> None:
        await self._client.annotate_node(name, annotations)

    async def cordon_node(self, name: str, *, cordoned: bool) -> None:
        await self._client.cordon(name, cordoned=cordoned)

    async def pods_on(self, node: str) -> Sequence[Pod]:
        return [pod for pod in await self._client.pods() if pod.spec.node_name == node and not is_over(pod)]

    async def occupants(self) -> Sequence[Occupant]:
        placed = [pod for pod in await self._client.pods() if pod.spec.node_name and not is_over(pod)]
        return [spares.occupant(pod) for pod in placed]

    async def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        async with aclosing(self._client.watch()) as events:
            await anext(events)  # the watch is open, so no change after the list is missed
            pods = {pod.metadata.uid: pod for pod in await self.pods(job_id)}
            yield list(pods.values())
            async for event in events:
                if _apply(pods, job_id, event):
                    yield list(pods.values())
        raise WatchExpired("the watch ended")

    async def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        async with aclosing(self._client.watch()) as events:
            first = await anext(events)  # as above
            yield Snapshot(await self._client.jobs(), await self._client.pods(), await self._client.nodes())
            yield first
            async for event in events:
                yield event

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        return await self._backup_pod(_backup(old, name, {*avoid_nodes, old.spec.node_name}))

    async def refusal_of_backup(self, job_id: str) -> str:
        return ""

    async def ensure_replacement(self, job_id: str, pod_rank: int, name: str, avoid_nodes: Sequence[str]) -> Replacement:
        pods = await self.pods(job_id)
        old = last_holder(pods, pod_rank, avoid_nodes)
        template = old or _made_again(await self.job(job_id), pod_rank, pods)
        return Replacement(await self._backup_pod(_backup(template, name, avoid_nodes)), old)

    async def _backup_pod(self, wanted: Pod) -> Pod:
        """Returns a standby that takes the rank and the marks of the wanted pod, or creates that pod.

        A repeated call returns the same pod.
        """
        pods = [pod for pod in await self.pods(wanted.metadata.owner_uid) if not pod.metadata.deletion_timestamp]
        for pod in pods:
            if pod.metadata.annotations.get(keys.TAKEN_AS) == wanted.metadata.name:
                return pod
        if all(pod.metadata.name != wanted.metadata.name for pod in pods):
            for standby in pods:
                if _may_stand_in(standby, wanted) and (taken := await self._taken(standby, wanted)):
                    return taken
        return await self._create(wanted, _rank_of)

    async def _taken(self, standby: Pod, wanted: Pod) -> Pod | None:
        """Gives a standby the rank and marks of a backup. None: the standby is gone, or about to be."""
        marks = {**wanted.metadata.annotations, keys.TAKEN_AS: wanted.metadata.name}
        try:
            taken = await self._client.patch_pod(standby.metadata.name, standby.metadata.uid, wanted.metadata.labels, marks)
        except (NotFound, Conflict):
            return None
        return None if taken.metadata.deletion_timestamp else taken

    async def _create(self, wanted: Pod, what: Callable[[Pod], object]) -> Pod:
        """Creates a pod once. An existing pod of the same name is accepted if `what` has the same value for both."""
        try:
            return await self._client.create_pod(wanted)
        except Conflict:
            found = await self._client.pod(wanted.metadata.name)
            if what(found) != what(wanted) or found.metadata.deletion_timestamp:
                raise
            return found

    async def ensure_standbys(self, job_id: str, count: int, avoid_nodes: Sequence[str]) -> list[Pod]:
        job = await self.job(job_id)
        plan = standbys.plan(job.metadata.name, await self.pods(job_id), count, avoid_nodes)
        await self._delete(plan.end, 0)
        new = [await self._create(_standby(plan, name), _standing) for name in plan.new]
        return [*plan.stay, *new]

    async def ensure_promoted(self, job_id: str, name: str, uid: str) -> None:
        pod = await self.pod(job_id, name, uid)
        marks = {key: None for key in (keys.POD_TYPE, keys.BACKUP_SOURCE, keys.TAKEN_AS) if key in pod.metadata.annotations}
        if marks:
            await self._client.patch_pod(name, uid, {}, marks)

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        try:
            pod = await self.pod(job_id, name, uid)
            await self._client.delete_pod(name, pod.metadata.uid, grace_seconds)
        except (NotFound, Conflict):
            return

    async def ensure_no_backups(self, job_id: str, grace_seconds: int) -> list[Pod]:
        return await self._delete(
            [pod for pod in await self.pods(job_id) if keys.POD_TYPE in pod.metadata.annotations and not is_standby(pod)],
            grace_seconds,
        )

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        # Managers last: the cluster recreates a manager that ends while workers run.
        pods = sorted(await self.pods(job_id), key=lambda pod: (not is_standby(pod), _is_manager(pod)))
        return await self._delete(pods, grace_seconds, lost_nodes)

    async def _delete(self, pods: list[Pod], grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        for pod in pods:
            grace = 0 if pod.spec.node_name in lost_nodes else grace_seconds
            await self.ensure_deleted(pod.metadata.owner_uid, pod.metadata.name, pod.metadata.uid, grace)
        return pods

    async def ensure_pods(
        self, job_id: str, generation: str, avoid_nodes: Sequence[str], shun_nodes: Sequence[str] = ()
    ) -> list[Pod]:
        """Creates the pods of a generation. `shun_nodes` is not used: the local scheduler avoids sub-healthy nodes by itself."""
        return await self._client.ensure_generation(job_id, generation, avoid_nodes)

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        await self._client.patch_job(job_id, labels, annotations)

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        await self.job(job_id)
        await self._client.record(event)


def _apply(pods: dict[str, Pod], job_id: str, event: WatchEvent) -> bool:
    """Updates `pods` with one event. Returns False if the event is about another object, or older than the known state."""
    pod = event.object
    if not isinstance(pod, Pod) or pod.metadata.owner_uid != job_id:
        return False
    if event.type == "DELETED":
        return pods.pop(pod.metadata.uid, None) is not None
    known = pods.get(pod.metadata.uid)
    if known and pod.metadata.resource_version <= known.metadata.resource_version:
        return False
    pods[pod.metadata.uid] = pod
    return True


def _is_manager(pod: Pod) -> bool:
    return pod.metadata.labels.get(keys.REPLICA_TYPE) == PodRole.MANAGER


def _rank_of(pod: Pod) -> tuple[str, str | None]:
    return pod.metadata.owner_uid, pod.metadata.annotations.get(keys.RANK_INDEX)


def _made_again(job: JobObject, pod_rank: int, pods: Sequence[Pod]) -> Pod:
    """Returns the pod of a rank of which nothing is left, in the generation of the other pods."""
    if not pods:
        raise NotFound(f"no pod of job {job.metadata.name} is left: the whole job has to start again")
    template, name = job.spec.template, job.metadata.name
    return Pod(
        metadata=ObjectMeta(
            name=f"{name}-{PodRole.WORKER}-{pod_rank}",
            namespace=job.metadata.namespace,
            labels={
                keys.JOB_NAME: name,
                keys.REPLICA_TYPE: PodRole.WORKER,
                keys.GENERATION: latest_generation(pods),
            },
            annotations={keys.RANK_INDEX: str(pod_rank)},
            owner_uid=job.metadata.uid,
        ),
        spec=PodSpec(command=template.command, env=template.env, accelerators=template.accelerators),
    )


def _backup(old: Pod, name: str, avoid_nodes: Collection[str]) -> Pod:
    """Returns a backup as the Ascend Operator creates it: the same template, the same rank, and marks that are removed when it
    takes over."""
    marks = {keys.POD_TYPE: PodRole.BACKUP.value, keys.BACKUP_SOURCE: old.metadata.name}
    return _clone(old, name, {**old.metadata.annotations, **marks}, avoid_nodes)


def _standby(plan: standbys.Plan, name: str) -> Pod:
    assert plan.model
    annotations = {key: value for key, value in plan.model.metadata.annotations.items() if key not in RANKS}
    return _clone(plan.model, name, {**annotations, keys.POD_TYPE: PodRole.STANDBY.value}, plan.avoid_nodes)


def _clone(pod: Pod, name: str, annotations: dict[str, str], avoid_nodes: Collection[str]) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=pod.metadata.namespace,
            labels=pod.metadata.labels,
            annotations=annotations,
            owner_uid=pod.metadata.owner_uid,
        ),
        spec=PodSpec(
            command=pod.spec.command,
            env=pod.spec.env,
            accelerators=pod.spec.accelerators,
            avoid_nodes=tuple(sorted({*avoid_nodes} - {""})),
            termination_grace_period_seconds=pod.spec.termination_grace_period_seconds,
        ),
    )


def _standing(pod: Pod) -> tuple[str, bool]:
    return pod.metadata.owner_uid, is_standby(pod)


def _may_stand_in(standby: Pod, wanted: Pod) -> bool:
    """Returns whether a standby can become the wanted pod: it runs on an allowed node, in the same generation."""
    same_life = standby.metadata.labels.get(keys.GENERATION) == wanted.metadata.labels.get(keys.GENERATION)
    runs = is_standby(standby) and standby.status.phase is PodPhase.RUNNING
    return runs and same_life and standby.spec.node_name not in wanted.spec.avoid_nodes
