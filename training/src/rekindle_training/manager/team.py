"""Decides which rank carries which shares of a batch when replicas leave or come back.

A replica is a rank, or all ranks over which one model is sharded. Its shares are carried by one other replica, each by the rank
that holds the same part of what is trained.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from rekindle_training.manager.replacements import CannotRepair
from rekindle_wire.training_pb2 import Share

Carriers = tuple[int, ...]
"""Rank that carries each share. Of R ranks, rank r has the shares r, r + R, r + 2R and so on at full size."""
Held = Mapping[int, bytes]
"""Own state of ranks at one step, by rank, with that of the shares that they carry."""
Replicas = Sequence[Sequence[int]]
"""Ranks of each replica. Those at the same place hold the same part of what is trained."""


def replicas(ranks: int, holders: Iterable[Collection[int]]) -> Replicas:
    """Returns the ranks of each replica.

    Args:
        ranks: number of ranks of the job.
        holders: ranks that hold the same part, as each live rank says. Empty: all do.

    Raises:
        CannotRepair: no live rank holds a part, or parts are held by different numbers of ranks.
    """
    parts = sorted({tuple(sorted(held)) for held in holders if held})
    if not parts:
        return [(rank,) for rank in range(ranks)]
    if sorted(rank for part in parts for rank in part) != list(range(ranks)):
        missing = min(set(range(ranks)) - {rank for part in parts for rank in part}, default=0)
        raise CannotRepair(f"no rank that is left holds the shard of rank {missing}, or ranks disagree on who does")
    if len(numbers := {len(part) for part in parts}) > 1:
        raise CannotRepair(
            f"some shards are held by {min(numbers)} ranks and others by {max(numbers)}: there are no whole replicas"
        )
    return list(zip(*parts, strict=True))


def without(carriers: Carriers, leaving: Collection[int], whole: Replicas = ()) -> Carriers:
    """Returns the carriers when ranks have left. Each share goes to the replica that stays and carries the fewest.

    The first replica carries the first share, since wrappers take buffers from the first rank of their group.

    Args:
        whole: all replicas of the job. Empty: each rank is one.

    Raises:
        CannotRepair: no rank stays, or a part of a replica does.
    """
    size = _Size(carriers, whole)
    stay = size.present - size.numbers(leaving)
    if not stay:
        raise CannotRepair("no rank would be left to train")
    found = [carrier if carrier in stay else None for carrier in size.carriers]
    found[0] = min(stay)
    carried = Counter(found)
    fewest = sorted((carried[one], one) for one in stay)
    for share, carrier in enumerate(found):
        if carrier is None:
            number, found[share] = fewest[0]
            heapq.heapreplace(fewest, (number + 1, fewest[0][1]))
    return size.of_ranks(_even([carrier for carrier in found if carrier is not None], size))


def with_(carriers: Carriers, returning: Collection[int], whole: Replicas = ()) -> Carriers:
    """Returns the carriers when ranks have come back: each carries its own shares again.

    If ranks are still missing, those that carry more of their shares than others hand some over.

    Args:
        whole: all replicas of the job. Empty: each rank is one.

    Raises:
        CannotRepair: only a part of a replica comes back.
    """
    size = _Size(carriers, whole)
    back = size.numbers(returning)
    found = [home if (home := size.home(share)) in back else carrier for share, carrier in enumerate(size.carriers)]
    found[0] = min(found)
    return size.of_ranks(_even(found, size))


def _even(carriers: list[int], size: "_Size") -> list[int]:
    """Evens out how many shares each replica carries, if each has several of its own. The first share stays where it is."""
    if size.parts == 1:
        return carriers
    there, carried = set(carriers), Counter(carriers)
    movable = {one: [share for share in range(1, len(carriers)) if carriers[share] == one != size.home(share)] for one in there}
    while True:
        fullest = min((one for one in there if movable[one]), key=lambda one: (-carried[one], one), default=None)
        emptiest = min(there, key=lambda one: (carried[one], one))
        if fullest is None or carried[fullest] - carried[emptiest] < 2:
            return carriers
        carriers[movable[fullest].pop()] = emptiest
        carried[fullest] -= 1
        carried[emptiest] += 1


class _Size:
    """Size of a job in replicas, which are numbered in the order of their first ranks."""

    def __init__(self, carriers: Carriers, whole: Replicas) -> None:
        self._whole = whole or [(rank,) for rank in range(len(carriers))]
        self._number = {rank: number for number, ranks in enumerate(self._whole) for rank in ranks}
        self.parts = len(carriers) // len(self._number)
        self.carriers = [
            self._number[carriers[part * len(self._number) + ranks[0]]] for part in range(self.parts) for ranks in self._whole
        ]
        """Replica that carries each share of the replicas."""
        self.present = set(self.carriers)

    def home(self, share: int) -> int:
        """Returns the replica that carries a share at full size."""
        return share % len(self._whole)

    def numbers(self, ranks: Collection[int]) -> set[int]:
        """Returns the replicas of some ranks. Raises CannotRepair where a replica has further ranks."""
        found = {self._number[rank] for rank in ranks}
        for number in sorted(found):
            if further := sorted(set(self._whole[number]) - set(ranks)):
                raise CannotRepair(
                    f"ranks {sorted(self._whole[number])} are one replica, and rank {further[0]} of it is not named: its pods "
                    "leave and come back together (`pods` in the annotation rekindle.io/elastic)"
                )
        return found

    def of_ranks(self, carriers: Sequence[int]) -> Carriers:
        """Returns the rank that carries each share of the ranks."""
        found = {
            share // len(self._whole) * len(self._number) + rank: self._whole[carrier][place]
            for share, carrier in enumerate(carriers)
            for place, rank in enumerate(self._whole[self.home(share)])
        }
        return tuple(found[rank] for rank in range(len(found)))


def sent(then: Sequence[int], before: Sequence[int], has: Mapping[int, Collection[int]], held: Held) -> dict[int, list[Share]]:
    """Returns the shares that each rank is to be sent, by rank.

    Args:
        then: carriers after the change.
        before: carriers before it.
        has: shares besides its own one that each rank has already. A rank that is left out has those that it is to carry.
        held: state at the step after which training goes on.

    Raises:
        CannotRepair: nobody has the state of a share.
    """
    found: dict[int, list[Share]] = {}
    for share, carrier in enumerate(then):
        if share == before[share] == carrier or carrier not in has or share in has[carrier]:
            continue
        holder = next((rank for rank in (share, before[share]) if rank in held), None)
        if holder is None:
            raise CannotRepair(f"no process has the random numbers and the data position of rank {share}, which is missing")
        mine = found.setdefault(carrier, [])
        is_there = any(one.holder == holder for one in mine)
        mine.append(Share(share=share, holder=holder, own_state=b"" if is_there else held[holder]))
    return found
