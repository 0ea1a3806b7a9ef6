"""A maintenance of links: from the failover of a job's devices to their switchback, days later."""

from datetime import datetime
from enum import StrEnum
from typing import Self, TypedDict, Unpack

from rekindle.model.base import Asked, Value
from rekindle.model.bounds import Text
from rekindle.model.links import NodeLinks, Placed
from rekindle.model.recovery import Outcome

KEPT_MOVES = 20


class Stage(StrEnum):
    """Where a maintenance is; what people read."""

    FAILING_OVER = "failing over"
    ON_BACKUP = "on the backup link"
    SWITCHING_BACK = "switching back"
    OVER = "over"


class SwitchBack(Asked):
    """The devices that are to return to their first link; none: all that are on their backup link by this maintenance."""

    links: tuple[NodeLinks, ...] = ()
    requested_by: Text = ""


class Move(Value):
    """One movement of links, or what else became of them."""

    at: datetime
    what: Text
    outcome: Outcome | None = None
    """None: no movement of ours."""

    reason: Text = ""

    @property
    def succeeded(self) -> bool:
        return self.outcome in (None, Outcome.RECOVERED)


class MaintenanceChanges(TypedDict, total=False):
    """The fields of `Maintenance`, for `with_`."""

    job_id: str
    stage: Stage
    on_backup: tuple[Placed, ...]
    since: datetime
    asked: int
    moves: tuple[Move, ...]


class Maintenance(Value):
    """Where a maintenance is, and what it did: its status, its result, and its memory from run to run."""

    job_id: str = ""
    job: str = ""
    stage: Stage = Stage.FAILING_OVER
    on_backup: tuple[Placed, ...] = ()
    """Devices that it has moved, and that have not returned."""

    since: datetime | None = None
    """When it had moved them."""

    asked: int = 0
    """So many movements were asked for."""

    moves: tuple[Move, ...] = ()
    """The last ones."""

    @property
    def last(self) -> Move | None:
        """Its last movement of links."""
        return next((move for move in reversed(self.moves) if move.outcome), None)

    def with_(self, **changes: Unpack[MaintenanceChanges]) -> Self:
        """It with these fields changed."""
        return self.model_copy(update=dict(changes))


class FailoverRequest(Value):
    """Argument of `LinkFailover`."""

    job: Text = ""
    """Id or name of the job."""

    name: Text = ""
    """The job's, as it is shown; empty: as it was given."""

    links: tuple[NodeLinks, ...] = ()
    dry_run: bool = False
    """Only look whose devices these are: they are the result, as if they had been moved."""

    requested_by: Text = ""
    upgrade: Text = ""
    """Workflow id of the upgrade that is told when devices return; empty: none is."""

    known: Maintenance | None = None
    """What an earlier run of it knew; None: it begins."""
