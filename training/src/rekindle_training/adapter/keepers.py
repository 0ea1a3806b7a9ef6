"""Ranks that keep the snapshots of others, in other failure domains.

That is another rack where racks are known, and another node otherwise.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rekindle_training import names


class Domain(NamedTuple):
    """Place of a rank."""

    rank: int
    node: str
    rack: str
    """Empty: it is not known."""


class SameDomain(ValueError):
    """Too many ranks would be lost with one node or rack."""


def keepers(domains: Sequence[Domain]) -> Mapping[int, int]:
    """Returns the rank that keeps the snapshots of each rank. Empty: all ranks are on one node, and each keeps only its own.

    Args:
        domains: all ranks, ascending.

    Raises:
        SameDomain: a rank would have its snapshots kept in its own rack, or on its own node.
    """
    if named := {domain.rank: domain.rack for domain in domains if domain.rack}:
        if unnamed := [domain.rank for domain in domains if not domain.rack]:
            raise SameDomain(
                f"{names.RACK} is set for rank {min(named)} and not for rank {unnamed[0]}: set it in all pods, or in none"
            )
        return _shifted(named, "rack", f", or no {names.RACK} at all: copies then go to another node")
    nodes = {domain.rank: domain.node for domain in domains}
    return _shifted(nodes, "node", "") if len(set(nodes.values())) > 1 else {}


def _shifted(places: Mapping[int, str], kind: str, more: str) -> Mapping[int, int]:
    """Returns for each rank one in another place: in the order of places, as many ranks further as the largest place has."""
    place, largest = Counter(places.values()).most_common(1)[0]
    if 2 * largest > len(places):
        raise SameDomain(
            f"{largest} of {len(places)} ranks are in {kind} {place}, so that not each of them can have its snapshots kept in "
            f"another {kind}; accepted are at most {len(places) // 2} ranks in one {kind}{more}"
        )
    order = sorted(places, key=lambda rank: (places[rank], rank))
    return {rank: order[(index + largest) % len(order)] for index, rank in enumerate(order)}
