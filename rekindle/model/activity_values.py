"""Arguments and results of activities. Built in `workflows/steps.py` and the modes."""

from datetime import datetime, timedelta

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text, few
from rekindle.model.cluster import ClusterEvent, JobPhase
from rekindle.model.fault import Fault, Sighting
from rekindle.model.incident import ModeRequest
from rekindle.model.links import NodeLinks, Placed
from rekindle.model.situation import PodRef, Switched
from rekindle.model.standby import Standby
from rekindle.model.state import Remembered
from rekindle.model.stress import RankOps, StressRequest, StressResults, Tested
from rekindle.model.verdict import Verdict


class BackupRequest(Value):
    job_id: str
    pod_rank: int
    name_suffix: str
    """Suffix of the backup pod's name, `<old pod>-hot-<suffix>`, as the Ascend Operator names it. It replaces the suffix of an
    earlier hot switch."""

    avoid_nodes: tuple[str, ...]


class Backup(Value):
    old: PodRef
    backup: PodRef
    standby: bool = False
    """True if the pod was a standby. The order then has to tell it its rank."""


class Replacement(Value):
    """Pod that is to take over a pod rank that has lost its pod."""

    backup: PodRef
    old: PodRef | None = None
    """Last pod that held the rank. None: the cluster shows no such pod any more."""

    standby: bool = False
    """See `Backup.standby`."""


class ResolveLinksRequest(Value):
    job_id: str
    links: tuple[NodeLinks, ...]


class LinkTargets(Value):
    links: tuple[Placed, ...] = ()
    """Requested devices, with the ranks that use them."""

    problem: Text = ""
    """Entry with a device that the job does not have, and the devices that it has. Empty: the job has all of them."""


class TargetsRequest(Value):
    """Request for the ranks that a stress test has to order."""

    job_id: str
    stress: StressRequest
    accepted: tuple[int, ...]
    """Operations that the job's training side supports."""


class FindingsRequest(Value):
    """Request to evaluate the results of a stress test and to isolate the nodes with faults."""

    job_id: str
    asked: tuple[RankOps, ...]
    results: StressResults
    why: Text
    """Origin of the isolation: which test of which job."""


class Found(Value):
    """Evaluation of a stress test: the findings, and the faults that have to be repaired."""

    tested: Tested = Tested()
    faults: tuple[Fault, ...] = ()


class StandbysRequest(Value):
    job_id: str
    count: int
    avoid_nodes: tuple[str, ...] = ()


class StandbysNow(Value):
    standbys: tuple[Standby, ...] = ()


class Held(Value):
    """Pod rank whose pod is to be followed by another pod, which the job's controller creates."""

    pod_rank: int
    holder: str
    """First characters of the UID of the pod that is to end, as in `Sighting.holders`."""

    told: bool
    """True if the training side told the pod to exit: it then ends by itself."""


class MadeAnewRequest(Value):
    job_id: str
    held: tuple[Held, ...]
    lost_nodes: tuple[str, ...]
    within: timedelta


class MadeAnew(Value):
    """Pods that the job's controller has recreated and the scheduler has assigned to nodes."""

    moved: tuple[Switched, ...] = ()
    missing: Text = ""
    """Description of the pods that are still missing. Empty: all pods are there."""


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
    """Creation time of the youngest old pod, by the cluster's clock. It identifies new pods where a controller creates them and
    sets labels of its own. None: there were no old pods."""

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

    def __str__(self) -> str:
        return few(self.names, self.count)


class JobRequest(Value):
    job_id: str


class JobLook(Value):
    phase: JobPhase | None = None
    """Phase of the job. None: the job no longer exists."""


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


class SweepRequest(Value):
    job_id: str
    pods: tuple[PodRef, ...]


class StartRequest(Value):
    job_id: str
    generation: str
    avoid_nodes: tuple[str, ...]


class PolicyRequest(Value):
    job_id: str
    strategy: str
    reason: Text
    """Reason why the policy differs from what the job's owner wrote. Empty: it does not differ."""


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
    recovering: Text = ""
    """Mode that is running, for display. Empty: no mode is running."""

    last_verdict: Text = ""
    event: ClusterEvent | None = None
    """Event about the job, which is created after the rest has been written."""


class SurveyRequest(Value):
    job_id: str
    nodes: tuple[str, ...] = ()
    """Names of the nodes to look at. Only the first hundred of a longer list are used."""


class Survey(Value):
    """State of a job in the cluster now, for a caller that asks."""

    exists: bool
    phase: JobPhase = JobPhase.PENDING
    ended: str = ""
    """Reason why the job has ended. Empty: it has not."""

    sighting: Sighting = Sighting()
    """Sighting as the watcher would report it, but without other nodes than `nodes`."""

    nodes: tuple[str, ...] = ()
    """Names of the nodes that were looked at, including those that no longer exist."""


class RecoveryEnd(Value):
    """Result of a recovery that an earlier workflow of the job had started."""

    settled: bool
    """True if the recovery ended by itself and left nothing to clean up."""

    words: str
    verdict: Verdict | None = None
    """Verdict of the recovery. None: it was cancelled before it did anything, or nothing is known about it."""

    known: bool = True
    """True if such a recovery exists or existed."""


class AskRequest(Value):
    job_id: str
    request: ModeRequest
    request_id: str
    """Id of the update. A repeated request with the same id is answered, but starts nothing again."""


class WithdrawRequest(Value):
    job_id: str
    request_id: str


class TerminateRequest(Value):
    workflow_id: str
    reason: str
