"""Ranks of a job and the pods that they run in. All pods have the same number of ranks, and ranks are ordered by pod rank."""

from collections.abc import Iterable
from typing import NamedTuple


class Layout(NamedTuple):
    """Size of a job. The only place that computes a rank from a pod rank, or the reverse."""

    pods: int
    ranks_per_pod: int

    @property
    def ranks(self) -> int:
        """Number of ranks of the job (world size)."""
        return self.pods * self.ranks_per_pod

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
