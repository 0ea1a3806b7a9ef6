"""Activities of recoveries that create, delete and look at pods, through the port to a cluster. Registered by the control worker.

Every write names the state that it ensures, so that a repeated call finds its work done.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client

from activities.clusters.port import Cluster
from activities.clusters.waiting import Wanted, until
from activities.error_mapping import translating_errors
from activities.heartbeat import heartbeating
from activities.pod_recreation import MakingAnew
from activities.rule_breaker import Beliefs
from activities.spares import Spares
from rekindle.errors import Forbidden, Invalid, NotFound, SpareTaken, Withheld
from rekindle.model.activities.jobs import JobLook, JobRequest, Survey, SurveyRequest
from rekindle.model.activities.pods import (
    Backup,
    BackupRequest,
    LeftRequest,
    NewPodsRequest,
    OldPodsRequest,
    PodCount,
    PodsRequest,
    Replacement,
    Restart,
    Scheduled,
    Started,
    StartRequest,
    StopRequest,
    Swap,
    SwapRequest,
    SweepRequest,
)
from rekindle.model.activities.recreation import Recreation, RecreationRequest
from rekindle.model.activities.standbys import StandbysNow, StandbysRequest
from rekindle.model.activities.targets import FindingsRequest, Found, LinkTargets, ResolveLinksRequest, TargetsRequest
from rekindle.model.bounds import NAMED, cut, few, reason
from rekindle.model.cluster import JobView, Node, Pod, PodPhase, condition_of
from rekindle.model.fault import HOLDER_LENGTH
from rekindle.model.keys import GENERATION, POD_TYPE, TAKEN_AS
from rekindle.model.situation import PodRef
from rekindle.model.spares import SpareWish
from rekindle.model.stress import StressTargets
from rekindle.policy.detection import isolation, refusals
from rekindle.policy.detection.devices import DeviceOfRank, devices
from rekindle.policy.detection.pod_ranks import is_over, is_standby, rank_of
from rekindle.policy.detection.rule_breaker import doubting
from rekindle.policy.detection.rules import of_node
from rekindle.policy.detection.sighting import end_of, gone, is_lost, sight, standbys
from rekindle.policy.operations import device_checks
from rekindle.policy.operations.links import resolved
from rekindle.policy.placement import spares
from rekindle.policy.placement.unfit_nodes import Unfit, unfit

MOST_NODES = 100
"""Maximum number of nodes that one survey reads."""

STUCK = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "ImageInspectError",
    "InvalidImageName",
    "RunContainerError",
)
"""Reasons why a container waits that the kubelet has tried, and that do not pass in the time of a recovery.

Source: the kubelet's words.
"""

KEPT = timedelta(seconds=5)
"""Time in which ended pods are gone."""

MOST_FAILED_ON = 20

PER_POD = 200
"""Maximum bytes of the text about one pod if several are named."""

HOT = re.compile(r"(-hot-[0-9]{4,})+$")
"""Suffix that an earlier hot switch added to the name of a pod. The next hot switch replaces it."""


def ref(pod: Pod) -> PodRef:
    return PodRef(name=pod.metadata.name, uid=pod.metadata.uid, node=pod.spec.node_name, rank=rank_of(pod))


def is_backup(pod: Pod) -> bool:
    return pod.metadata.annotations.get(POD_TYPE) == "backup"


def was_standby(backup: Pod, name: str) -> bool:
    """Returns whether a standby was used instead of a new pod of this name."""
    return backup.metadata.annotations.get(TAKEN_AS) == name


class PodActivities:
    """Activities for the pods of one cluster."""

    def __init__(self, cluster: Cluster, client: Client | None = None) -> None:
        """Args:
        client: of the workflow that decides who gets a spare node. None: it is not asked.
        """
        self._cluster, self._rules, self._beliefs = cluster, cluster.rules, Beliefs(cluster)
        self._spares = Spares(cluster, client)

    @activity.defn
    async def ensure_backup(self, request: BackupRequest) -> Backup:
        """Ensures the backup pod of a pod rank, once: a standby that takes it over, or a new pod.

        Raises:
            `cluster.not_found` when no live pod holds the rank; `cluster.spare_taken` when another job gets the spare node.
        """
        with translating_errors():
            async with heartbeating():
                pods = await self._cluster.pods(request.job_id)
                old = _holder(pods, request)
                name = f"{HOT.sub('', old.metadata.name)}-hot-{request.name_suffix}"
                unfit, before = await self._if_granted(request, pods, old.spec.node_name)
                avoid = sorted({*request.avoid_nodes, old.spec.node_name, *unfit.both})
                backup = await self._cluster.ensure_backup(old, name, avoid)
                return Backup(old=ref(old), backup=ref(backup), standby=was_standby(backup, name), before=before)

    @activity.defn
    async def ensure_replacement(self, request: BackupRequest) -> Replacement:
        """Creates the backup pod of a pod rank that has lost its pod, once: it failed, ends, is gone, or is on a node that is not
        ready or is to be avoided. Its name is that of its rank and of the suffix, whatever became of the old pod meanwhile.

        Raises: `cluster.invalid` when the job's kind cannot replace it, with the reason; `cluster.spare_taken` when another job
            gets the spare node.
        """
        job_id, pod_rank = request.job_id, request.pod_rank
        with translating_errors():
            async with heartbeating():
                job = await self._cluster.job(job_id)
                if pod_rank >= job.spec.pods:
                    raise NotFound(f"job {job_id} has no pod rank {pod_rank}")
                name = f"{job.metadata.name}-worker-{pod_rank}-hot-{request.name_suffix}"
                pods = await self._cluster.pods(job_id)
                lost = await self._nodes(pod for pod in pods if rank_of(pod) == pod_rank)
                bad = {node.metadata.name for node in lost if is_lost(node)}
                unfit, before = await self._if_granted(request, pods, *bad)
                avoid = {*request.avoid_nodes, *bad, *unfit.both}
                if request.waits:
                    avoid -= {node.metadata.name for node in await self._cluster.nodes() if is_lost(node)}
                made = await self._cluster.ensure_replacement(job_id, pod_rank, name, sorted(avoid))
                old = ref(made.old) if made.old else None
                return Replacement(old=old, backup=ref(made.backup), standby=was_standby(made.backup, name), before=before)

    @activity.defn
    async def make_anew(self, request: RecreationRequest) -> Recreation:
        """Waits until each of these pod ranks has another pod with a node, which the job's controller creates by itself, or the
        deadline. Deletes old pods that have ended, or that were not ordered to leave."""
        with translating_errors():
            async with heartbeating():
                return await MakingAnew(self._cluster, request).run(_left(request.within))

    async def _if_granted(self, request: BackupRequest, pods: Sequence[Pod], *avoid: str) -> tuple[Unfit, str]:
        """Returns where new pods must not be placed, and who asked for spare nodes before.

        Raises `SpareTaken` if another job gets the spare node.

        The question costs no time of its own, as the cluster is read meanwhile.
        """
        wish, made = request.spare, any(is_backup(pod) and rank_of(pod) == request.pod_rank for pod in pods)
        if wish is None or made:  # by an earlier try
            return await self._unfit(pods), ""
        asking = self._spares.answer(request.job_id, spares.avoiding(wish, avoid), pods, lambda: self._unfit(pods))
        unfit, answer = await asyncio.gather(self._unfit(pods), asking)
        if answer.reason:
            raise SpareTaken(answer.reason)
        return unfit, answer.note

    async def _unfit(self, pods: Sequence[Pod]) -> Unfit:
        """Returns where new pods of a job must not be placed.

        The nodes of standbys are always read: a deleted node is in no list.

        Args:
            pods: of the job; without any, what they tolerate is unknown.
        """
        seen = await self._cluster.nodes()
        rules = doubting(self._rules, self._beliefs.among(seen))
        nodes = {node.metadata.name: node for node in seen}
        of_standbys = await self._nodes(pod for pod in pods if is_standby(pod) and pod.spec.node_name not in nodes)
        tolerated = {key for pod in pods for key in pod.spec.tolerates} if pods else None
        return unfit([*nodes.values(), *of_standbys], tolerated, rules)

    async def _nodes(self, pods: Iterable[Pod]) -> list[Node]:
        """Returns the nodes that these pods are on. A node that no longer exists is returned as gone."""
        names = sorted({pod.spec.node_name for pod in pods} - {""})
        nodes = await asyncio.gather(*(self._node(name) for name in names))
        return [node or gone(name) for name, node in zip(names, nodes, strict=True)]

    @activity.defn
    async def ensure_standbys(self, request: StandbysRequest) -> StandbysNow:
        """Ensures the wanted number of standbys, on healthy nodes as far as they have a node.

        A job that no longer exists has none.
        """
        with translating_errors():
            async with heartbeating():
                try:
                    before = await self._cluster.pods(request.job_id)
                    avoid = sorted({*request.avoid_nodes, *(await self._unfit(before)).both})
                    pods = await self._cluster.ensure_standbys(request.job_id, request.count, avoid)
                except NotFound:
                    if request.count:
                        raise
                    return StandbysNow()
        return StandbysNow(standbys=standbys(pods, (), "", self._rules))

    @activity.defn
    async def await_scheduled(self, request: PodsRequest) -> Scheduled:
        """Waits until the pod has a node, or the deadline. After the deadline the answer contains the scheduler's message."""
        (target,) = request.pods
        pods = await self._until_these(request, lambda pods: all(pod.spec.node_name or _over(pod) for pod in pods))
        if not pods:
            return Scheduled(node="", message=f"pod {target.name} is gone")
        condition = condition_of(pods[0].status.conditions, "PodScheduled")
        message = condition.message if condition else "the scheduler said nothing"
        gate = next(iter(pods[0].spec.gates), "")
        return Scheduled(node=pods[0].spec.node_name, sub_healthy=await self._is_sub_healthy(pods[0]), message=message, gate=gate)

    async def _is_sub_healthy(self, pod: Pod) -> bool:
        """Returns whether the pod's node is sub-healthy, which the scheduler of a cluster may not know."""
        with translating_errors():
            async with heartbeating():
                node = await self._node(pod.spec.node_name) if pod.spec.node_name else None
                return node is not None and bool(of_node(node, await self._beliefs.rules([node])))

    @activity.defn
    async def await_running(self, request: PodsRequest) -> Started:
        """Waits until the pods run.

        Ends early if one of them failed, is gone, or waits for a reason that rarely passes. The pods of a lost node seem to run
        for minutes or longer, and count as not running.
        """
        pods = await self._until_these(
            request, lambda pods: len(pods) < len(request.pods) or _settled(pods) or any(map(_is_stuck, pods))
        )
        started = _started(pods, {pod.name for pod in request.pods}, len(request.pods))
        if not started.running:
            return started
        with translating_errors():
            async with heartbeating():
                lost = [node.metadata.name for node in await self._nodes(pods) if is_lost(node)]
        return Started(running=False, message=f"lost: {few(lost)}") if lost else started

    @activity.defn
    async def await_new_running(self, request: NewPodsRequest) -> Started:
        """Waits until all pods of a restart run. Ends early if one of them failed or is gone again."""
        seen: set[str] = set()

        def settled(pods: Sequence[Pod]) -> bool:
            seen.update(pod.metadata.name for pod in pods)
            gone = len(pods) < len(seen)
            there = len(pods) >= request.pods
            return gone or any(_over(pod) for pod in pods) or (there and (_settled(pods) or _waits_for_a_place(pods)))

        restart = request.restart
        wanted: Wanted = lambda pod: _is_new(pod, restart) and not is_standby(pod)  # noqa: E731
        pods = await self._until(restart.job_id, wanted, request.within, settled)
        return _started(pods, seen, request.pods)

    @activity.defn
    async def look_at_new_pods(self, request: NewPodsRequest) -> Started:
        """Returns whether no rank has lost its pod since the restart.

        The pod of a manager is not checked, as another manager takes over from it.
        """
        with translating_errors():
            async with heartbeating():
                everyone = await self._cluster.pods(request.restart.job_id)
        pods = [pod for pod in everyone if rank_of(pod) is not None and _is_new(pod, request.restart)]
        over = [pod for pod in pods if _over(pod)]
        if over:
            return Started(running=False, message=_each(over, _end))
        there = f"{len(pods)} of {request.pods} pods are there"
        return Started(running=len(pods) >= request.pods, message="" if len(pods) >= request.pods else there)

    @activity.defn
    async def look_at_job(self, request: JobRequest) -> JobLook:
        """Returns the phase of the job as its own object has it; None: the job is gone or being deleted."""
        with translating_errors():
            async with heartbeating():
                try:
                    job = await self._cluster.job(request.job_id)
                except NotFound:
                    return JobLook()
        return JobLook(phase=None if job.metadata.deletion_timestamp else job.status.phase)

    @activity.defn
    async def swap(self, request: SwapRequest) -> Swap:
        """Deletes the old pod at once if the backup pod is running; otherwise keeps the old pod as the rescue.

        A pod that is gone counts as deleted.
        """
        with translating_errors():
            async with heartbeating():
                try:
                    backup = await self._cluster.pod(request.job_id, request.backup.name, request.backup.uid)
                except NotFound:
                    return Swap(old_deleted=False, message=f"backup pod {request.backup.name} is gone")
                if backup.status.phase is not PodPhase.RUNNING or backup.metadata.deletion_timestamp:
                    return Swap(old_deleted=False, message=_end(backup))
                if request.old:
                    await self._cluster.ensure_deleted(request.job_id, request.old.name, request.old.uid, 0)
                return Swap(old_deleted=True)

    @activity.defn
    async def await_gone(self, request: PodsRequest) -> tuple[PodRef, ...]:
        """Waits until the pods are gone, or the deadline; returns those that still exist."""
        return tuple(ref(pod) for pod in await self._until_these(request, lambda pods: not pods))

    @activity.defn
    async def await_old_gone(self, request: OldPodsRequest) -> PodCount:
        """Waits until no pod from before a restart runs, or the time limit; returns those that may still run.

        An ended pod that is kept, as by a finalizer, is waited for a little longer, since its name may be needed.
        """
        restart = request.restart
        wanted: Wanted = lambda pod: not _is_new(pod, restart)  # noqa: E731
        left = await self._until(restart.job_id, wanted, request.within, lambda pods: all(map(is_over, pods)))
        if left and all(map(is_over, left)):
            await self._until(restart.job_id, wanted, min(request.within, KEPT), lambda pods: not pods)
        return _count([pod for pod in left if not is_over(pod)])

    @activity.defn
    async def promote(self, request: SwapRequest) -> None:
        """Makes the backup pod the pod of its rank."""
        with translating_errors():
            async with heartbeating():
                await self._cluster.ensure_promoted(request.job_id, request.backup.name, request.backup.uid)

    @activity.defn
    async def delete_backups(self, request: StopRequest) -> tuple[PodRef, ...]:
        """Deletes every backup pod of the job that was not promoted."""
        with translating_errors():
            async with heartbeating():
                pods = await self._cluster.ensure_no_backups(request.job_id, request.grace_seconds)
                return tuple(ref(pod) for pod in pods)

    @activity.defn
    async def delete_left(self, request: LeftRequest) -> None:
        """Deletes the pods of ranks that have left the job. A pod that has ended by itself is deleted too."""
        with translating_errors():
            async with heartbeating():
                pods = await self._cluster.pods(request.job_id)
                left = [pod for pod in pods if rank_of(pod) in request.pod_ranks and not is_backup(pod)]
                for pod in left:
                    await self._cluster.ensure_deleted(request.job_id, pod.metadata.name, pod.metadata.uid, 0)

    @activity.defn
    async def sweep(self, request: SweepRequest) -> None:
        """Deletes pods that recoveries left behind, and those of ranks that have left the job."""
        with translating_errors():
            async with heartbeating():
                for pod in (*request.pods, *await self._still_there(request)):
                    await self._cluster.ensure_deleted(request.job_id, pod.name, pod.uid, 0)

    async def _still_there(self, request: SweepRequest) -> list[PodRef]:
        """Returns the pods that ranks had when they left, and not those that follow them."""
        if not request.have_left:
            return []
        pods = [ref(pod) for pod in await self._cluster.pods(request.job_id) if not is_backup(pod)]
        return [pod for pod in pods if pod.rank is not None and _has_left(pod, request.have_left.get(pod.rank, ""))]

    @activity.defn
    async def delete_pods(self, request: StopRequest) -> PodCount:
        """Deletes all pods of the job, and keeps its controller from making new ones."""
        with translating_errors():
            async with heartbeating():
                return _count(
                    await self._cluster.ensure_stopped(request.job_id, request.grace_seconds, frozenset(request.lost_nodes))
                )

    @activity.defn
    async def ensure_pods(self, request: StartRequest) -> PodCount:
        """Ensures the job's pods of this generation, once.

        Raises: `cluster.withheld` while a recovery of another job gets a node that the pods need.
        """
        with translating_errors():
            async with heartbeating():
                known = await self._unfit(())
                if request.spare and (reason := await self._withheld(request, request.spare)):
                    raise Withheld(reason)
                avoid = tuple(dict.fromkeys((*request.avoid_nodes, *known.shut)))
                shun = [node for node in known.sub_healthy if node not in avoid]
                return _count(await self._cluster.ensure_pods(request.job_id, request.generation, avoid, shun))

    async def _withheld(self, request: StartRequest, wish: SpareWish) -> str:
        """Returns why the pods of a restart wait for a recovery of another job. Empty: they do not, or were created before."""
        pods = await self._cluster.pods(request.job_id)
        if any(pod.metadata.labels.get(GENERATION) == request.generation for pod in pods):
            return ""
        wanted = spares.avoiding(wish, request.avoid_nodes)
        return (await self._spares.answer(request.job_id, wanted, (), lambda: self._unfit(()))).reason

    @activity.defn
    async def survey(self, request: SurveyRequest) -> Survey:
        """Looks at the job, its pods and the named nodes, as the watcher would."""
        names = request.nodes[:MOST_NODES]
        with translating_errors():
            async with heartbeating():
                try:
                    job, pods = await self._cluster.job(request.job_id), await self._cluster.pods(request.job_id)
                except NotFound:
                    return Survey(exists=False, ended=end_of(None))
                nodes = await asyncio.gather(*(self._node(name) for name in names))
                rules = await self._beliefs.rules(node for node in nodes if node)
        seen = tuple(node or gone(name) for name, node in zip(names, nodes, strict=True))
        view = JobView(job=job, pods=tuple(pods), nodes=seen)
        return Survey(exists=True, phase=job.status.phase, ended=end_of(job), sighting=sight(view, rules), nodes=names)

    @activity.defn
    async def resolve_links(self, request: ResolveLinksRequest) -> LinkTargets:
        """Returns which ranks have these devices, and in which pods they are."""
        return resolved(await self._devices(request.job_id), request.links)

    @activity.defn
    async def find_targets(self, request: TargetsRequest) -> StressTargets:
        """Returns which ranks a stress test asks, and for which operations; or why the test is impossible."""
        rows = await self._devices(request.job_id)
        problem = device_checks.problem(request.stress, rows, request.accepted)
        return (
            StressTargets(problem=problem)
            if problem
            else StressTargets(asked=device_checks.grouped(device_checks.plan(request.stress, rows)))
        )

    @activity.defn
    async def judge(self, request: FindingsRequest) -> Found:
        """Returns what a stress test has found for each node. Isolates nodes with faults, once."""
        rows = await self._devices(request.job_id)
        found = device_checks.tested(request.results, device_checks.by_rank(request.asked), rows)
        with translating_errors():
            async with heartbeating():
                reasons = {name: device_checks.reason(found, name, request.why) for name in found.findings.isolate}
                failed = {name: why for name in reasons if (why := await self._isolate(name, reasons[name]))}
                job = await self._cluster.job(request.job_id)
        found = device_checks.without(found, failed)
        return Found(tested=found, faults=device_checks.faults(found, job.spec.layout, rows))

    async def _devices(self, job_id: str) -> tuple[DeviceOfRank, ...]:
        with translating_errors():
            async with heartbeating():
                job, pods = await self._cluster.job(job_id), await self._cluster.pods(job_id)
        return devices(JobView(job=job, pods=tuple(pods)))

    async def _isolate(self, name: str, reason: str) -> str:
        """Isolates a node. Returns why it cannot be; empty: it is isolated, or gone."""
        node = await self._node(name)
        if node and (change := isolation.isolation(node.metadata.annotations, reason)):
            try:
                await self._cluster.annotate_node(name, change)
            except (Forbidden, Invalid) as error:
                return str(error)
        return ""

    async def _node(self, name: str) -> Node | None:
        try:
            return await self._cluster.node(name)
        except NotFound:
            return None

    async def _until_these(self, request: PodsRequest, done: Callable[[Sequence[Pod]], bool]) -> list[Pod]:
        uids = {pod.uid for pod in request.pods}
        return await self._until(request.job_id, lambda pod: pod.metadata.uid in uids, request.within, done)

    async def _until(self, job_id: str, wanted: Wanted, within: timedelta, done: Callable[[Sequence[Pod]], bool]) -> list[Pod]:
        with translating_errors():
            async with heartbeating():
                return await until(self._cluster, job_id, wanted, _left(within), done)


def _holder(pods: Iterable[Pod], request: BackupRequest) -> Pod:
    """Returns the pod that holds the rank. A failed pod may exist beside the pod that has taken over its rank."""
    for pod in sorted(pods, key=lambda pod: pod.status.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED)):
        if ref(pod).rank == request.pod_rank and not is_backup(pod) and pod.metadata.deletion_timestamp is None:
            return pod
    raise NotFound(f"no pod of job {request.job_id} holds pod rank {request.pod_rank}")


def _has_left(pod: PodRef, holder: str) -> bool:
    return bool(holder) and pod.uid.startswith(holder)


def _left(within: timedelta) -> timedelta:
    """Returns the time that is left of an activity's limit, also in a later attempt. Both times are from the server's clock."""
    info = activity.info()
    return max(timedelta(0), within - (info.current_attempt_scheduled_time - info.scheduled_time))


def _is_new(pod: Pod, restart: Restart) -> bool:
    """Returns whether the pod was created by this restart or later."""
    if pod.metadata.labels.get(GENERATION) == restart.generation or restart.youngest is None:
        return True
    born = pod.metadata.creation_timestamp
    if born == restart.youngest:
        return pod.metadata.uid[:HOLDER_LENGTH] not in restart.youngest_uids
    return born is not None and born > restart.youngest


def _count(pods: Sequence[Pod]) -> PodCount:
    births = [pod.metadata.creation_timestamp for pod in pods if pod.metadata.creation_timestamp]
    names = tuple(sorted(pod.metadata.name for pod in pods)[:NAMED])
    youngest = max(births, default=None)
    uids = tuple(pod.metadata.uid[:HOLDER_LENGTH] for pod in pods if pod.metadata.creation_timestamp == youngest)
    return PodCount(
        count=len(pods),
        names=names,
        youngest=youngest,
        youngest_uids=uids,
        accelerators=max((pod.spec.accelerators for pod in pods), default=0),
        priority=max((pod.spec.priority for pod in pods), default=0),
        demands=next((pod.spec.demands for pod in pods if pod.spec.demands), ""),
    )


def _started(pods: Sequence[Pod], expected: set[str], count: int) -> Started:
    """Returns whether all pods run; if not, why, for the first ten."""
    if missing := expected - {pod.metadata.name for pod in pods}:
        return Started(running=False, message=f"gone: {few(sorted(missing))}")
    if failed := [pod for pod in pods if _over(pod)]:
        refused = [pod for pod in failed if refusals.is_refusal(pod.status)]
        return Started(running=False, message=_each(failed, _end), failed_on=_failed_on(refused, pods))
    if len(pods) < count:
        return Started(running=False, message=f"{len(pods)} of {count} pods are there")
    waiting = [pod for pod in pods if pod.status.phase is not PodPhase.RUNNING]
    return Started(running=not waiting, waits=bool(waiting), message=_each(waiting, _state), failed_on=_failed_on(waiting, pods))


def _failed_on(failed: Sequence[Pod], pods: Sequence[Pod]) -> tuple[str, ...]:
    """Returns the nodes on which these pods did not start.

    If none of several pods runs anywhere, nodes are not the reason, and none is returned.
    """
    running = {pod.spec.node_name for pod in pods if pod.status.phase is PodPhase.RUNNING}
    if len(pods) > 1 and not running:
        return ()
    return tuple(sorted({pod.spec.node_name for pod in failed} - running - {""}))[:MOST_FAILED_ON]


def _each(pods: Sequence[Pod], words: Callable[[Pod], str]) -> str:
    return reason(few([cut(words(pod), PER_POD) if len(pods) > 1 else words(pod) for pod in pods[:NAMED]], len(pods), "; "))


def _over(pod: Pod) -> bool:
    return pod.status.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED) or pod.metadata.deletion_timestamp is not None


def _is_stuck(pod: Pod) -> bool:
    return pod.status.phase is PodPhase.PENDING and pod.status.waiting.partition(":")[0] in STUCK


def _waits_for_a_place(pods: Sequence[Pod]) -> bool:
    """Returns whether some pods run, and each of the others waits on its node for a reason that rarely passes there."""
    waiting = [pod for pod in pods if pod.status.phase is not PodPhase.RUNNING]
    return 0 < len(waiting) < len(pods) and all(map(_is_stuck, waiting)) and bool(_failed_on(waiting, pods))


def _settled(pods: Sequence[Pod]) -> bool:
    return any(_over(pod) for pod in pods) or all(pod.status.phase is PodPhase.RUNNING for pod in pods)


def _end(pod: Pod) -> str:
    code = "" if pod.status.exit_code is None else f", exit code {pod.status.exit_code}"
    words = pod.status.message or pod.status.reason
    return f"pod {pod.metadata.name} is {pod.status.phase}{code}" + (f": {words}" if words else "")


def _state(pod: Pod) -> str:
    condition = condition_of(pod.status.conditions, "PodScheduled")
    waits = pod.status.waiting or pod.status.message
    words = condition.message if condition and condition.status != "True" else waits
    return f"pod {pod.metadata.name} is {pod.status.phase}" + (f": {words}" if words else "")
