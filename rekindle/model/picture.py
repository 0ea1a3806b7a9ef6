"""Picture of an incident: who did what, and when. Times are seconds since the epoch.

Those of ranks come from their own clocks, all others from Temporal's.
"""

from enum import StrEnum

from pydantic import FiniteFloat

from rekindle.model.base import Value
from rekindle.model.fault import Fault
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict


class Part(StrEnum):
    """Part of the product to which a lane belongs."""

    CLUSTER = "cluster"
    CONTROL = "control plane"
    MANAGER = "manager"
    RANKS = "ranks"


class StepRecord(Value):
    """Executed step of a rank, from its step log."""

    rank: int
    step: int
    start: FiniteFloat
    """Seconds since the epoch."""
    end: FiniteFloat
    pid: int
    pod: str
    pod_uid: str
    node: str
    generation: int


class Item(Value):
    """Event, or something that lasts."""

    since: float
    until: float
    """Equal to `since`: it is an event."""
    text: str
    failed: bool = False
    running: bool = False
    """True if it had not ended when the picture was made."""

    @property
    def seconds(self) -> float:
        return self.until - self.since


class Lane(Value):
    part: Part
    name: str
    items: tuple[Item, ...] = ()
    """Items in their order. Those of ranks are the times in which they stood; before and after them they trained."""


class Pause(Value):
    """Time in which training stood, and its price."""

    seconds: float
    again: float = 0.0
    """Seconds in which steps were done again."""
    ranks: int
    source: str
    """Origin of the number, such as `step logs`."""

    @property
    def accelerator_seconds(self) -> float:
        return (self.seconds + self.again) * self.ranks


class Picture(Value):
    job: str
    number: int
    """Number of the incident in its job."""
    summary: str
    outcome: Outcome | None = None
    """None: the incident is running."""
    began: float
    """Zero of the time axis: the job's workflow has accepted the faults, or the request."""
    since: float
    until: float
    seconds: float
    """Duration of the incident. Items may be earlier or later."""
    pause: Pause | None = None
    """None: training did not stand, or it is unknown."""
    steps_lost: int | None = None
    lanes: tuple[Lane, ...] = ()
    missing: tuple[str, ...] = ()
    """Sources that were not available, and what the picture lacks therefore."""


class Recovery(Value):
    """Recovery, as the history of its workflow shows it."""

    mode: Mode | None
    """None: it is a workflow of strangers."""
    summary: str
    faults: tuple[Fault, ...]
    """Faults at its beginning."""
    since: float
    until: float
    """End of the workflow, or the time until which it was read."""
    ended: str
    """Way in which the workflow ended without a result. Empty: it has one, or it is running."""
    is_running: bool
    verdict: Verdict | None
    orders: tuple[Item, ...]
    calls: tuple[Item, ...]
    waits: tuple[Item, ...]
    reports: tuple[Item, ...]
    phases: tuple[Item, ...]
