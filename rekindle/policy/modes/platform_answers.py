"""Texts by which the control plane and a platform exchange faults: `rank:type`, separated by commas. Source: the Kubernetes
contract."""

from collections.abc import Iterable

from rekindle.errors import BadInput
from rekindle.model.dialogue import FaultRank
from rekindle.model.fault import FaultType
from rekindle.model.sizes import MOST_RANKS
from rekindle.policy.modes.faulty_ranks import together


def written(faults: Iterable[FaultRank]) -> str:
    return ",".join(f"{one.rank}:{one.type}" for one in together(faults))


def read(text: str) -> tuple[FaultRank, ...]:
    """Returns the faults of a text. An empty text has none.

    Raises:
        BadInput: a part is not `rank:type`.
    """
    return together(_read(part.strip()) for part in text.split(",") if part.strip())


def _read(part: str) -> FaultRank:
    rank, _, kind = part.partition(":")
    if not (rank.isascii() and rank.isdigit() and len(rank) < 7 and int(rank) < MOST_RANKS):
        raise BadInput(f"{part[:40]!r} is not accepted: the rank is a whole number from 0 to {MOST_RANKS - 1}")
    if kind not in set(FaultType):
        raise BadInput(f"{part[:40]!r} is not accepted: the type of a fault is one of {', '.join(FaultType)}")
    return FaultRank(rank=int(rank), type=FaultType(kind))
