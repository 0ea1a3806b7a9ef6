"""The state of the entity `TrainingJob`: argument of its workflow, carried from run to run."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.fault import Fault
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.recovery import Attachment, Incident, Mode, ModeRequest, Progress

KEPT_INCIDENTS = 20
KEPT_EPISODES = 200


class Downgrade(Value):
    """The sub-health policy became `ignore`, until an operator lifts it."""

    reason: str
    since: datetime
    before: SubHealthStrategy


class SubHealthyPod(Value):
    """A pod on a sub-healthy node, waiting for a decision or already judged."""

    pod_rank: int
    fault: Fault
    judged: str = ""
    """Why nothing is done; empty: to be judged (again)."""


class Problems(Value):
    """Why a job cannot be recovered as its pods are, in words; none: it can."""

    found: tuple[str, ...] = ()


class Registration(Job):
    """A job as who registers it sees it: on the wire a `Job` with one field more."""

    problems: tuple[str, ...] | None = None
    """None: who registers it does not look at its pods."""

    @classmethod
    def of(cls, job: Job, problems: tuple[str, ...]) -> "Registration":
        return cls(**dict(job), problems=problems)

    @property
    def job(self) -> Job:
        return Job(**{name: getattr(self, name) for name in Job.model_fields})


class JobState(Value):
    job: Job
    initialized: bool = False
    registered: bool = False
    attachment: Attachment | None = None
    client: str = ""
    """The client of the last stream, also when it ended: see `rekindle.policy.clients`."""

    manager_lost: str = ""
    """How the manager of a MindIO job was lost, until the job starts anew; empty: it was not."""

    progress: Progress | None = None
    downgrade: Downgrade | None = None
    sub_healthy: tuple[SubHealthyPod, ...] = ()
    faults: tuple[Fault, ...] = ()
    """Real faults that wait for their incident."""

    problems: tuple[str, ...] = ()
    """Why the job cannot be recovered as its pods are. No incident begins while there are any."""

    held: tuple[str, ...] = ()
    """Episodes of `faults` that were declined because of the problems, and wait until these are over."""

    requests: tuple[ModeRequest, ...] = ()
    seen: tuple[str, ...] = ()
    """Episodes taken recently: the server's own deduplication does not cross runs."""

    incidents: int = 0
    history: tuple[Incident, ...] = ()
    restarts: tuple[datetime, ...] = ()
    """When the job's pods were started anew, lately: too often needs a person."""

    ended: str = ""
    """Why the job's workflow ends; empty: it lives."""

    @classmethod
    def of(cls, job: Job) -> "JobState":
        """The state of a job that was never seen."""
        return cls(job=job)

    @property
    def policy(self) -> SubHealthStrategy:
        """The sub-health policy in force."""
        return SubHealthStrategy.IGNORE if self.downgrade else self.job.sub_health


class JobStatus(Value):
    """Answer of the query `status`."""

    state: JobState
    running: Mode | None = None
