"""Waits for pods that are recreated by other components: the holders of some ranks end, and each is followed by another pod with
a node.

Called by the activity `make_anew` of `activities/pods.py`. The creator of the pods creates the next ones by itself when the old
ones are gone. Old pods that have ended, and that their scheduler has not deleted meanwhile, are deleted here.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta

from activities.clusters.port import Cluster
from activities.clusters.waiting import until
from rekindle.model.activities.recreation import Held, Recreation, RecreationRequest
from rekindle.model.bounds import few
from rekindle.model.cluster import Pod, PodPhase
from rekindle.model.keys import POD_TYPE
from rekindle.model.situation import PodRef, Switched
from rekindle.policy.detection.pod_ranks import rank_of

MOST_MOVED = 64
"""Maximum number of new pods that are described. A job may have thousands, whose descriptions exceed a payload."""


class MakingAnew:
    """Wait for all ranks at once, so that a late pod does not delay the others."""

    LEAVES = 20.0
    """Seconds that a pod gets to leave after the order to exit.

    Its agent gets that order up to five times, 3 s apart: a late one would end the new pod. Source: TaskD.
    """

    DELETED_BY_OTHERS = 2.0
    """Seconds that the scheduler gets to delete a pod that has ended.

    Volcano checks once a second, and remembers the pod's node.
    """

    def __init__(self, cluster: Cluster, request: RecreationRequest) -> None:
        self._cluster, self._request = cluster, request
        self._held = {held.pod_rank: held for held in request.held}
        self._together = _replicas(request.held)
        """Pod ranks of each replica that comes as a whole, by its number."""
        self._goes_at: dict[str, float] = {}
        """Time at which a pod is deleted if it still exists, by UID."""
        self._ended: set[str] = set()
        self._before: dict[int, PodRef] = {}

    async def run(self, within: timedelta) -> Recreation:
        deadline = _now() + within.total_seconds()
        while True:
            pause = timedelta(seconds=max(0.0, min([deadline, *self._goes_at.values()]) - _now()))
            pods = await until(self._cluster, self._request.job_id, self._is_of_these, pause, self._is_news)
            await self._end(pods)
            made = self._made(pods)
            if self._is_enough(made) or _now() >= deadline:
                return made

    def _is_of_these(self, pod: Pod) -> bool:
        return rank_of(pod) in self._held and POD_TYPE not in pod.metadata.annotations

    def _is_news(self, pods: Sequence[Pod]) -> bool:
        going = [pod for pod in pods if self._goes(pod)]
        more = any(pod.metadata.uid not in self._goes_at for pod in going)
        ended = any(_is_over(pod) and pod.metadata.uid not in self._ended for pod in going)
        return more or ended or self._is_enough(self._made(pods))

    def _is_enough(self, made: Recreation) -> bool:
        return not made.missing or 0 < self._request.enough <= len(made.came)

    # ---- the pods that go

    def _goes(self, pod: Pod) -> bool:
        return _is_over(pod) or self._of(pod).is_held_by(pod.metadata.uid)

    async def _end(self, pods: Sequence[Pod]) -> None:
        self._goes_at = {pod.metadata.uid: self._goes_by(pod) for pod in pods if self._goes(pod)}
        for pod in pods:
            metadata = pod.metadata
            if self._goes_at.get(metadata.uid, float("inf")) <= _now():
                await self._cluster.ensure_deleted(self._request.job_id, metadata.name, metadata.uid, 0)
                self._goes_at[metadata.uid] = _now() + self.LEAVES  # it may end slowly

    def _goes_by(self, pod: Pod) -> float:
        uid, held = pod.metadata.uid, self._of(pod)
        if held.is_held_by(uid):
            self._before[held.pod_rank] = _ref(pod)
        known = self._goes_at.get(uid, float("inf"))
        if _is_over(pod) and uid not in self._ended:
            self._ended.add(uid)
            return min(known, _now() + self.DELETED_BY_OTHERS)
        return known if uid in self._goes_at else _now() + self._patience(pod, held)

    def _patience(self, pod: Pod, held: Held) -> float:
        """Returns the seconds that a running pod gets to end by itself."""
        leaves = held.told or pod.metadata.deletion_timestamp is not None
        return self.LEAVES if leaves and pod.spec.node_name not in self._request.lost_nodes else 0.0

    def _of(self, pod: Pod) -> Held:
        rank = rank_of(pod)
        assert rank is not None
        return self._held[rank]

    # ---- the pods that come

    def _made(self, pods: Sequence[Pod]) -> Recreation:
        new = {rank: pod for pod in pods if (rank := rank_of(pod)) is not None and self._is_new(pod)}
        whole = {rank: pod for rank, pod in new.items() if self._together.get(self._held[rank].replica, set()) <= new.keys()}
        first = sorted(whole.items())[:MOST_MOVED]
        moved = [Switched(pod_rank=rank, before=self._old(rank), after=_ref(pod)) for rank, pod in first]
        missing = [self._why(rank, pods) for rank in sorted(self._held) if rank not in new]
        return Recreation(moved=tuple(moved), came=tuple(sorted(whole)), missing=few(missing))

    def _is_new(self, pod: Pod) -> bool:
        stays = not self._goes(pod) and pod.metadata.deletion_timestamp is None
        return stays and bool(pod.spec.node_name) and pod.spec.node_name not in self._request.lost_nodes

    def _old(self, rank: int) -> PodRef:
        return self._before.get(rank) or PodRef(name="", uid=self._held[rank].holder, rank=rank)

    def _why(self, rank: int, pods: Sequence[Pod]) -> str:
        own = [pod for pod in pods if rank_of(pod) == rank]
        if not own:
            return f"nobody has recreated the pod of pod rank {rank}"
        waiting = next((pod for pod in own if not self._goes(pod)), None)
        return f"pod {waiting.metadata.name} has no node" if waiting else f"pod {own[0].metadata.name} has not gone"


def _replicas(held: Iterable[Held]) -> dict[int | None, set[int]]:
    found: dict[int | None, set[int]] = {}
    for one in held:
        if one.replica is not None:
            found.setdefault(one.replica, set()).add(one.pod_rank)
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_over(pod: Pod) -> bool:
    return pod.status.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED)


def _ref(pod: Pod) -> PodRef:
    return PodRef(name=pod.metadata.name, uid=pod.metadata.uid, node=pod.spec.node_name, rank=rank_of(pod))
