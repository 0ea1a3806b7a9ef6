"""Ranks of a job and the pods that they run in. All pods have the same number of ranks, and ranks are ordered by pod rank."""

from collections.abc import Collection, Iterable
from typing import NamedTuple


class Layout(NamedTuple):
    """Size of a job. The only place that computes a rank from a pod rank, or the reverse."""

    pods: int
    ranks_per_pod: int
    pods_per_replica: int = 1
    """Number of pods, one after the other, over which one copy of the model is sharded."""

    @property
    def ranks(self) -> int:
        """Number of ranks of the job (world size)."""
        return self.pods * self.ranks_per_pod

    @property
    def replicas(self) -> int:
        return self.pods // self.pods_per_replica

    def whole_replicas(self, pod_ranks: Iterable[int]) -> tuple[int, ...]:
        """Returns the pod ranks of all replicas of which one of these pods is a part, in ascending order."""
        size = self.pods_per_replica
        return tuple(replica * size + place for replica in self._replicas_of(pod_ranks) for place in range(size))

    def replica_of(self, pod_rank: int) -> int:
        """Returns the number of the replica of which a pod is a part."""
        return pod_rank // self.pods_per_replica

    def whole_among(self, pod_ranks: Collection[int]) -> tuple[int, ...]:
        """Returns those of these pod ranks whose replica has all of its pods among them, in ascending order."""
        among = set(pod_ranks)
        return tuple(rank for rank in self.whole_replicas(among) if among.issuperset(self.whole_replicas((rank,))))

    def replicas_without(self, pod_ranks: Iterable[int]) -> int:
        """Returns the number of replicas of which none of these pods is a part."""
        return self.replicas - len(self._replicas_of(pod_ranks))

    def _replicas_of(self, pod_ranks: Iterable[int]) -> list[int]:
        return sorted({self.replica_of(pod_rank) for pod_rank in pod_ranks})

    def ranks_of(self, pod_rank: int) -> range:
        """Returns the ranks of one pod."""
        return range(pod_rank * self.ranks_per_pod, (pod_rank + 1) * self.ranks_per_pod)

    def ranks_of_all(self, pod_ranks: Iterable[int]) -> tuple[int, ...]:
        """Returns the ranks of several pods, in the order of `pod_ranks`."""
        return tuple(rank for pod_rank in pod_ranks for rank in self.ranks_of(pod_rank))

    def pod_of(self, rank: int) -> int:
        """Returns the pod rank of a rank."""
        return rank // self.ranks_per_pod

    def pods_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Returns the pod ranks of some ranks, without duplicates and in ascending order."""
        return tuple(sorted({self.pod_of(rank) for rank in ranks}))
