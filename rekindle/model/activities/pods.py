"""Arguments and results of activities that create, await, swap, count and delete pods."""

from datetime import datetime, timedelta

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text, few
from rekindle.model.ranks import Ranks
from rekindle.model.situation import PodRef
from rekindle.model.spares import SpareWish


class BackupRequest(Value):
    job_id: str
    pod_rank: int
    name_suffix: str
    """Suffix of the backup pod's name, `<old pod>-hot-<suffix>`, as the Ascend Operator names it. It replaces the suffix of an
    earlier hot switch."""

    avoid_nodes: tuple[str, ...]
    spare: SpareWish | None = None
    """Spare nodes that the mode needs in all. None: it does not ask whether another job needs them."""

    waits: bool = False
    """True if the pod may wait for a node that is lost now. The affinity of a pod cannot be changed when that node is back."""


class Backup(Value):
    old: PodRef
    backup: PodRef
    standby: bool = False
    """True if the pod was a standby. The order then has to name its rank."""

    before: Note = ""
    """Recoveries of other jobs that have asked for spare nodes before, for the case that no further node is free."""


class Replacement(Value):
    """Pod that is to take over a pod rank that has lost its pod."""

    backup: PodRef
    old: PodRef | None = None
    """Last pod that held the rank. None: the cluster shows no such pod any more."""

    standby: bool = False
    """See `Backup.standby`."""

    before: Note = ""
    """See `Backup.before`."""


class PodsRequest(Value):
    """Request to wait for the few pods of a hot switch."""

    job_id: str
    pods: tuple[PodRef, ...]
    within: timedelta
    """Limit, counted from the start of the activity. It is not a point in time, since the clocks of worker and server differ."""


class Restart(Value):
    """Identifies the pods of one restart and separates them from earlier ones, without a list of either."""

    job_id: str
    generation: str
    """Label of the new pods, where the control plane creates them."""

    youngest: datetime | None = None
    """Creation time of the youngest old pod, by the cluster's clock. It identifies new pods where a controller creates them
    with its own labels. None: there were no old pods."""

    youngest_uids: tuple[str, ...] = ()
    """First eight characters of the UIDs of all pods with that creation time. The clock has a resolution of one second, so that
    the first new pods may have the same time."""


class OldPodsRequest(Value):
    restart: Restart
    within: timedelta


class NewPodsRequest(Value):
    restart: Restart
    pods: int
    """Number of pods that must exist."""

    within: timedelta = timedelta(0)


class PodCount(Value):
    """Number of pods of a job, which may be thousands, and the names of some."""

    count: int = 0
    names: tuple[str, ...] = ()
    """Names of the first ten pods."""

    youngest: datetime | None = None
    """Creation time of the youngest pod."""

    youngest_uids: tuple[str, ...] = ()
    """See `Restart.youngest_uids`."""

    accelerators: int = 0
    """Largest number of accelerators that one of the pods requests."""

    priority: int = 0
    """Highest priority of the pods."""

    demands: Text = ""
    """Digest of what the pods demand of their nodes. See `PodSpec.demands`."""

    def __str__(self) -> str:
        return few(self.names, self.count)


class Scheduled(Value):
    node: str
    """Name of the node. Empty: the pod was not scheduled before the deadline."""

    sub_healthy: bool = False
    """True if the node is sub-healthy."""

    message: Text = ""
    """Message of the scheduler, unchanged."""

    gate: Note = ""
    """Scheduling gate that keeps the scheduler from the pod. Empty: no gate does."""


class Started(Value):
    running: bool
    waits: bool = False
    """True if no pod has failed or is gone, but the processes of some pods have never started."""

    message: Text = ""
    failed_on: tuple[str, ...] = ()
    """Nodes on which pods did not start, while other pods of the job run elsewhere."""


class SwapRequest(Value):
    job_id: str
    old: PodRef | None
    """Pod to delete. None: it is already gone."""

    backup: PodRef


class Swap(Value):
    old_deleted: bool
    message: Text = ""
    """Reason why the old pod was kept."""


class StopRequest(Value):
    job_id: str
    grace_seconds: int
    lost_nodes: tuple[str, ...] = ()
    """Lost nodes, whose pods are deleted without a grace period since no kubelet would end them."""


class LeftRequest(Value):
    """Request to delete the pods of ranks that have left a job, which trains without them."""

    job_id: str
    pod_ranks: Ranks


class SweepRequest(Value):
    job_id: str
    pods: tuple[PodRef, ...]
    have_left: dict[int, str] = {}
    """Pods of ranks that have left the job, by pod rank, as `Sighting.holders`."""


class StartRequest(Value):
    job_id: str
    generation: str
    avoid_nodes: tuple[str, ...]
    spare: SpareWish | None = None
    """Nodes that the pods need, if other recoveries may need them too. None: nobody is asked."""
