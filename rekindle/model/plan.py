"""Upgrade of a switch: the links on each of its leaves, the stage of the upgrade, and the state of each job."""

from enum import StrEnum
from typing import Annotated, Self, TypedDict, Unpack

from pydantic import AfterValidator, Field

from rekindle.model.base import Asked, Value
from rekindle.model.bounds import Note, Text, cut
from rekindle.model.links import NodeLinks, Placed
from rekindle.model.maintenance import KEPT_MOVES, FailoverRequest, Move

MOST_LEAVES = 64
MOST_ENTRIES = 192
"""Maximum number of nodes on all leaves of a plan, and of places of jobs on one leaf. So many fit into one payload."""

MOST_LINKS = 1_024
"""Maximum number of links on all leaves of a plan."""

MOST_JOBS = 64
"""Maximum number of jobs with devices on one leaf."""

MOST_LEFT = 16
"""Maximum number of jobs of earlier leaves that are left on their backup links."""

AT_ONCE = 8
"""Default for the number of jobs that are moved at the same time."""

MOST_AT_ONCE = 64
KEPT_ROWS = 96
"""Maximum number of rows of a forecast."""

LONGEST_SWITCH = 63
LONGEST_BRIEF = 120
"""Characters of the name of a leaf, and of the description of a job's devices."""


def _brief(text: str) -> str:
    return cut(text, LONGEST_BRIEF)


Brief = Annotated[str, AfterValidator(_brief)]


class Leaf(Value):
    """One leaf of the switch."""

    name: Brief
    links: tuple[NodeLinks, ...] = ()
    """Links that are plugged into the leaf: the first link of the devices, or (`backup`) their backup link."""


class SwitchPlan(Value):
    """Upgrade plan of a switch, as a person writes it."""

    switch: str = Field(min_length=1, max_length=LONGEST_SWITCH, pattern=r"^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$")
    carries: tuple[NodeLinks, ...] = ()
    """All links of the switch, on whatever leaf. The leaves are compared with them before the upgrade begins."""

    leaves: tuple[Leaf, ...] = ()
    """Leaves in the order in which they are upgraded."""

    jobs: tuple[Note, ...] = ()
    """Ids or names of jobs. Empty: all registered jobs with devices on a leaf."""

    at_once: int = Field(default=AT_ONCE, ge=1, le=MOST_AT_ONCE)
    skip_unmovable: bool = False
    """True to leave a job on the leaf that cannot be moved. Otherwise the plan waits for a person's decision."""


class Stage(StrEnum):
    """Stage of an upgrade. The value is shown to people."""

    CHECKING = "being checked"
    FAILING_OVER = "failing over"
    FREE = "the leaf may be upgraded"
    SWITCHING_BACK = "switching back"
    ROLLING_BACK = "rolling back"
    DONE = "done"
    ROLLED_BACK = "rolled back"
    REFUSED = "refused"
    TERMINATED = "terminated"
    """A person has terminated the workflow of the upgrade. Its maintenances stay."""


ENDS = (Stage.DONE, Stage.ROLLED_BACK, Stage.REFUSED, Stage.TERMINATED)


class Where(StrEnum):
    """State of one job of a leaf. The value is shown to people."""

    MOVING = "is being moved"
    NOT_MOVED = "not moved"
    SKIPPED = "left on the leaf"
    ON_BACKUP = "on the backup link"
    RETURNING = "is being moved back"
    NOT_RETURNED = "not moved back"
    LEFT = "left on the backup link"
    RETURNED = "back on the first link"


ASKING = (Where.NOT_MOVED, Where.NOT_RETURNED)
"""States in which a person has to decide."""


class Word(StrEnum):
    """Command of a person to an upgrade."""

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
    """Name of the leaf for `proceed`, which is compared with the one that is free now. Empty: any leaf."""

    requested_by: Note = ""


class JobMove(Value):
    """A job with devices on a leaf, and its state."""

    job_id: str
    job: Note
    leaf: int
    """Index of the leaf in the plan, from 0."""

    maintenance: Text = ""
    """Workflow id of the `LinkFailover` that moves the links of the job in both directions."""

    where: Where = Where.MOVING
    what: Brief = ""
    """Devices of the job, in words."""

    reason: Note = ""


class LeafDone(Value):
    """A leaf whose upgrade is done."""

    name: Brief
    returned: int
    """Number of jobs that were moved back."""

    skipped: int = 0
    left: int = 0


class UpgradeChanges(TypedDict, total=False):
    """Fields of `Upgrade`, for `with_`."""

    stage: Stage
    leaf: int
    leaves: tuple[str, ...]
    moves: tuple[JobMove, ...]
    done: tuple[LeafDone, ...]
    stopped: bool
    notes: tuple[Move, ...]


class Upgrade(Value):
    """Status, result and memory of an upgrade: its stage and what it did. Passed from run to run of its workflow."""

    switch: str = ""
    stage: Stage = Stage.CHECKING
    leaf: int = 0
    """Index of the present leaf in the plan, from 0."""

    leaves: tuple[Brief, ...] = ()
    moves: tuple[JobMove, ...] = ()
    """Jobs of this leaf, and jobs of earlier leaves that are still on their backup links."""

    done: tuple[LeafDone, ...] = ()
    stopped: bool = False
    notes: tuple[Move, ...] = ()
    """The last events of the upgrade, at most `KEPT_MOVES`."""

    def with_(self, **changes: Unpack[UpgradeChanges]) -> Self:
        """Returns a copy with these fields changed."""
        return self.model_copy(update=dict(changes))

    def noting(self, note: Move) -> Self:
        return self.with_(notes=(*self.notes, note)[-KEPT_MOVES:])

    @property
    def leaf_name(self) -> str:
        return self.leaves[self.leaf] if self.leaf < len(self.leaves) else ""

    @property
    def asking(self) -> tuple[JobMove, ...]:
        """Jobs for which a person has to decide."""
        return tuple(move for move in self.moves if move.where in ASKING)


class UpgradeRequest(Value):
    """Argument of the workflow `SwitchUpgrade`."""

    plan: SwitchPlan
    dry_run: bool = False
    """True to compute only a forecast, which the update `checked` returns."""

    requested_by: Note = ""
    known: Upgrade | None = None
    """State of an earlier run of the workflow. None: this is the first run."""


# ---- state of a leaf


class SurveyLeafRequest(Value):
    leaf: Leaf
    jobs: tuple[Note, ...] = ()


class JobOnLeaf(Value):
    """Present state of a job that has devices on a leaf."""

    job_id: str
    job: Note
    maintenance: Text = ""
    """Workflow id of the `LinkFailover` that would move the devices."""

    move: tuple[Placed, ...] = ()
    """Devices to move to their backup link: those that use their first link on this leaf."""

    busy: Note = ""
    """Description of what the job is busy with now. The upgrade waits for its end."""

    problem: Note = ""
    """Reason why the job cannot leave the leaf now. Empty: it can."""

    info: Note = ""


class LeafView(Value):
    jobs: tuple[JobOnLeaf, ...] = ()
    problems: tuple[Note, ...] = ()
    """Descriptions of unknown nodes and jobs, and of a leaf that carries too many links."""


class ForecastRow(Value):
    """Planned action for one job on one leaf."""

    leaf: Note
    job: Note
    devices: Note = ""
    ranks: Note = ""
    problem: Note = ""
    info: Note = ""


class Forecast(Value):
    """Forecast of an upgrade."""

    leaves: tuple[Note, ...] = ()
    rows: tuple[ForecastRow, ...] = ()
    more: int = 0
    """Number of rows that are left out."""

    refused: tuple[Note, ...] = ()
    """Reasons why the upgrade is not started. Empty: it would be."""


class FailOver(Value):
    """Request to start a maintenance."""

    maintenance: Text
    request: FailoverRequest
    whose: Note
    """Workflow id of the upgrade that starts the maintenance. The same upgrade may repeat the request."""


class MoveBack(Value):
    maintenance: Text
    requested_by: Note = ""


class Moved(Value):
    """Result of the movement of a job's links."""

    problem: Note = ""
    """Reason why the links were not moved. Empty: they were."""

    busy: bool = False
    """True if the movement can be retried soon."""

    info: Note = ""
