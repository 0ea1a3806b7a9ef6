"""A node that a person drains, pod by pod."""

from enum import StrEnum

from rekindle.model.base import Value
from rekindle.model.explained import PodThere
from rekindle.model.recovery import Mode


class Where(StrEnum):
    """What becomes of a pod on a node that is drained. The value is what people read."""

    MOVES = "moves"
    WAITS = "waits"
    """It cannot move now, and is tried again without anybody's doing."""

    STAYS = "stays"
    """It does not move by itself, now or later."""

    NO_RANK = "has no rank"
    """It holds no drain: another one is made elsewhere when it ends."""

    MOVED = "moved"
    OVER = "over"
    """Its job has ended."""


LEFT = (Where.NO_RANK, Where.MOVED, Where.OVER)
"""Nobody waits for these."""

SETTLED = (*LEFT, Where.STAYS)
"""Nothing becomes of these by itself any more."""


class PodRow(Value):
    pod: PodThere
    job: str
    """Namespace and name."""

    where: Where
    why: str = ""


class Moving(Value):
    """A recovery that runs in a job with pods there."""

    job: str
    mode: Mode
    workflow_id: str


class Draining(Value):
    """A node and what becomes of the pods on it."""

    node: str
    cordoned: bool
    rule: str = ""
    """By which it is left."""

    refused: tuple[str, ...] = ()
    """Why it is not drained, one reason a line; empty: it may be."""

    rows: tuple[PodRow, ...] = ()

    moving: tuple[Moving, ...] = ()
    drained: bool = False
    """No pod of a rank is there any more, as the cluster shows it."""
