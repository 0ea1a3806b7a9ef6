"""State of the entity `TrainingJob`: the argument of its workflow, passed from run to run."""

from datetime import datetime, timedelta
from typing import Annotated, Self, TypedDict, Unpack

from pydantic import AwareDatetime, Field

from rekindle.model.account import Account
from rekindle.model.approval import Question
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.base import Moment, Value
from rekindle.model.bounds import Note, Text
from rekindle.model.elastic import Small
from rekindle.model.fault import Fault, Sighting
from rekindle.model.incident import Begun, Incident, ModeRequest
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.links import OnBackup
from rekindle.model.mode import Mode
from rekindle.model.ranks import Ranks
from rekindle.model.situation import PodRef, Switched
from rekindle.model.standby import Standby, Upkeep
from rekindle.model.trace import Trace
from rekindle.model.verdict import Verdict

KEPT_INCIDENTS = 20
KEPT_ANSWERS = 20
KEPT_REPORTS = 20
KEPT_REFUSING = 20
MOST_INCIDENTS = 10**9
"""Maximum number of incidents in the memory on a job object."""


class Downgrade(Value):
    """Downgrade of the sub-health policy to `ignore`, until an operator lifts it."""

    reason: str
    since: datetime
    before: SubHealthStrategy


class GivenUp(Value):
    """Recovery that came to no good end. Nothing more is done until the job trains again, or a person wants another try."""

    since: Moment
    incident: int
    mode: Mode
    reason: Note
    aborted: bool = False
    """True if a person has aborted it. Nothing is recovered until a person wants that, or the job trains again."""

    stopped: bool = False
    """True if its pods were stopped, so that only a step shows that the job trains again."""

    limited: bool = False
    """True if its pods are kept no longer than the limit `givenUpPods`."""

    pods_ended: bool = False
    """True if its pods were ended after that limit. Nothing is recovered until a person wants that, or the job trains again."""

    pods: Note = ""
    """Fate of its pods after the limit. Empty: they are as the recovery left them."""

    @property
    def holds(self) -> bool:
        """True if no fault begins a recovery."""
        return self.aborted or self.pods_ended


class Refusing(Value):
    """A node that has refused pods of the job, for example since its device plugin has not started yet."""

    node: str
    at: datetime
    """Time of the latest refusal, by the workflow's clock."""


class Again(Value):
    """Consecutive restarts of the job that were given up. The next one is delayed."""

    at: datetime
    """Earliest time of the next restart, by the workflow's clock."""

    tries: int = 1
    judges: bool = False
    """True if the failed restart is retried automatically."""


class Told(Value):
    """Ranks that were reported at one moment, by the workflow's clock."""

    ranks: Ranks
    at: datetime


MENDED = "mended in incident"
"""Beginning of the judgement of a fault that an incident has repaired, and that its device shows still."""


class Standing(Value):
    """A present fault that waits for a decision or has been judged."""

    fault: Fault
    judged: str = ""
    """Reason why nothing is done about the fault. Empty: it is to be judged (again)."""

    well_since: datetime | None = None
    """Time at which the fault was seen no more, if its rule has a `clear` time. Nothing is done about it, and it may return as
    the same fault."""

    @property
    def over_at(self) -> datetime | None:
        """Time at which the fault is over unless it returns. None: it is seen now."""
        decided = self.fault.decided
        return self.well_since + timedelta(seconds=decided.clear) if self.well_since and decided else None

    @property
    def is_mended(self) -> bool:
        """True if an incident has repaired the fault, and its device shows it still. Nothing of the job is faulty because of
        it."""
        return self.judged.startswith(MENDED)

    @property
    def is_here(self) -> bool:
        """True if something of the job is faulty, or not well, because of it."""
        return self.well_since is None and not self.is_mended

    told: tuple[Told, ...] = ()
    """Times at which ranks were reported last, for a fault that got more ranks during an incident. Empty: all were reported when
    it was accepted."""


class Remembered(Value):
    """Memory on the job's object (annotation `rekindle.io/memory`) for a later workflow, in case this one is lost."""

    job: Text = ""
    """Id of the job whose workflow wrote the memory. It differs from the job's own if the object was copied."""

    incidents: Annotated[int, Field(ge=0, le=MOST_INCIDENTS)] = 0
    recovery: Text = ""
    """Workflow id of the recovery that is running. Empty: none is."""

    downgrade: Text = ""
    """Reason why the sub-health policy became `ignore`. Empty: it did not."""

    policy_before: SubHealthStrategy = SubHealthStrategy.HOT_SWITCH
    restarts: tuple[AwareDatetime, ...] = ()
    retried: Annotated[int, Field(ge=0, le=MOST_INCIDENTS)] = 0
    left_behind: tuple[PodRef, ...] = ()
    moved: tuple[Switched, ...] = ()
    """Pods that took over in the last incident. The watcher may not have reported them yet."""

    links: tuple[OnBackup, ...] = ()
    given_up: GivenUp | None = None
    """Recovery that was given up or aborted. None: there is none."""

    small: Small | None = None
    """Replicas that are missing, and without which the job trains. None: it trains with all."""


class Registration(Value):
    """Update `register`: the job as the watcher sees it."""

    job: Job
    sighting: Sighting | None = None
    """State of the job's pods. None: the sender does not look at them."""

    remembered: Remembered = Remembered()
    holders: tuple[str, ...] = ()
    """Holders of the ranks before the job's workflow was lost, as `Sighting.holders`. Empty: it was not lost, or they are
    unknown."""


class Pending(Value):
    """A recovery that was requested and has not begun."""

    id: str
    request: ModeRequest


class Answered(Value):
    """A request that has ended. Its repetition is answered and never starts anything again."""

    id: str
    verdict: Verdict


class JobStateChanges(TypedDict, total=False):
    """Fields of `JobState`, for `with_`. A test compares the two."""

    job: Job
    retried: int
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
    storm: str
    tried_again: datetime | None
    question: Question | None
    given_up: GivenUp | None
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
    small: Small | None
    trace: Trace | None
    asked: bool
    unswept: bool
    account: Account
    lost_recovery: str
    ended: str


class JobState(Value):
    job: Job
    registered: bool = False
    """True if the watcher has registered the job since its first workflow was started."""

    introduced: bool = False
    """True if a training side has ever attached."""

    misses_stream: bool = False
    """True if an earlier workflow of the job was lost that may have known a stream. Faults are judged only after the stream is
    back."""

    attachment: Attachment | None = None
    replaced: tuple[str, ...] = ()
    """Last sessions that were replaced by others."""

    detached: tuple[str, ...] = ()
    """Last sessions that have ended."""

    former: tuple[str, ...] = ()
    """Last sessions of training sides that ended when all pods were recreated. Their late messages are ignored."""

    client: str = ""
    """Client of the last stream, even if the stream has ended. See `rekindle.policy.dialogue.client_identity`."""

    manager_lost: str = ""
    """Description of how the manager was lost for good, until the job restarts. Empty: it was not lost."""

    unsure_since: datetime | None = None
    """Time at which a client that may lose reports returned from an outage. A fault that it reported meanwhile is lost, since it
    repeats nothing. None: it has reported since that it trains, or what is faulty."""

    progress: Progress | None = None
    downgrade: Downgrade | None = None
    holders: tuple[str, ...] = ()
    """Holder of each pod rank, as far as it is known and accepted. See `Sighting.holders`."""

    manager: str = ""
    """Process of the training side's manager. See `Sighting.manager`."""

    faults: tuple[Standing, ...] = ()
    """Present faults."""

    drain_again: datetime | None = None
    """Time at which faults that wait for a spare node are judged again. None: none waits."""

    again: Again | None = None
    """Earliest time of the next restart of the job. None: at once."""

    storm: Note = ""
    """Reason why modes that move pods are held. See `Sighting.storm`."""

    tried_again: datetime | None = None
    """Time at which a person wanted another try. Earlier restarts say nothing about it. None: nobody did."""

    question: Question | None = None
    """Question whether the next mode may run. None: none waits for an answer."""

    given_up: GivenUp | None = None
    """Recovery that was given up or aborted. None: there is none, or the job trains again."""

    reports: tuple[str, ...] = ()
    """Update ids of the last fault reports, by which repetitions are recognized."""

    problems: tuple[str, ...] = ()
    """Reasons why the job cannot be recovered with its present pods. No incident begins while there are any."""

    request: Pending | None = None
    answers: tuple[Answered, ...] = ()
    incidents: int = 0
    history: tuple[Incident, ...] = ()
    restarts: tuple[datetime, ...] = ()
    """Times of recent restarts of the job's pods. Too many need a person."""

    retried: int = 0
    """Number of restarts for which no cause was known (label `fault-retry-times`)."""

    repairs: tuple[datetime, ...] = ()
    """Start times of recent successful recoveries of the job's processes. Too many lead to a restart."""

    refusing: tuple[Refusing, ...] = ()
    """Nodes that have refused pods of the job recently. All modes avoid them for a while."""

    left_behind: tuple[PodRef, ...] = ()
    """Pods that recoveries could not delete."""

    links: tuple[OnBackup, ...] = ()
    """Ranks that use their backup links. All others use their first ones."""

    standbys: tuple[Standby, ...] = ()
    """State of the standbys at the last sighting."""

    upkeep: Upkeep = Upkeep()

    small: Small | None = None
    """Replicas that are missing, and without which the job trains. None: it trains with all."""

    trace: Trace | None = None
    """Measurements that the ranks are to make. None: not set."""

    asked: bool = False
    """True if the cluster was asked, since the job's last restart, whether it would admit a backup pod."""

    unswept: bool = False
    """True if labels, annotations or ConfigMaps may say of the job what holds only during a recovery."""

    account: Account = Account()
    """Uses of the job's time."""

    lost_recovery: str = ""
    """Workflow id of a recovery that was running when an earlier workflow of this job was lost. Empty: none was."""

    ended: str = ""
    """Reason why the job's workflow ends. Empty: it does not."""

    @classmethod
    def of(cls, job: Job) -> "JobState":
        """Returns the state of a job that was never seen."""
        return cls(job=job)

    def with_(self, **changes: Unpack[JobStateChanges]) -> Self:
        """Returns a copy with these fields changed."""
        return self.model_copy(update=dict(changes))

    @property
    def policy(self) -> SubHealthStrategy:
        """Sub-health policy in force."""
        return SubHealthStrategy.IGNORE if self.downgrade else self.job.sub_health


class Contact(Value):
    """Answer of the query `contact`: what a gateway needs to know about a job when its manager connects."""

    ended: str = ""
    """Reason why the job's workflow is about to end. Empty: it is not."""

    recovery_on: bool = False
    introduced: bool = False
    recovering: bool = False
    """True if an incident is running or about to begin, which waits for the manager."""

    progress: Progress | None = None
    trace: Trace | None = None


class JobStatus(Value):
    """Answer of the query `status`."""

    state: JobState
    running: Mode | None = None
    recovery: str = ""
    """Workflow id of the recovery that is running. Empty: none is."""
    request: str = ""
    """Id of the request that is running or waiting. Empty: there is none."""
    front: Note = ""
    """Id of the workflow that made the request, under its run id. Empty: the request came as an update only."""
    begun: Begun | None = None
    """Incident that is running. None: none is, or an earlier version answers."""
