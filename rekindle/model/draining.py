"""State of a node that a person drains, pod by pod."""

from enum import StrEnum

from rekindle.model.base import Value
from rekindle.model.explained import PodThere
from rekindle.model.mode import Mode


class Where(StrEnum):
    """State of a pod on a node that is drained. The value is shown to people."""

    MOVES = "moves"
    WAITS = "waits"
    """The pod cannot move now. The move is retried automatically."""

    STAYS = "stays"
    """The pod does not move by itself, now or later."""

    NO_RANK = "has no rank"
    """The pod does not hold up the drain: a new one is created elsewhere when it ends."""

    MOVED = "moved"
    OVER = "over"
    """The job of the pod has ended."""


LEFT = (Where.NO_RANK, Where.MOVED, Where.OVER)
"""States of pods that the drain does not wait for."""

SETTLED = (*LEFT, Where.STAYS)
"""States that do not change any more without a person."""


class PodRow(Value):
    pod: PodThere
    job: str
    """Namespace and name."""

    where: Where
    why: str = ""


class Moving(Value):
    """Recovery that is running in a job with pods on the node."""

    job: str
    mode: Mode
    workflow_id: str


class Draining(Value):
    """A drained node and the state of the pods on it."""

    node: str
    cordoned: bool
    rule: str = ""
    """Name of the rule by which pods leave the node."""

    refused: tuple[str, ...] = ()
    """Reasons why the node is not drained, one a line. Empty: it can be."""

    rows: tuple[PodRow, ...] = ()

    moving: tuple[Moving, ...] = ()
    drained: bool = False
    """True if the cluster shows no pod with a rank on the node any more."""
