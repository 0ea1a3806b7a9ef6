"""Scripted cluster in memory that implements the port `Cluster`: pods follow a script and have no processes. For tests of
procedures."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from activities.clusters.port import Contract, Evictions, Replacement, Snapshot
from rekindle.errors import ClusterUnavailable, Invalid, NotFound, Refused, Withheld
from rekindle.model.cluster import (
    ClusterEvent,
    Condition,
    JobObject,
    JobObjectStatus,
    JobPhase,
    JobSpec,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodPhase,
    PodSpec,
    PodStatus,
    PodTemplate,
    WatchEvent,
)
from rekindle.model.job import Job
from rekindle.model.keys import BACKUP_SOURCE, GENERATION, POD_TYPE, RANK_INDEX, TAKEN_AS
from rekindle.model.rule_file import plain
from rekindle.policy.detection.pod_ranks import is_over, is_standby, last_holder
from rekindle.policy.placement import spares, standbys
from rekindle.policy.placement.spares import Occupant


class _Making:
    """Creation of a standby or a backup pod. A requested pod is created even if the request is cancelled."""

    def __init__(self) -> None:
        self.is_asked, self.may_be, self.is_done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_be.set()

    async def turn(self) -> None:
        self.is_asked.set()
        with suppress(asyncio.CancelledError):
            await self.may_be.wait()


class ScriptedCluster:
    """Cluster with the pods of one job; every write is recorded in `writes`."""

    evictions: Evictions | None = None
    contract: Contract | None = None
    accelerators = 0
    """Number of accelerators that each pod needs. A node has 8."""

    def __init__(self, job: Job, nodes: int = 3, first_node: int = 0) -> None:
        self.job_model = job
        self.node_names = [f"node-{i}" for i in range(first_node, first_node + nodes)]
        self.pods_by_name: dict[str, Pod] = {}
        self.cordoned, self.conditions = dict[str, bool](), dict[str, tuple[Condition, ...]]()
        """Cordoned nodes, and conditions of nodes, by node name."""
        self.node_annotations: dict[str, dict[str, str]] = {}
        self.writes: list[str] = []
        self.events: list[ClusterEvent] = []
        self.labels: dict[str, str | None] = {}
        self.spare = True
        """True if a node is free for a backup pod."""
        self.backup_node = ""
        """Node for backup pods, even if they should avoid it; empty: any free one."""
        self.backup_starts = True
        self.backup_waits = self.backup_gate = ""
        """Reason why a container of the backup pod has not started, and a scheduling gate that is put on the pod."""
        self.refuses_backups = self.refuses_standbys = self.refuses_annotations = self.refuses_stops = self.withholds_pods = ""
        self.forgets_to_answer, self.making = False, _Making()
        """True if the creation of standbys never returns; and the state of creations."""
        self.pods_start = True
        self.pods_are_placed = True
        """True if the scheduler has room for new pods in job rescheduling."""
        self.terminating_for_ever: set[str] = set()
        self.rules = plain()
        self.undeletable: set[str] = set()
        self.ends_only_by_force: set[str] = set()
        self.takes_metadata, self.takes_notes = asyncio.Event(), asyncio.Event()
        """Set while writes of the job's labels, and of annotations without labels, are accepted; otherwise the write waits."""
        self.takes_metadata.set()
        self.takes_notes.set()
        self.metadata_is_written = asyncio.Event()
        """Set by the first write of labels, also while it waits."""
        self.phase: JobPhase | None = JobPhase.RUNNING
        """Phase of the job object; None: it does not exist."""
        self.unreachable = False
        self.refused_calls = self.asked_for_backups = 0
        """Calls that were refused because the cluster is unreachable, and dry runs of backup pods."""
        self._versions = itertools.count(1)
        self._followers: set[asyncio.Event] = set()
        for rank in range(job.pods):
            self._put(self._pod(f"{job.name}-worker-{rank}", rank, self.node_names[rank], PodPhase.RUNNING))

    # ---- the script

    def backup(self) -> Pod:
        return next(pod for pod in self.pods_by_name.values() if "-hot-" in pod.metadata.name)

    async def backup_runs(self) -> None:
        """Waits until a backup pod runs."""
        async with aclosing(self.follow(self.job_model.id)) as views:
            async for pods in views:
                if any(POD_TYPE in pod.metadata.annotations and pod.status.phase is PodPhase.RUNNING for pod in pods):
                    return

    def fail(self, name: str, message: str = "exit code 1") -> Pod:
        pod = self.pods_by_name[name]
        status = pod.status.model_copy(update={"phase": PodPhase.FAILED, "message": message, "exit_code": 1})
        return self._put(pod.model_copy(update={"status": status}))

    def run(self, name: str) -> Pod:
        """Lets a scheduled pod run."""
        pod = self.pods_by_name[name]
        return self._put(pod.model_copy(update={"status": pod.status.model_copy(update={"phase": PodPhase.RUNNING})}))

    def standbys(self) -> list[Pod]:
        return [pod for pod in self.pods_by_name.values() if is_standby(pod)]

    def holder(self, rank: int) -> Pod:
        return next(pod for pod in self.pods_by_name.values() if pod.metadata.annotations.get(RANK_INDEX) == str(rank))

    @property
    def followers(self) -> int:
        """Number of callers that follow its pods now."""
        return len(self._followers)

    # ---- the port

    async def node(self, name: str) -> Node:
        if name not in self.node_names:
            raise NotFound(f"node {name}")
        status = NodeStatus(accelerators=8, conditions=self.conditions.get(name, ()))
        marks = self.node_annotations.get(name, {})
        spec = NodeSpec(unschedulable=self.cordoned.get(name, False))
        return Node(metadata=ObjectMeta(name=name, uid=f"uid-of-{name}", annotations=marks), spec=spec, status=status)

    async def nodes(self) -> Sequence[Node]:
        if self.unreachable:
            raise ClusterUnavailable("nobody answers at this address")
        return [await self.node(name) for name in self.node_names]

    async def annotate_node(self, name: str, annotations: dict[str, str | None]) -> None:
        if self.refuses_annotations:
            raise Invalid(self.refuses_annotations)
        self.writes.append(f"annotate {name}")
        merged = {**self.node_annotations.get(name, {}), **annotations}
        self.node_annotations[name] = {key: value for key, value in merged.items() if value is not None}

    async def cordon_node(self, name: str, *, cordoned: bool) -> None:
        await self.node(name)
        self.writes.append(f"{'cordon' if cordoned else 'uncordon'} {name}")
        self.cordoned[name] = cordoned

    async def pods_on(self, node: str) -> Sequence[Pod]:
        return [pod for pod in self.pods_by_name.values() if pod.spec.node_name == node]

    async def occupants(self) -> Sequence[Occupant]:
        return [spares.occupant(pod) for pod in self.pods_by_name.values() if pod.spec.node_name and not is_over(pod)]

    async def job(self, job_id: str) -> JobObject:
        self._answers(job_id)
        if self.phase is None:
            raise NotFound(job_id)
        spec = JobSpec(pods=self.job_model.pods, ranks_per_pod=self.job_model.ranks_per_pod, template=PodTemplate(command=("x",)))
        metadata = ObjectMeta(name=self.job_model.name, uid=job_id)
        return JobObject(metadata=metadata, spec=spec, status=JobObjectStatus(phase=self.phase))

    def _knows(self, job_id: str) -> None:
        """Raises NotFound for another job: workflows of an earlier test may live on, and would restart this job's pods."""
        if job_id != self.job_model.id:
            raise NotFound(job_id)

    def _answers(self, job_id: str) -> None:
        self._knows(job_id)
        if self.unreachable:
            self.refused_calls += 1
            raise ClusterUnavailable("nobody answers at this address")

    async def pods(self, job_id: str) -> list[Pod]:
        self._answers(job_id)
        return list(self.pods_by_name.values())

    async def pod(self, job_id: str, name: str, uid: str) -> Pod:
        pod = self.pods_by_name.get(name)
        if pod is None or pod.metadata.uid != uid:
            raise NotFound(f"pod {name} ({uid})")
        return pod

    async def follow(self, job_id: str) -> AsyncGenerator[Sequence[Pod], None]:
        changed = asyncio.Event()
        self._followers.add(changed)
        try:
            while True:
                changed.clear()
                yield list(self.pods_by_name.values())
                await changed.wait()
        finally:
            self._followers.discard(changed)

    def watch(self) -> AsyncGenerator[Snapshot | WatchEvent, None]:
        raise AssertionError("no watcher runs over it")

    async def ensure_backup(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod:
        if self.refuses_backups:
            raise Invalid(self.refuses_backups)
        if name in self.pods_by_name:
            return self.pods_by_name[name]
        if taken := self._taken(old, name, avoid_nodes):
            return taken
        await self.making.turn()
        self.writes.append(f"create {name}")
        rank = int(old.metadata.annotations[RANK_INDEX])
        used = {pod.spec.node_name for pod in self.pods_by_name.values()} | set(avoid_nodes)
        free = [node for node in self.node_names if node not in used]
        node = self.backup_node or (free[0] if free and self.spare and not self.backup_gate else "")
        phase = PodPhase.RUNNING if node and self.backup_starts else PodPhase.PENDING
        pod = self._pod(name, rank, node, phase, old.metadata.labels[GENERATION])
        status = pod.status.model_copy(update={"waiting": self.backup_waits})
        gates = (self.backup_gate,) if self.backup_gate else ()
        pod = pod.model_copy(update={"status": status, "spec": pod.spec.model_copy(update={"gates": gates})})
        return self._annotated(pod, {**pod.metadata.annotations, POD_TYPE: "backup", BACKUP_SOURCE: old.metadata.name})

    def _taken(self, old: Pod, name: str, avoid_nodes: Sequence[str]) -> Pod | None:
        for pod in self.pods_by_name.values():
            if pod.metadata.annotations.get(TAKEN_AS) == name:
                return pod
        for pod in self.standbys():
            if pod.status.phase is PodPhase.RUNNING and pod.spec.node_name not in avoid_nodes:
                self.writes.append(f"take {pod.metadata.name}")
                rank = old.metadata.annotations[RANK_INDEX]
                marks = {RANK_INDEX: rank, POD_TYPE: "backup", BACKUP_SOURCE: old.metadata.name, TAKEN_AS: name}
                return self._annotated(pod, marks)
        return None

    def _annotated(self, pod: Pod, annotations: dict[str, str]) -> Pod:
        return self._put(pod.model_copy(update={"metadata": pod.metadata.model_copy(update={"annotations": annotations})}))

    async def ensure_standbys(self, job_id: str, count: int, avoid_nodes: Sequence[str]) -> list[Pod]:
        self._answers(job_id)
        if self.refuses_standbys:
            raise Invalid(self.refuses_standbys)
        plan = standbys.plan(self.job_model.name, list(self.pods_by_name.values()), count, avoid_nodes)
        await self._delete(plan.end, 0)
        if plan.new:
            await self.making.turn()
        for name in plan.new:
            self.writes.append(f"create {name}")
            used = {pod.spec.node_name for pod in self.pods_by_name.values()} | set(plan.avoid_nodes)
            free = [node for node in self.node_names if node not in used]
            phase = PodPhase.RUNNING if free else PodPhase.PENDING
            self._annotated(self._pod(name, 0, free[0] if free else "", phase), {POD_TYPE: "standby"})
            self.making.is_done.set()
        if plan.new and self.forgets_to_answer:
            await asyncio.Event().wait()
        return self.standbys()

    async def refusal_of_backup(self, job_id: str) -> str:
        self.asked_for_backups += 1
        return self.refuses_backups

    async def ensure_replacement(self, job_id: str, pod_rank: int, name: str, avoid_nodes: Sequence[str]) -> Replacement:
        self._answers(job_id)
        old = last_holder(self.pods_by_name.values(), pod_rank, avoid_nodes)
        template = old or self._pod(f"{self.job_model.name}-worker-{pod_rank}", pod_rank, "", PodPhase.PENDING)
        return Replacement(await self.ensure_backup(template, name, avoid_nodes), old)

    async def ensure_promoted(self, job_id: str, name: str, uid: str) -> None:
        self.writes.append(f"promote {name}")
        pod = await self.pod(job_id, name, uid)
        marks = (POD_TYPE, BACKUP_SOURCE, TAKEN_AS)
        self._annotated(pod, {key: value for key, value in pod.metadata.annotations.items() if key not in marks})

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        pod = self.pods_by_name.get(name)
        if pod is None or pod.metadata.uid != uid:
            return
        if name in self.undeletable:
            raise Invalid(f"pod {name} may not be deleted")
        self.writes.append(f"delete {name}" if grace_seconds else f"kill {name}")
        if name in self.terminating_for_ever or (grace_seconds and name in self.ends_only_by_force):
            stamped = pod.metadata.model_copy(update={"deletion_timestamp": datetime.now(UTC)})
            self._put(pod.model_copy(update={"metadata": stamped}))
            return
        del self.pods_by_name[name]
        self._tell()

    async def ensure_no_backups(self, job_id: str, grace_seconds: int) -> list[Pod]:
        self._knows(job_id)
        return await self._delete(
            [pod for pod in self.pods_by_name.values() if pod.metadata.annotations.get(POD_TYPE) == "backup"], grace_seconds
        )

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        self._answers(job_id)
        if self.refuses_stops:
            raise Refused(self.refuses_stops)
        return await self._delete(list(self.pods_by_name.values()), grace_seconds, lost_nodes)

    async def _delete(self, pods: list[Pod], grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        for pod in pods:
            grace = 0 if pod.spec.node_name in lost_nodes else grace_seconds
            await self.ensure_deleted(self.job_model.id, pod.metadata.name, pod.metadata.uid, grace)
        return pods

    async def ensure_pods(
        self, job_id: str, generation: str, avoid_nodes: Sequence[str], shun_nodes: Sequence[str] = ()
    ) -> list[Pod]:
        self._answers(job_id)
        if self.withholds_pods:
            raise Withheld(self.withholds_pods)
        may = [node for node in self.node_names if node not in avoid_nodes]
        free = [node for node in may if node not in shun_nodes] or may
        for rank in range(self.job_model.pods):
            name = f"{self.job_model.name}-worker-{rank}"
            if name not in self.pods_by_name:
                self.writes.append(f"create {name}")
                phase = PodPhase.RUNNING if self.pods_start else PodPhase.FAILED
                node = free[rank % len(free)] if self.pods_are_placed and free else ""
                self._put(self._pod(name, rank, node, phase if node else PodPhase.PENDING, generation))
        return list(self.pods_by_name.values())

    async def ensure_job_metadata(self, job_id: str, labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        if labels:
            self.metadata_is_written.set()
            await self.takes_metadata.wait()
        else:
            await self.takes_notes.wait()
        self.labels.update(labels)
        self.labels.update(annotations)

    async def record(self, job_id: str, event: ClusterEvent) -> None:
        self.events.append(event)

    async def close(self) -> None:
        return

    # ---- inside

    def _pod(self, name: str, rank: int, node: str, phase: PodPhase, generation: str = "0") -> Pod:
        version = next(self._versions)
        scheduled = Condition(
            type="PodScheduled",
            status="True" if node else "False",
            reason="" if node else "Unschedulable",
            message=""
            if node
            else f"0/{len(self.node_names)} nodes are available: {len(self.node_names)} Insufficient accelerators.",
        )
        meta = ObjectMeta(
            name=name,
            uid=f"{version:08x}-{name}",  # UIDs differ in their first characters
            labels={GENERATION: generation},
            annotations={RANK_INDEX: str(rank)},
            owner_uid=self.job_model.id,
            creation_timestamp=datetime.now(UTC),
        )
        spec = PodSpec(command=("train",), node_name=node, accelerators=self.accelerators)
        return Pod(metadata=meta, spec=spec, status=PodStatus(phase=phase, conditions=(scheduled,)))

    def _put(self, pod: Pod) -> Pod:
        version = next(self._versions)
        stored = pod.model_copy(update={"metadata": pod.metadata.model_copy(update={"resource_version": version})})
        self.pods_by_name[pod.metadata.name] = stored
        self._tell()
        return stored

    def _tell(self) -> None:
        for follower in self._followers:
            follower.set()


class TheirCluster(ScriptedCluster):
    """Cluster on which agents exit when they are ordered to, and a controller recreates the pod of a rank when it is gone."""

    def __init__(self, job: Job, nodes: int = 4) -> None:
        super().__init__(job, nodes)
        self.agents_end = True
        self.anew_start = True
        self.late: set[int] = set()
        """Pod ranks whose new pods get no node."""
        self._first = {pod.metadata.uid for pod in self.pods_by_name.values()}

    def leaves(self, pod_rank: int) -> None:
        if self.agents_end:
            self.fail(self.holder(pod_rank).metadata.name)

    async def replaced(self, ranks: Collection[int]) -> None:
        wanted = {rank // self.job_model.ranks_per_pod for rank in ranks}
        async with aclosing(self.follow(self.job_model.id)) as views:
            async for pods in views:
                new = (pod for pod in pods if pod.metadata.uid not in self._first and pod.status.phase is PodPhase.RUNNING)
                if wanted <= {int(pod.metadata.annotations[RANK_INDEX]) for pod in new}:
                    self._first = {pod.metadata.uid for pod in pods}
                    return

    async def ensure_deleted(self, job_id: str, name: str, uid: str, grace_seconds: int) -> None:
        pod = self.pods_by_name.get(name)
        await super().ensure_deleted(job_id, name, uid, grace_seconds)
        if pod and name not in self.pods_by_name and not self._stopping:
            self.make_anew(int(pod.metadata.annotations[RANK_INDEX]))

    def make_anew(self, rank: int) -> Pod:
        """Recreates the pod of a rank, as the Ascend Operator and its scheduler do."""
        used = {pod.spec.node_name for pod in self.pods_by_name.values()}
        node = "" if rank in self.late else next((node for node in self.node_names if node not in used), "")
        phase = PodPhase.RUNNING if node and self.anew_start else PodPhase.PENDING
        return self._put(self._pod(f"{self.job_model.name}-worker-{rank}", rank, node, phase))

    _stopping = False

    async def ensure_stopped(self, job_id: str, grace_seconds: int, lost_nodes: Collection[str] = ()) -> list[Pod]:
        self._stopping = True
        return await super().ensure_stopped(job_id, grace_seconds, lost_nodes)

    async def ensure_pods(
        self, job_id: str, generation: str, avoid_nodes: Sequence[str], shun_nodes: Sequence[str] = ()
    ) -> list[Pod]:
        self._stopping = False
        return await super().ensure_pods(job_id, generation, avoid_nodes, shun_nodes)


class SlowCluster(ScriptedCluster):
    """Cluster that deletes backup pods only after the test has allowed it."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.asked, self.may_delete = asyncio.Event(), asyncio.Event()

    async def ensure_no_backups(self, job_id: str, grace_seconds: int) -> list[Pod]:
        self.asked.set()
        await self.may_delete.wait()
        return await super().ensure_no_backups(job_id, grace_seconds)
