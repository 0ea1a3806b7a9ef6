"""Pod rank that has lost its pod, as the API server shows it. Pure; used by the drivers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from activities.clusters.api_server import Object
from rekindle.model import keys
from rekindle.model.cluster import PodRole


@dataclass(frozen=True)
class LostRank:
    rank: int
    old: Object | None
    """Last pod that held the rank: it failed, is being deleted, or is on a lost node. None: nothing is left of it."""

    more: Sequence[Object]
    """Running pods of the rank on other nodes, which another party created in its place."""

    backups: Sequence[Object]
    """Backup pods that are to take the rank over, and that are not being deleted."""

    others: Sequence[Object]
    """Pods of the job's other ranks, and its managers."""

    @property
    def is_shown(self) -> bool:
        """True if the rank has a pod other than its backups."""
        return bool(self.old or self.more)

    @property
    def neighbour(self) -> Object | None:
        """A living pod of another rank."""
        return next((pod for pod in self.others if is_active(pod) and pod["spec"].get("nodeName")), None)


def lost_rank(rank: int, pods: Sequence[tuple[int | None, Object]], lost_nodes: Collection[str]) -> LostRank:
    """Args:
    pods: of the job, each with its rank.
    """
    own = [pod for its, pod in pods if its == rank]
    holders = [pod for pod in own if not is_backup(pod)]
    more = [pod for pod in holders if is_active(pod) and pod["spec"].get("nodeName") not in lost_nodes]
    lost = sorted((pod for pod in holders if pod not in more), key=_born)
    backups = [pod for pod in own if is_backup(pod) and not is_terminating(pod)]
    others = [pod for its, pod in pods if its != rank and not is_standby(pod)]
    return LostRank(rank, lost[-1] if lost else None, more, sorted(backups, key=_born), others)


def is_backup(pod: Object) -> bool:
    return bool(pod["metadata"].get("annotations", {}).get(keys.POD_TYPE) == PodRole.BACKUP)


def is_standby(pod: Object) -> bool:
    return bool(pod["metadata"].get("annotations", {}).get(keys.POD_TYPE) == PodRole.STANDBY)


def is_terminating(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_active(pod: Object) -> bool:
    """Returns whether a pod is active in the sense of controllers: not finished and not being deleted."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") and not is_terminating(pod)


def _born(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]
