"""What workflows ask of activities, and what these answer. Built in `workflows/steps.py` and the modes."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.cluster import ClusterEvent, JobPhase
from rekindle.model.fault import Sighting
from rekindle.model.recovery import ModeRequest, PodRef


class BackupRequest(Value):
    job_id: str
    pod_rank: int
    name_suffix: str
    """Makes the name of the backup pod: `<old pod>-hot-<suffix>`, as the Ascend Operator does."""

    avoid_nodes: tuple[str, ...]


class Backup(Value):
    old: PodRef
    backup: PodRef


class PodsRequest(Value):
    job_id: str
    pods: tuple[PodRef, ...]
    deadline: datetime


class Scheduled(Value):
    node: str
    """Empty: not scheduled until the deadline."""

    message: str = ""
    """The scheduler's own words."""


class Started(Value):
    running: bool
    message: str = ""


class SwapRequest(Value):
    job_id: str
    old: PodRef
    backup: PodRef


class Swap(Value):
    old_deleted: bool
    message: str = ""
    """Why the old pod was kept."""


class StopRequest(Value):
    job_id: str
    grace_seconds: int


class StartRequest(Value):
    job_id: str
    generation: str
    avoid_nodes: tuple[str, ...]


class PolicyRequest(Value):
    job_id: str
    strategy: str
    reason: str
    """Why it is not what the job's owner wrote; empty: it is."""


class SurveyRequest(Value):
    job_id: str
    nodes: tuple[str, ...] = ()
    """The nodes to look at, by name; the first hundred of a longer list."""


class Survey(Value):
    """A job as the cluster shows it now, to whoever asks."""

    exists: bool
    phase: JobPhase = JobPhase.PENDING
    ended: str = ""
    """Why the job is over; empty: it lives."""

    sighting: Sighting = Sighting()
    """What the watcher would tell, but of other nodes than these nothing."""

    nodes: tuple[str, ...] = ()
    """The nodes that were looked at, also those that are not there any more."""


class EventRequest(Value):
    job_id: str
    event: ClusterEvent


class EndSession(Value):
    job_id: str
    session: str
    reason: str


class AskRequest(Value):
    job_id: str
    request: ModeRequest


class TerminateRequest(Value):
    workflow_id: str
    reason: str
