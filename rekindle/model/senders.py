"""Who may speak for a job, as a cluster knows it, and who wants to. Read by the gateway."""

from dataclasses import dataclass
from enum import StrEnum

from rekindle.model.job import TrainingSide


class Proof(StrEnum):
    """By what the gateway knows that a pod of the job calls."""

    TOKEN = "token"
    """The token of the pod, confirmed by the API server."""

    ADDRESS = "address"
    """The address from which the call comes. Nothing proves it: whoever shares or takes the pod's address passes."""

    ANYBODY = "anybody"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Speakers:
    """The pods of a job that are not over."""

    training_side: TrainingSide
    pods: frozenset[str]
    """UIDs."""

    addresses: frozenset[str]


@dataclass(frozen=True)
class Claims:
    """What a token says of itself. Who reads it has no proof of any of it."""

    pod: str
    """UID."""

    audiences: tuple[str, ...]
    expires: float
    """Seconds since 1970."""

    namespace: str = ""
    name: str = ""
    """Name of the pod."""


@dataclass(frozen=True)
class Caller:
    """Who calls, as far as it says so itself."""

    address: str
    claims: Claims | None = None
    wrong: str = "no token came with the call"
    """Why there are no claims."""


@dataclass(frozen=True)
class Problem:
    """Why a caller is not listened to."""

    words: str
    may_pass: bool = False
    """A look at the cluster may show what it did not show before."""
