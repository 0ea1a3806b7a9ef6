"""What recoveries do to pods, over the port to a cluster. Registered by the control worker.

Every write names the state that it ensures, so that a repeated call finds its work done.
"""

from collections.abc import Callable, Sequence

from temporalio import activity

from activities.cluster import Cluster
from activities.errors import crossing
from activities.heartbeat import beating
from activities.world import until
from rekindle.errors import NotFound
from rekindle.model.asks import (
    Backup,
    BackupRequest,
    EventRequest,
    PodsRequest,
    PolicyRequest,
    Scheduled,
    Started,
    StartRequest,
    StopRequest,
    Swap,
    SwapRequest,
)
from rekindle.model.cluster import Pod, PodPhase, condition_of
from rekindle.model.keys import DOWNGRADED, POD_TYPE, SUB_HEALTHY_STRATEGY
from rekindle.model.recovery import PodRef
from rekindle.policy.ranks import rank_of


def ref(pod: Pod) -> PodRef:
    return PodRef(name=pod.metadata.name, uid=pod.metadata.uid, node=pod.spec.node_name, rank=rank_of(pod))


def is_backup(pod: Pod) -> bool:
    return pod.metadata.annotations.get(POD_TYPE) == "backup"


class PodActivities:
    """The activities over one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @activity.defn
    async def ensure_backup(self, request: BackupRequest) -> Backup:
        """Creates the backup pod of a pod rank, once.

        Raises: `cluster.not_found` when no live pod holds the rank.
        """
        with crossing():
            async with beating():
                old = await self._holder(request.job_id, request.pod_rank)
                name = f"{old.metadata.name}-hot-{request.name_suffix}"
                avoid = sorted({*request.avoid_nodes, old.spec.node_name})
                backup = await self._cluster.ensure_backup(old, name, avoid)
                return Backup(old=ref(old), backup=ref(backup))

    async def _holder(self, job_id: str, pod_rank: int) -> Pod:
        for pod in await self._cluster.pods(job_id):
            if ref(pod).rank == pod_rank and not is_backup(pod) and pod.metadata.deletion_timestamp is None:
                return pod
        raise NotFound(f"no pod of job {job_id} holds pod rank {pod_rank}")

    @activity.defn
    async def await_scheduled(self, request: PodsRequest) -> Scheduled:
        """Waits until the pod has a node, or the deadline; then the scheduler's message is in the answer."""
        (target,) = request.pods
        pods = await self._until(request, lambda pods: all(pod.spec.node_name or _over(pod) for pod in pods))
        if not pods:
            return Scheduled(node="", message=f"pod {target.name} is gone")
        condition = condition_of(pods[0].status.conditions, "PodScheduled")
        message = condition.message if condition else "the scheduler said nothing"
        return Scheduled(node=pods[0].spec.node_name, message=message)

    @activity.defn
    async def await_running(self, request: PodsRequest) -> Started:
        """Waits until all pods run. Ends early when one of them failed or is gone."""
        pods = await self._until(request, lambda pods: len(pods) < len(request.pods) or _settled(pods))
        missing = {pod.name for pod in request.pods} - {pod.metadata.name for pod in pods}
        if missing:
            return Started(running=False, message=f"gone: {', '.join(sorted(missing))}")
        failed = [pod for pod in pods if _over(pod)]
        if failed:
            return Started(running=False, message="; ".join(_end(pod) for pod in failed))
        waiting = [pod for pod in pods if pod.status.phase is not PodPhase.RUNNING]
        return Started(running=not waiting, message="; ".join(_state(pod) for pod in waiting))

    @activity.defn
    async def swap(self, request: SwapRequest) -> Swap:
        """Deletes the old pod at once, if the backup pod is seen alive; otherwise keeps it as the rescue."""
        with crossing():
            async with beating():
                try:
                    backup = await self._cluster.pod(request.job_id, request.backup.name, request.backup.uid)
                except NotFound:
                    return Swap(old_deleted=False, message=f"backup pod {request.backup.name} is gone")
                if backup.status.phase is not PodPhase.RUNNING or backup.metadata.deletion_timestamp:
                    return Swap(old_deleted=False, message=_end(backup))
                await self._cluster.ensure_deleted(request.job_id, request.old.name, request.old.uid, 0)
                return Swap(old_deleted=True)

    @activity.defn
    async def await_gone(self, request: PodsRequest) -> tuple[PodRef, ...]:
        """Waits until the pods are gone, or the deadline; answers those that are still there."""
        return tuple(ref(pod) for pod in await self._until(request, lambda pods: not pods))

    @activity.defn
    async def promote(self, request: SwapRequest) -> None:
        """The backup pod becomes the pod of its rank."""
        with crossing():
            async with beating():
                await self._cluster.ensure_promoted(request.job_id, request.backup.name, request.backup.uid)

    @activity.defn
    async def delete_backups(self, request: StopRequest) -> tuple[PodRef, ...]:
        """Deletes every backup pod of the job that was not promoted."""
        with crossing():
            async with beating():
                pods = await self._cluster.ensure_no_backups(request.job_id, request.grace_seconds)
                return tuple(ref(pod) for pod in pods)

    @activity.defn
    async def delete_pods(self, request: StopRequest) -> tuple[PodRef, ...]:
        """Deletes all pods of the job, and keeps its controller from making new ones."""
        with crossing():
            async with beating():
                pods = await self._cluster.ensure_stopped(request.job_id, request.grace_seconds)
                return tuple(ref(pod) for pod in pods)

    @activity.defn
    async def ensure_pods(self, request: StartRequest) -> tuple[PodRef, ...]:
        """Creates the job's pods of this generation, once."""
        with crossing():
            async with beating():
                pods = await self._cluster.ensure_pods(request.job_id, request.generation, request.avoid_nodes)
                return tuple(ref(pod) for pod in pods)

    @activity.defn
    async def publish_policy(self, request: PolicyRequest) -> None:
        """Writes the sub-health policy where the scheduler reads it, and why."""
        with crossing():
            async with beating():
                await self._cluster.ensure_job_metadata(
                    request.job_id, {SUB_HEALTHY_STRATEGY: request.strategy}, {DOWNGRADED: request.reason or None}
                )

    @activity.defn
    async def record_event(self, request: EventRequest) -> None:
        """Writes an event about the job."""
        with crossing():
            async with beating():
                await self._cluster.record(request.job_id, request.event)

    async def _until(self, request: PodsRequest, done: Callable[[Sequence[Pod]], bool]) -> list[Pod]:
        wanted = {pod.uid for pod in request.pods}
        with crossing():
            async with beating():
                return await until(self._cluster, request.job_id, wanted, request.deadline, done)


def _over(pod: Pod) -> bool:
    return pod.status.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED) or pod.metadata.deletion_timestamp is not None


def _settled(pods: Sequence[Pod]) -> bool:
    return any(_over(pod) for pod in pods) or all(pod.status.phase is PodPhase.RUNNING for pod in pods)


def _end(pod: Pod) -> str:
    code = "" if pod.status.exit_code is None else f", exit code {pod.status.exit_code}"
    words = pod.status.message or pod.status.reason
    return f"pod {pod.metadata.name} is {pod.status.phase}{code}" + (f": {words}" if words else "")


def _state(pod: Pod) -> str:
    condition = condition_of(pod.status.conditions, "PodScheduled")
    words = condition.message if condition and condition.status != "True" else pod.status.message
    return f"pod {pod.metadata.name} is {pod.status.phase}" + (f": {words}" if words else "")
