"""Maintenance of links: from the failover of a job's devices to their switchback, which may be days later."""

from datetime import datetime
from enum import StrEnum
from typing import Self, TypedDict, Unpack

from rekindle.model.base import Asked, Value
from rekindle.model.bounds import Text
from rekindle.model.links import NodeLinks, Placed
from rekindle.model.mode import Outcome

KEPT_MOVES = 20


class Stage(StrEnum):
    """Stage of a maintenance. The value is shown to people."""

    FAILING_OVER = "failing over"
    ON_BACKUP = "on the backup link"
    SWITCHING_BACK = "switching back"
    OVER = "over"


class SwitchBack(Asked):
    """Devices to move back to their first link. Empty: all devices that this maintenance has moved to their backup link."""

    links: tuple[NodeLinks, ...] = ()
    requested_by: Text = ""


class Move(Value):
    """Movement of links, or another event of a maintenance."""

    at: datetime
    what: Text
    outcome: Outcome | None = None
    """Outcome of the link switch. None: this was no link switch of Rekindle."""

    reason: Text = ""

    @property
    def succeeded(self) -> bool:
        return self.outcome in (None, Outcome.RECOVERED)


class MaintenanceChanges(TypedDict, total=False):
    """Fields of `Maintenance`, for `with_`."""

    job_id: str
    stage: Stage
    on_backup: tuple[Placed, ...]
    since: datetime
    asked: int
    moves: tuple[Move, ...]


class Maintenance(Value):
    """Status, result and memory of a maintenance: its stage and what it did. Passed from run to run of its workflow."""

    job_id: str = ""
    job: str = ""
    stage: Stage = Stage.FAILING_OVER
    on_backup: tuple[Placed, ...] = ()
    """Devices that the maintenance has moved and that have not returned."""

    since: datetime | None = None
    """Time at which the devices had been moved."""

    asked: int = 0
    """Number of movements that were requested."""

    moves: tuple[Move, ...] = ()
    """The last movements, at most `KEPT_MOVES`."""

    @property
    def last(self) -> Move | None:
        """Last link switch of the maintenance. None: there was none."""
        return next((move for move in reversed(self.moves) if move.outcome), None)

    def with_(self, **changes: Unpack[MaintenanceChanges]) -> Self:
        """Returns a copy with these fields changed."""
        return self.model_copy(update=dict(changes))


class FailoverRequest(Value):
    """Argument of the workflow `LinkFailover`."""

    job: Text = ""
    """Id or name of the job."""

    name: Text = ""
    """Name of the job for display. Empty: the one that was given."""

    links: tuple[NodeLinks, ...] = ()
    dry_run: bool = False
    """True to return the ranks of these devices without moving them, in the same form as after a movement."""

    requested_by: Text = ""
    upgrade: Text = ""
    """Workflow id of the switch upgrade that is notified when devices return. Empty: none."""

    known: Maintenance | None = None
    """State of an earlier run of the workflow. None: this is the first run."""
