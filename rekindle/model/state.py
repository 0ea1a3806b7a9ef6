"""The state of the entity `TrainingJob`: argument of its workflow, carried from run to run."""

from datetime import datetime, timedelta
from typing import Annotated, Self, TypedDict, Unpack

from pydantic import AwareDatetime, Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.fault import Fault, Sighting
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.links import OnBackup
from rekindle.model.ranks import Ranks
from rekindle.model.recovery import Attachment, Incident, Mode, ModeRequest, PodRef, Progress, Switched, Verdict
from rekindle.model.standby import Standby, Upkeep
from rekindle.model.trace import Trace

KEPT_INCIDENTS = 20
KEPT_ANSWERS = 20
KEPT_REPORTS = 20
KEPT_REFUSING = 20
MOST_INCIDENTS = 10**9
"""Incidents of a job that its object may tell of."""


class Downgrade(Value):
    """The sub-health policy became `ignore`, until an operator lifts it."""

    reason: str
    since: datetime
    before: SubHealthStrategy


class Refusing(Value):
    """A node that has refused pods of the job, as one does whose device plugin is not there yet after a start."""

    node: str
    at: datetime
    """Time of the latest refusal, by the workflow's clock."""


class Again(Value):
    """Restarts of the job that were given up one after the other: the next one is not begun at once."""

    at: datetime
    """The next one may begin, by the workflow's clock."""

    tries: int = 1
    judges: bool = False
    """True: what the last one could not do is tried again by itself."""


class Told(Value):
    """Ranks that were told at one moment, by the workflow's clock."""

    ranks: Ranks
    at: datetime


class Standing(Value):
    """A fault that is there now, waiting for a decision or already judged."""

    fault: Fault
    judged: str = ""
    """Why nothing is done about it; empty: to be judged (again)."""

    well_since: datetime | None = None
    """When it was seen no more, of one that its rule holds on to: nothing is done about it, and it may come back as itself."""

    @property
    def over_at(self) -> datetime | None:
        """When it is over, if it does not come back."""
        decided = self.fault.decided
        return self.well_since + timedelta(seconds=decided.clear) if self.well_since and decided else None

    told: tuple[Told, ...] = ()
    """Of a fault to which ranks were added while an incident ran: when each was told last. Empty: all when it was accepted."""


class Remembered(Value):
    """What stands on the job's object (annotation `rekindle.io/memory`) for a later workflow, should this one be lost."""

    job: Text = ""
    """Id of the job whose workflow wrote it: objects are copied with all that stands on them."""

    incidents: Annotated[int, Field(ge=0, le=MOST_INCIDENTS)] = 0
    recovery: Text = ""
    """Workflow id of the recovery that runs; empty: none does."""

    downgrade: Text = ""
    """Why the sub-health policy became `ignore`; empty: it did not."""

    policy_before: SubHealthStrategy = SubHealthStrategy.HOT_SWITCH
    restarts: tuple[AwareDatetime, ...] = ()
    left_behind: tuple[PodRef, ...] = ()
    moved: tuple[Switched, ...] = ()
    """Pods that took over in the last incident: the watcher may not have told of them yet."""

    links: tuple[OnBackup, ...] = ()


class Registration(Value):
    """Update `register`: a job as the watcher sees it."""

    job: Job
    sighting: Sighting | None = None
    """None: who registers it does not look at its pods."""

    remembered: Remembered = Remembered()
    holders: tuple[str, ...] = ()
    """Who held the ranks before the job's workflow was lost, as `Sighting.holders`; empty: it was not, or nobody knows."""


class Pending(Value):
    """A recovery that somebody asked for and that has not begun."""

    id: str
    request: ModeRequest


class Answered(Value):
    """A request that came to its end: repeated, it is answered and never begun again."""

    id: str
    verdict: Verdict


class JobStateChanges(TypedDict, total=False):
    """The fields of `JobState`, for `with_`; a test holds the two together."""

    job: Job
    registered: bool
    introduced: bool
    misses_stream: bool
    attachment: Attachment | None
    replaced: tuple[str, ...]
    detached: tuple[str, ...]
    former: tuple[str, ...]
    client: str
    manager_lost: str
    unsure_since: datetime | None
    progress: Progress | None
    downgrade: Downgrade | None
    holders: tuple[str, ...]
    manager: str
    faults: tuple[Standing, ...]
    drain_again: datetime | None
    again: Again | None
    reports: tuple[str, ...]
    problems: tuple[str, ...]
    request: Pending | None
    answers: tuple[Answered, ...]
    incidents: int
    history: tuple[Incident, ...]
    restarts: tuple[datetime, ...]
    repairs: tuple[datetime, ...]
    refusing: tuple[Refusing, ...]
    left_behind: tuple[PodRef, ...]
    links: tuple[OnBackup, ...]
    standbys: tuple[Standby, ...]
    upkeep: Upkeep
    trace: Trace | None
    asked: bool
    lost_recovery: str
    ended: str


class JobState(Value):
    job: Job
    registered: bool = False
    """The watcher has registered it since its first workflow was started."""

    introduced: bool = False
    """A training side has attached at some time."""

    misses_stream: bool = False
    """An earlier workflow of the job was lost, which may have known a stream: it is waited for before a fault is judged."""

    attachment: Attachment | None = None
    replaced: tuple[str, ...] = ()
    """Sessions in whose place another one was attached, the last ones."""

    detached: tuple[str, ...] = ()
    """Sessions that have ended, the last ones."""

    former: tuple[str, ...] = ()
    """Sessions of training sides that ended when all pods started anew, the last ones: what they still tell is over."""

    client: str = ""
    """The client of the last stream, also when it ended: see `rekindle.policy.clients`."""

    manager_lost: str = ""
    """How the manager of a MindIO job was lost, until the job starts anew; empty: it was not."""

    unsure_since: datetime | None = None
    """Moment at which a MindIO client came back after an outage: a fault that it reported meanwhile is lost, since it repeats
    nothing. None: it has said since that it trains, or what is faulty."""

    progress: Progress | None = None
    downgrade: Downgrade | None = None
    holders: tuple[str, ...] = ()
    """Who holds each pod rank as far as is known and agreed upon; see `Sighting.holders`."""

    manager: str = ""
    """The process of the training side's manager; see `Sighting.manager`."""

    faults: tuple[Standing, ...] = ()
    """What is wrong now."""

    drain_again: datetime | None = None
    """When what waits for a spare to leave its node is judged again; None: nothing does."""

    again: Again | None = None
    """Moment from which the job may be restarted again; None: at once."""

    reports: tuple[str, ...] = ()
    """Update ids of the last reports of faults, each of which is taken once."""

    problems: tuple[str, ...] = ()
    """Why the job cannot be recovered as its pods are. No incident begins while there are any."""

    request: Pending | None = None
    answers: tuple[Answered, ...] = ()
    incidents: int = 0
    history: tuple[Incident, ...] = ()
    restarts: tuple[datetime, ...] = ()
    """When the job's pods were started anew, lately: too often needs a person."""

    repairs: tuple[datetime, ...] = ()
    """When recoveries of its processes began that ended well, lately: too often leads to a restart."""

    refusing: tuple[Refusing, ...] = ()
    """Nodes that have refused its pods lately: new ones keep away from them for a while, whichever mode makes them."""

    left_behind: tuple[PodRef, ...] = ()
    """Pods that recoveries could not delete."""

    links: tuple[OnBackup, ...] = ()
    """Ranks that use their backup links; all others use their first ones."""

    standbys: tuple[Standby, ...] = ()
    """As they were seen last."""

    upkeep: Upkeep = Upkeep()

    trace: Trace | None = None
    """Measurements that its ranks are to make; None: nobody has said."""

    asked: bool = False
    """The cluster was asked whether it would admit a backup pod, in this life of the job's pods."""

    lost_recovery: str = ""
    """Workflow id of a recovery that ran when an earlier workflow of this job was lost; empty: none did."""

    ended: str = ""
    """Why the job's workflow ends; empty: it lives."""

    @classmethod
    def of(cls, job: Job) -> "JobState":
        """The state of a job that was never seen."""
        return cls(job=job)

    def with_(self, **changes: Unpack[JobStateChanges]) -> Self:
        """The state with these fields changed."""
        return self.model_copy(update=dict(changes))

    @property
    def policy(self) -> SubHealthStrategy:
        """The sub-health policy in force."""
        return SubHealthStrategy.IGNORE if self.downgrade else self.job.sub_health


class Contact(Value):
    """Answer of the query `contact`: what a gateway must know of a job when its manager comes."""

    ended: str = ""
    """Why the job's workflow is about to end; empty: it lives."""

    recovery_on: bool = False
    introduced: bool = False
    recovering: bool = False
    """An incident is under way, or about to be: its manager is waited for."""

    progress: Progress | None = None
    trace: Trace | None = None


class JobStatus(Value):
    """Answer of the query `status`."""

    state: JobState
    running: Mode | None = None
    recovery: str = ""
    """Workflow id of the recovery that runs; empty: none does."""
    request: str = ""
    """Id of what was asked for and runs, or waits for its turn; empty: nothing is."""
    front: Note = ""
    """Workflow by which that is asked for, under its run's id; empty: none, it is an update alone."""
