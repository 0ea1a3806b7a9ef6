"""What workflows ask of activities, and what these answer. Built in `workflows/steps.py` and the modes."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.cluster import ClusterEvent
from rekindle.model.recovery import ModeRequest, PodRef


class BackupRequest(Value):
    job_id: str
    pod_rank: int
    name_suffix: str
    """Makes the name of the backup pod: `<old pod>-hot-<suffix>`, as the Ascend Operator does. The suffix of an earlier hot
    switch is replaced."""

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


class AskRequest(Value):
    job_id: str
    request: ModeRequest


class TerminateRequest(Value):
    workflow_id: str
    reason: str
