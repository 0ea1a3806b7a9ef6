"""Identity of callers of the gateway: which pods may report for a job, and what a caller claims to be."""

from dataclasses import dataclass
from enum import StrEnum

from rekindle.model.training_side import TrainingSide


class Proof(StrEnum):
    """Means by which the gateway recognizes that a pod of the job calls."""

    TOKEN = "token"
    """Token of the pod, confirmed by the API server."""

    ADDRESS = "address"
    """Address from which the call comes. It is no proof: a process that shares or takes over the pod's address is accepted."""

    ANYBODY = "anybody"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Speakers:
    """Pods of a job that have not ended."""

    training_side: TrainingSide
    pods: frozenset[str]
    """UIDs of the pods."""

    addresses: frozenset[str]


@dataclass(frozen=True)
class Claims:
    """Content of a token. It is not verified."""

    pod: str
    """UID of the pod."""

    audiences: tuple[str, ...]
    expires: float
    """Expiry in seconds since 1970."""

    namespace: str = ""
    name: str = ""
    """Name of the pod."""


@dataclass(frozen=True)
class Caller:
    """Caller, as far as it identifies itself."""

    address: str
    claims: Claims | None = None
    wrong: str = "no token came with the call"
    """Reason why there are no claims."""


@dataclass(frozen=True)
class Problem:
    """Reason why a call is rejected."""

    words: str
    may_pass: bool = False
    """True if a new look at the cluster may change the result."""
