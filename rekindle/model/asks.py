"""What workflows ask of activities, and what these answer. Built in `workflows/steps.py` and the modes."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.cluster import ClusterEvent
from rekindle.model.fault import Sighting
from rekindle.model.recovery import ModeRequest, PodRef
from rekindle.model.state import Remembered


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


class EventRequest(Value):
    job_id: str
    event: ClusterEvent


class EndSession(Value):
    job_id: str
    session: str
    reason: str


class RememberRequest(Value):
    job_id: str
    memory: Remembered


class SurveyRequest(Value):
    job_id: str
    nodes: tuple[str, ...] = ()
    """Names of nodes that are looked at; of others nothing is known."""


class Survey(Value):
    """The job as the cluster shows it at this moment."""

    exists: bool
    sighting: Sighting = Sighting()
    nodes: tuple[str, ...] = ()
    """Those that were asked for."""


class AskRequest(Value):
    job_id: str
    request: ModeRequest
    request_id: str
    """Id of the update: who asks again with it is answered, and nothing is begun again."""


class WithdrawRequest(Value):
    job_id: str
    request_id: str


class TerminateRequest(Value):
    workflow_id: str
    reason: str
