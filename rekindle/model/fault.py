"""Something broken, or something degraded that still works."""

from datetime import datetime
from enum import StrEnum

from rekindle.model.base import Value
from rekindle.model.ranks import Ranks


class FaultKind(StrEnum):
    SUB_HEALTH = "sub_health"
    """A node or device is slow or degraded and still works."""
    NODE = "node"
    """A node is lost or not ready."""
    POD = "pod"
    """A pod failed or is gone."""
    PROCESS = "process"
    """The training side reported faulty ranks."""


class FaultType(StrEnum):
    """`faultType` on the wire."""

    MEMORY = "0"
    OTHER = "1"
    NETWORK = "2"


class Fault(Value):
    """One episode of a fault, from its start until it is cleared."""

    episode: str
    """Identifies the episode: object uid, code and transition time. The same episode is taken once."""

    kind: FaultKind
    type: FaultType = FaultType.OTHER
    pod_ranks: Ranks = ()
    ranks: Ranks = ()
    node: str = ""
    pod: str = ""
    """Name of the pod, where the fault is a pod's."""

    pod_uid: str = ""
    backup: bool = False
    """The pod is a backup pod that has not taken over: the running hot switch's own affair, not a real fault."""

    device: str = ""
    code: str = ""
    message: str = ""
    seen_at: datetime
    """By the clock of who saw it. Kubernetes writes its own times in whole seconds: a fault right behind a restart of the job
    would be of the time before it."""

    source: str
    """Who saw it: `watcher`, `training-side`, `operator`, ..."""
