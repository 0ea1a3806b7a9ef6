"""The upgrade of a switch: which links each of its leaves carries, where the upgrade is, and what becomes of each job."""

from enum import StrEnum
from typing import Annotated, Self, TypedDict, Unpack

from pydantic import AfterValidator, Field

from rekindle.model.base import Asked, Value
from rekindle.model.bounds import Note, Text, cut
from rekindle.model.links import NodeLinks, Placed
from rekindle.model.maintenance import KEPT_MOVES, FailoverRequest, Move

MOST_LEAVES = 64
MOST_ENTRIES = 192
"""Nodes of all leaves of a plan together, and places of jobs on one leaf: what one payload has room for."""

MOST_LINKS = 1_024
"""Links of all leaves of a plan together."""

MOST_JOBS = 64
"""Jobs with devices on one leaf."""

MOST_LEFT = 16
"""Jobs of earlier leaves that are left on their backup links."""

AT_ONCE = 8
"""Jobs that are moved at the same time, if the plan does not say otherwise."""

MOST_AT_ONCE = 64
KEPT_ROWS = 96
"""Rows of a forecast."""

LONGEST_SWITCH = 63
LONGEST_BRIEF = 120
"""Characters of the name of a leaf, and of a job's devices in words."""


def _brief(text: str) -> str:
    return cut(text, LONGEST_BRIEF)


Brief = Annotated[str, AfterValidator(_brief)]


class Leaf(Value):
    """One leaf of the switch."""

    name: Brief
    links: tuple[NodeLinks, ...] = ()
    """What is plugged into it: of these devices the first link, or (`backup`) the backup link."""


class SwitchPlan(Value):
    """What a person wants to be done."""

    switch: str = Field(min_length=1, max_length=LONGEST_SWITCH, pattern=r"^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$")
    carries: tuple[NodeLinks, ...] = ()
    """All links of the switch, whatever leaf they are on: what the leaves are compared with before it begins."""

    leaves: tuple[Leaf, ...] = ()
    """In the order of their upgrades."""

    jobs: tuple[Note, ...] = ()
    """Ids or names; none: all registered jobs that have devices on a leaf."""

    at_once: int = Field(default=AT_ONCE, ge=1, le=MOST_AT_ONCE)
    skip_unmovable: bool = False
    """A job that cannot be moved is left on the leaf; otherwise the plan stands until somebody decides."""


class Stage(StrEnum):
    """Where an upgrade is; what people read."""

    CHECKING = "being checked"
    FAILING_OVER = "failing over"
    FREE = "the leaf may be upgraded"
    SWITCHING_BACK = "switching back"
    ROLLING_BACK = "rolling back"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    REFUSED = "refused"
    TERMINATED = "terminated"
    """Somebody has ended its workflow by force; its maintenances stand."""


ENDS = (Stage.DONE, Stage.ROLLED_BACK, Stage.REFUSED, Stage.TERMINATED)


class Where(StrEnum):
    """What became of one job of a leaf."""

    MOVING = "is being moved"
    NOT_MOVED = "not moved"
    SKIPPED = "left on the leaf"
    ON_BACKUP = "on the backup link"
    RETURNING = "is being moved back"
    NOT_RETURNED = "not moved back"
    LEFT = "left on the backup link"
    RETURNED = "back on the first link"


ASKING = (Where.NOT_MOVED, Where.NOT_RETURNED)
"""Somebody has to decide."""


class Word(StrEnum):
    """What a person tells an upgrade."""

    PROCEED = "proceed"
    STOP = "stop"
    RESUME = "resume"
    ROLLBACK = "rollback"
    RETRY = "retry"
    SKIP = "skip"


class Control(Asked):
    """Update and signal `control`."""

    word: Word
    leaf: Brief = ""
    """Of `proceed`: it is refused where another leaf is free; empty: whichever is."""

    requested_by: Note = ""


class JobMove(Value):
    """A job that was on a leaf."""

    job_id: str
    job: Note
    leaf: int
    """Which one of the plan, from 0."""

    maintenance: Text = ""
    """Workflow id of the `LinkFailover` that moves its links, there and back."""

    where: Where = Where.MOVING
    what: Brief = ""
    """Its devices, in words."""

    reason: Note = ""


class LeafDone(Value):
    """A leaf that was upgraded."""

    name: Brief
    returned: int
    """Jobs."""

    skipped: int = 0
    left: int = 0


class UpgradeChanges(TypedDict, total=False):
    """The fields of `Upgrade`, for `with_`."""

    stage: Stage
    leaf: int
    leaves: tuple[str, ...]
    moves: tuple[JobMove, ...]
    done: tuple[LeafDone, ...]
    stopped: bool
    notes: tuple[Move, ...]


class Upgrade(Value):
    """Where an upgrade is, and what it did: its status, its result, and its memory from run to run."""

    switch: str = ""
    stage: Stage = Stage.CHECKING
    leaf: int = 0
    """Which leaf of the plan, from 0."""

    leaves: tuple[Brief, ...] = ()
    moves: tuple[JobMove, ...] = ()
    """Jobs of this leaf, and those of earlier ones that are still on their backup links."""

    done: tuple[LeafDone, ...] = ()
    stopped: bool = False
    notes: tuple[Move, ...] = ()
    """The last ones."""

    def with_(self, **changes: Unpack[UpgradeChanges]) -> Self:
        """It with these fields changed."""
        return self.model_copy(update=dict(changes))

    def noting(self, note: Move) -> Self:
        return self.with_(notes=(*self.notes, note)[-KEPT_MOVES:])

    @property
    def leaf_name(self) -> str:
        return self.leaves[self.leaf] if self.leaf < len(self.leaves) else ""

    @property
    def asking(self) -> tuple[JobMove, ...]:
        """Jobs about which somebody has to decide."""
        return tuple(move for move in self.moves if move.where in ASKING)


class UpgradeRequest(Value):
    """Argument of `SwitchUpgrade`."""

    plan: SwitchPlan
    dry_run: bool = False
    """Only look: the forecast is the answer of its update `checked`."""

    requested_by: Note = ""
    known: Upgrade | None = None
    """What an earlier run of it knew; None: it begins."""


# ---- what is seen of a leaf


class SurveyLeafRequest(Value):
    leaf: Leaf
    jobs: tuple[Note, ...] = ()


class JobOnLeaf(Value):
    """A job that has devices on a leaf, as it is now."""

    job_id: str
    job: Note
    maintenance: Text = ""
    """Workflow id of the `LinkFailover` that would move them."""

    move: tuple[Placed, ...] = ()
    """To the backup link: what uses its first link on this leaf."""

    busy: Note = ""
    """With what it is busy now; it is waited for."""

    problem: Note = ""
    """Why it cannot leave the leaf as it is now; empty: it can."""

    info: Note = ""


class LeafView(Value):
    jobs: tuple[JobOnLeaf, ...] = ()
    problems: tuple[Note, ...] = ()
    """Nodes and jobs that are not known, and a leaf that carries too much."""


class ForecastRow(Value):
    """What would be done with one job on one leaf."""

    leaf: Note
    job: Note
    devices: Note = ""
    ranks: Note = ""
    problem: Note = ""
    info: Note = ""


class Forecast(Value):
    """What an upgrade would do."""

    leaves: tuple[Note, ...] = ()
    rows: tuple[ForecastRow, ...] = ()
    more: int = 0
    """Rows that are left out."""

    refused: tuple[Note, ...] = ()
    """Why it is not begun; none: it would be."""


class FailOver(Value):
    """A maintenance that is to be begun."""

    maintenance: Text
    request: FailoverRequest
    whose: Note
    """Which upgrade begins it: the same one may ask again."""


class MoveBack(Value):
    maintenance: Text
    requested_by: Note = ""


class Moved(Value):
    """What became of the movement of a job's links."""

    problem: Note = ""
    """Why they were not moved; empty: they were."""

    busy: bool = False
    """It may be tried again soon."""

    info: Note = ""
