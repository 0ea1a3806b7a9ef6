"""What workflows ask of activities, and what these answer. Built in `workflows/steps.py` and the modes."""

from datetime import datetime, timedelta

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text, few
from rekindle.model.cluster import ClusterEvent, JobPhase
from rekindle.model.fault import Fault, Sighting
from rekindle.model.links import NodeLinks, Placed
from rekindle.model.recovery import ModeRequest, PodRef, Switched, Verdict
from rekindle.model.standby import Standby
from rekindle.model.state import Remembered
from rekindle.model.stress import RankOps, StressRequest, StressResults, Tested


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
    standby: bool = False
    """It was a standby, which its order has to tell of its rank."""


class Replacement(Value):
    """Of a pod rank that has lost its pod."""

    backup: PodRef
    old: PodRef | None = None
    """The pod that held the rank last; None: the cluster shows none any more."""

    standby: bool = False
    """See `Backup.standby`."""


class ResolveLinksRequest(Value):
    job_id: str
    links: tuple[NodeLinks, ...]


class LinkTargets(Value):
    links: tuple[Placed, ...] = ()
    """What was asked for."""

    problem: Text = ""
    """The entry that the job has no such device for, and what it has; empty: it has all of them."""


class TargetsRequest(Value):
    """Whom a stress test asks."""

    job_id: str
    stress: StressRequest
    accepted: tuple[int, ...]
    """Operations that the job's training side knows."""


class FindingsRequest(Value):
    """What a stress test has found: nodes with faults are isolated."""

    job_id: str
    asked: tuple[RankOps, ...]
    results: StressResults
    why: Text
    """Who isolates them: which test of which job."""


class Found(Value):
    """What that is, and what has to be mended."""

    tested: Tested = Tested()
    faults: tuple[Fault, ...] = ()


class StandbysRequest(Value):
    job_id: str
    count: int
    avoid_nodes: tuple[str, ...] = ()


class StandbysNow(Value):
    standbys: tuple[Standby, ...] = ()


class Held(Value):
    """A pod rank whose pod is to be followed by another one, which the job's controller makes."""

    pod_rank: int
    holder: str
    """First characters of the UID of the pod that is to go, as in `Sighting.holders`."""

    told: bool
    """The training side told it to leave: it ends by itself."""


class MadeAnewRequest(Value):
    job_id: str
    held: tuple[Held, ...]
    lost_nodes: tuple[str, ...]
    within: timedelta


class MadeAnew(Value):
    """Pods that the job's controller made anew and its scheduler gave a node."""

    moved: tuple[Switched, ...] = ()
    missing: Text = ""
    """What is not there yet, in words; empty: all are."""


class PodsRequest(Value):
    """The few pods of a hot switch."""

    job_id: str
    pods: tuple[PodRef, ...]
    within: timedelta
    """From now; no moment, since the worker's clock is not the server's."""


class Restart(Value):
    """Tells the pods of one restart from those before it, without a list of either."""

    job_id: str
    generation: str
    """Label of the new pods, where we make them."""

    youngest: datetime | None = None
    """When the youngest of the old pods was created, by the cluster's clock: who makes pods by themselves gives them a label of
    their own. None: there were none."""

    youngest_uids: tuple[str, ...] = ()
    """First eight characters of the UIDs of those that were created then: that clock tells seconds, and the first new pods may
    be created in the same one."""


class OldPodsRequest(Value):
    restart: Restart
    within: timedelta


class NewPodsRequest(Value):
    restart: Restart
    pods: int
    """How many there must be."""

    within: timedelta = timedelta(0)


class PodCount(Value):
    """Pods of a job, of which there may be thousands."""

    count: int = 0
    names: tuple[str, ...] = ()
    """Of the first ten."""

    youngest: datetime | None = None
    """When the youngest of them was created."""

    youngest_uids: tuple[str, ...] = ()
    """See `Restart.youngest_uids`."""

    def __str__(self) -> str:
        return few(self.names, self.count)


class JobRequest(Value):
    job_id: str


class JobLook(Value):
    phase: JobPhase | None = None
    """None: there is no such job any more."""


class Scheduled(Value):
    node: str
    """Empty: not scheduled until the deadline."""

    sub_healthy: bool = False
    """The node is."""

    message: Text = ""
    """The scheduler's own words."""

    gate: Note = ""
    """The scheduling gate that keeps the scheduler from the pod; empty: none does."""


class Started(Value):
    running: bool
    waits: bool = False
    """None has failed or is gone: the processes of some have never started."""

    message: Text = ""
    failed_on: tuple[str, ...] = ()
    """Nodes on which pods did not start while others of the job run elsewhere."""


class SwapRequest(Value):
    job_id: str
    old: PodRef | None
    """None: it is gone, and has nothing to be deleted of."""

    backup: PodRef


class Swap(Value):
    old_deleted: bool
    message: Text = ""
    """Why the old pod was kept."""


class StopRequest(Value):
    job_id: str
    grace_seconds: int
    lost_nodes: tuple[str, ...] = ()
    """Their pods get no grace: nothing there would end them."""


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
    recovering: Text = ""
    """The mode that runs, for people; empty: none does."""

    last_verdict: Text = ""
    event: ClusterEvent | None = None
    """Told of the job when the rest is written."""


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


class RecoveryEnd(Value):
    """How a recovery ended that an earlier workflow of its job had started."""

    settled: bool
    """It came to an end of its own that leaves nothing behind."""

    words: str
    verdict: Verdict | None = None
    """What it did; None: it was cancelled before it did anything, or nothing is known of it."""

    known: bool = True
    """There is, or was, such a recovery."""


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
