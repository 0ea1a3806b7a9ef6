"""Account of a job: what each second of it was spent on, from its registration to the end of its training.

Times are seconds since the epoch. Those of stretches come from the ranks' clocks, those of incidents from Temporal's.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from rekindle.model.base import Value
from rekindle.model.bounds import Text
from rekindle.model.mode import Mode, Outcome
from rekindle.model.sizes import MOST_RANKS

KEPT_ROWS = 100
"""Number of latest incidents of a job whose costs are kept one by one. The sums contain older ones too."""

SILENT = 900.0
"""Seconds without a report after which nothing is known of a job whose manager reports every five minutes."""

Seconds = Annotated[float, Field(ge=0.0, le=1e10, allow_inf_nan=False)]


class Bucket(StrEnum):
    """Use of a second of a job. Each second is in exactly one bucket."""

    TRAINING = "training"
    START_UP = "start-up"
    """Time before the first step of the job."""
    LOADING = "loading"
    """Time after a restart, in which processes start, load the checkpoint and come to their first step."""
    CHECKPOINT = "checkpoint"
    AGAIN = "steps done again"
    """Steps that had been completed before a restart."""
    MISSING = "missing replicas"
    """Accelerators that are not there while training goes on with fewer."""
    DETECTION = "detection"
    """Time from the last completed step to the beginning of the incident, with the time that a rule gives a fault."""
    DECISION = "decision"
    """Between the phases of an incident: decisions, a platform, and a storm that holds modes."""
    PODS = "waiting for pods"
    REBUILDING = "rebuilding"
    """Training stops, communicators are built again, state is copied, and the first new step is executed."""
    PERSON = "waiting for a person"
    NOT_RECOVERED = "not yet recovered"
    """Time after an incident that did not bring training back."""
    UNKNOWN = "unknown"
    """Training stood, and no incident says why."""


class Stretch(Value):
    """Time in which a job completed one step after the other."""

    began: Seconds
    ended: Seconds
    steps: Annotated[int, Field(ge=0)] = 0
    checkpoint: Seconds = 0.0
    """Seconds of it in which checkpoints were written."""
    again: Seconds = 0.0
    """Seconds of it in which steps were executed again."""
    missing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the job's ranks that were missing in it."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.ended < self.began:
            raise ValueError("ended: before began")
        return self

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step, without checkpoints. None: no step was completed."""
        return max(self.ended - self.began - self.checkpoint, 0.0) / self.steps if self.steps else None

    @property
    def seconds(self) -> dict[Bucket, float]:
        """Seconds of the stretch by bucket. Their sum is its length. Those of missing ranks are in a bucket of their own."""
        length = self.ended - self.began
        missing = length * self.missing
        checkpoint = min(self.checkpoint, length)
        again = min(self.again, length - checkpoint)
        spent = {Bucket.TRAINING: length - checkpoint - again, Bucket.CHECKPOINT: checkpoint, Bucket.AGAIN: again}
        return {bucket: found * (1 - self.missing) for bucket, found in spent.items()} | {Bucket.MISSING: missing}


class Holding(Value):
    """What a rank trains, as far as the cost of a recovery depends on it."""

    state_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of the state that a replacement takes from another rank."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    """Steps between two checkpoints. 0: none is written."""


class TimeReport(Value):
    """Update `time`: for how long the ranks have trained, as their manager reports it."""

    step: Annotated[int, Field(ge=0)]
    """Last completed step."""
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    now: Stretch
    before: Stretch | None = None
    """Stretch before it. None: there was none, or it is unknown."""
    final: bool = False
    """True if training is complete."""
    holding: Holding | None = None
    """Holding of the rank that holds most. None: an earlier version of the training side does not report it."""


class Counted(Value):
    """Answer to a report: the account of the job as of the report."""

    namespace: str
    name: str
    seconds: dict[Bucket, float]
    """Seconds of the job by bucket."""
    goodput: float
    """Share of training, from 0 to 1."""
    step: int
    step_seconds: float
    """Mean time of a step of the last stretch, without checkpoints."""
    final: bool = False


class Stand(Value):
    """Stretch that has ended, and the time until training went on."""

    stretch: Stretch
    until: float


class Span(Value):
    """Part of an incident that belongs to one bucket."""

    since: float
    until: float
    bucket: Bucket


class Row(Value):
    """Incident, as its costs are counted."""

    number: int = 0
    since: float = 0.0
    """Start of the incident. Training may have stood before, or may have gone on for some time."""
    seconds: float = 0.0
    mode: Mode
    """Last mode that ran."""
    outcome: Outcome
    cause: Text
    """Kind of its first fault, or `request`."""
    code: Text = ""
    node: Text = ""
    restarts: bool = False
    """True if processes of the whole job began again."""
    standbys: bool = False
    """True if all pods that took over in it were standbys. False also if none took over, or an earlier version wrote the row."""
    stopped: float = 0.0
    """Time since which training stood because of it, by what the control plane knows. 0: it did not."""
    waited: float = 0.0
    """Seconds in which it waited for a person."""
    spans: tuple[Span, ...] = ()
    """Uses of its time, until the time in which training stood is counted."""
    stood: dict[Bucket, float] = {}
    """Seconds by bucket in which training stood because of it."""
    again: float = 0.0
    """Seconds in which steps were executed again because of it."""

    @model_serializer(mode="wrap")
    def _without_what_few_have(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Omits empty fields, since the state of a job may contain a hundred rows."""
        fields: dict[str, object] = written(self)
        return {name: value for name, value in fields.items() if value}

    @property
    def until(self) -> float:
        return self.since + self.seconds

    @property
    def cost(self) -> float:
        """Seconds in which the job did not get on because of the incident."""
        return sum(self.stood.values()) + self.again


class Mark(Value):
    """Account at an earlier time."""

    until: float
    seconds: dict[Bucket, float]


class Account(Value):
    since: float = 0.0
    """Time from which on seconds are counted. 0: the job is not registered yet."""
    until: float = 0.0
    """Time up to which they are in `seconds`."""
    seconds: dict[Bucket, float] = {}
    stands: tuple[Stand, ...] = ()
    """Stretches that have ended and are not counted yet, because an incident is running."""
    current: Stretch | None = None
    """Last stretch. None: the job has not trained."""
    step: int = 0
    ranks: int = 0
    """Number of ranks. 0: it is unknown."""
    final: bool = False
    """True if training is complete."""
    rows: tuple[Row, ...] = ()
    """The latest incidents."""
    older_rows: int = 0
    """Number of incidents that are not in `rows` any more."""
    stepped_at: float = 0.0
    """Time of the first completed step of a training side that has reported no times yet. 0: there is none."""
    holding: Holding | None = None
    """Holding that was reported last. None: it was not reported."""
    paced: Stretch | None = None
    """Last stretch that is long enough to time a step, or the longest one if none is. None: no step was timed."""
    marks: tuple[Mark, ...] = ()
    """Earlier states, by which the time since a moment is counted. The older they are, the fewer are kept."""


class Ended(Value):
    """Result of a job's workflow. It is read without a worker, also when no worker can replay the workflow any more."""

    name: str
    reason: str
    account: Account
    """Uses of the job's time, up to its end."""
