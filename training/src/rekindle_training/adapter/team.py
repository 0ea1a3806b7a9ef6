"""Ranks that train in one generation, and the shares of a batch that each of them computes.

The share of a rank is what it draws in a step of a job at full size. While ranks are missing, others carry their shares, so that
the steps have the same samples. In the process group the ranks are numbered without gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Team:
    carriers: tuple[int, ...]
    """Rank that carries the share of each rank, by rank. A rank that carries no share is missing."""

    @classmethod
    def of(cls, carriers: Sequence[int], world_size: int) -> "Team":
        """Returns the team of a generation. Without carriers all ranks are there, and each carries its own share."""
        return cls(tuple(carriers) or tuple(range(world_size)))

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Ranks that train, ascending."""
        return tuple(sorted(set(self.carriers)))

    @property
    def size(self) -> int:
        """Number of ranks that train: the size of the process group."""
        return len(self.members)

    @property
    def is_whole(self) -> bool:
        """Returns whether no rank is missing."""
        return self.size == len(self.carriers)

    @property
    def missing_share(self) -> float:
        """Share of the ranks that are missing, from 0 to 1."""
        return 1 - self.size / len(self.carriers)

    def index(self, rank: int) -> int:
        """Returns the number of a rank in the process group."""
        return self.members.index(rank)

    def shares(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks whose shares this rank computes in each step, in their order."""
        return self._shares.get(rank, ())

    @cached_property
    def _shares(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for share, carrier in enumerate(self.carriers):
            found.setdefault(carrier, []).append(share)
        return {rank: tuple(shares) for rank, shares in found.items()}
