"""Ranks that train in one generation, and the shares of a batch that each of them computes.

The shares of a rank are what it draws in a step of a job at full size. While ranks are missing, others carry their shares, so
that the steps have the same samples. In the process group the ranks are numbered without gaps.

The shares of one rank at full size are a group. With four ranks and three parts the group of rank 1 has the shares 1, 5 and 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

Unit = tuple[int, ...]
"""Shares of one group that a rank carries and that follow each other in it. Their gradients are sent as one sum."""


@dataclass(frozen=True)
class Team:
    carriers: tuple[int, ...]
    """Rank that carries each share. A rank that carries no share is missing."""
    parts: int = 1
    """Number of shares of each rank at full size."""

    @classmethod
    def of(cls, carriers: Sequence[int], world_size: int, parts: int = 1) -> "Team":
        """Returns the team of a generation. Without carriers all ranks are there, and each carries its own shares.

        Raises:
            ValueError: carriers are not those of all shares.
        """
        if len(carriers) not in (0, world_size * parts):
            raise ValueError(
                f"carriers: those of {len(carriers)} shares are not accepted, there are {world_size * parts}: the manager does "
                "not know of shares(parts=...), and is of an earlier release than these ranks"
            )
        return cls(tuple(carriers) or tuple(range(world_size)) * parts, parts)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Ranks that train, ascending."""
        return tuple(sorted(set(self.carriers)))

    @property
    def size(self) -> int:
        """Number of ranks that train: the size of the process group."""
        return len(self.members)

    @property
    def world_size(self) -> int:
        """Number of ranks of the job at full size, which is also that of groups."""
        return len(self.carriers) // self.parts

    @property
    def is_whole(self) -> bool:
        """Returns whether no rank is missing."""
        return self.size == self.world_size

    @property
    def missing_share(self) -> float:
        """Share of the ranks that are missing, from 0 to 1."""
        return 1 - self.size / self.world_size

    def index(self, rank: int) -> int:
        """Returns the number of a rank in the process group."""
        return self.members.index(rank)

    def shares(self, rank: int) -> tuple[int, ...]:
        """Returns the shares that this rank computes in each step, in their order: by group."""
        return tuple(share for unit in self.units(rank) for share in unit)

    def units(self, rank: int) -> tuple[Unit, ...]:
        """Returns the same shares, with those together whose gradients this rank sends as one sum."""
        return self._units.get(rank, ())

    def is_followed(self, share: int) -> bool:
        """Returns whether another share follows this one in its unit."""
        return share in self._followed

    @cached_property
    def _followed(self) -> frozenset[int]:
        return frozenset(share for units in self._units.values() for unit in units for share in unit[:-1])

    @cached_property
    def _units(self) -> dict[int, tuple[Unit, ...]]:
        """Units by rank. Only the first shares of a group are a sum, since sums are added up from the left."""
        found: dict[int, list[Unit]] = {}
        for first in range(self.world_size):
            group = range(first, len(self.carriers), self.world_size)
            (carrier, beginning), *others = ((one, tuple(run)) for one, run in groupby(group, self.carriers.__getitem__))
            found.setdefault(carrier, []).append(beginning)
            for carrier, run in others:
                found.setdefault(carrier, []).extend((share,) for share in run)
        return {rank: tuple(units) for rank, units in found.items()}

    def place(self, share: int) -> tuple[int, int]:
        """Returns the group of a share, and its place there: the order of all shares."""
        return share % self.world_size, share // self.world_size
