"""Decides which rank carries whose share of a batch when ranks leave or come back."""

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from rekindle_training.manager.replacements import CannotRepair
from rekindle_wire.training_pb2 import Share

Carriers = tuple[int, ...]
"""Rank that carries the share of each rank, by rank. Empty: each carries its own."""
Held = Mapping[int, bytes]
"""Own state of ranks at one step, by rank, with that of the shares that they carry."""


def without(carriers: Carriers, leaving: Collection[int]) -> Carriers:
    """Returns the carriers when ranks have left. The share of each goes to the rank that stays and carries the fewest.

    The first rank carries the share of rank 0, since wrappers take buffers from the first rank of their group.

    Raises:
        CannotRepair: no rank stays.
    """
    stay = set(carriers) - set(leaving)
    if not stay:
        raise CannotRepair("no rank would be left to train")
    found = [carrier if carrier in stay else None for carrier in carriers]
    found[0] = min(stay)
    carried = Counter(found)
    fewest = sorted((carried[rank], rank) for rank in stay)
    for share, carrier in enumerate(found):
        if carrier is None:
            number, found[share] = fewest[0]
            heapq.heapreplace(fewest, (number + 1, fewest[0][1]))
    return tuple(carrier for carrier in found if carrier is not None)


def with_(carriers: Carriers, returning: Collection[int]) -> Carriers:
    """Returns the carriers when ranks have come back: each carries its own share again."""
    found = [share if share in returning else carrier for share, carrier in enumerate(carriers)]
    found[0] = min(found)
    return tuple(found)


def sent(then: Sequence[int], before: Sequence[int], has: Mapping[int, Collection[int]], held: Held) -> dict[int, list[Share]]:
    """Returns the shares that each rank is to be sent, by rank.

    Args:
        then: carriers after the change.
        before: carriers before it.
        has: shares of other ranks that each rank has already. A rank that is left out has those that it is to carry.
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
