"""Recovery of one job: the input of its modes, requests for them, and the incident in the job's history."""

from datetime import datetime

from rekindle.model.attachment import Attachment
from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.dialogue import Order
from rekindle.model.elastic import Small
from rekindle.model.fault import Fault
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.links import NodeLinks, OnBackup
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Situation
from rekindle.model.stress import StressRequest
from rekindle.model.verdict import Verdict


class RecoveryContext(Value):
    """Second argument of every mode: what only the `TrainingJob` knows. A mode without it only forwards a client's request to the
    job."""

    job: Job
    incident: int
    attachment: Attachment | None
    situation: Situation
    incarnation: str = ""
    """Id of the life of the training side in which the incident began."""

    sessions: tuple[str, ...] = ()
    """Subscriptions of that life so far. Messages that still arrive from them are not about a later life."""

    policy: SubHealthStrategy = SubHealthStrategy.IGNORE
    avoid_nodes: tuple[str, ...] = ()
    """Names of nodes on which new pods of the job must not be placed."""

    lost_nodes: tuple[str, ...] = ()
    """Names of lost nodes. Their pods are deleted without a grace period."""

    holders: tuple[str, ...] = ()
    """Holder of each pod rank before the incident. See `Sighting.holders`."""

    links: tuple[OnBackup, ...] = ()
    """Ranks that use their backup links."""

    small: Small | None = None
    """Replicas that are missing, and without which the job trains. None: it trains with all."""

    front: Note = ""
    """Workflow id of the requester. Empty: a client requested the mode, or it was not requested."""

    phase: str = ""
    """Phase of the mode at its start, for the list of workflows. Empty: an earlier version did not set it."""

    platform: bool = False
    """True if a platform has decided about the incident, and is asked by modes too."""

    first_order: Order | None = None
    """Order that the receipt of the faults has already carried to the stream of its session. None: there was none."""


class ModeRequest(Value):
    """Argument of the update `recover`, and first argument of every mode."""

    job: Text = ""
    """Id or name of the job, if a client starts the mode's workflow. Not needed for the update, which is sent to
    the job itself."""

    mode: Mode | None = None
    """Mode to run, for the update. The workflow of a mode ignores it."""

    pod_rank: int | None = None
    links: tuple[NodeLinks, ...] = ()
    """Link switch: devices to move."""

    stress: StressRequest | None = None
    """Stress test: checks to run, by node."""

    replicas: int | None = None
    """Scaling: number of replicas with which the job is to train."""

    force: bool = False
    """Hot switch: True to move also a pod that was not reported as sub-healthy."""

    cheaper: bool = True
    """False: modes of the ladder before the requested one are not tried after it either."""

    save: bool = True
    """Job rescheduling: False if the state is not to be saved first, as where training hangs and would not answer."""

    requested_by: Text = ""
    front: Note = ""
    """Workflow id of the requester, for the update. The update's id is its run id. A workflow id that is cut here is found by the
    run id alone."""


class Waited(Value):
    """Time in which an incident waited for a person."""

    since: datetime
    until: datetime


class Begun(Value):
    """Incident that has not ended."""

    number: int
    summary: Note
    started_at: datetime
    ladder: tuple[Verdict, ...]
    """Verdicts of the modes that have ended."""

    waits: tuple[Waited, ...] = ()
    faults: tuple[Fault, ...] = ()


class Incident(Value):
    """A fault and all recoveries for it."""

    number: int
    summary: Note
    started_at: datetime
    seconds: float
    verdict: Outcome
    ladder: tuple[Verdict, ...]
    policy_after: SubHealthStrategy
    waits: tuple[Waited, ...] = ()
    faults: tuple[Fault, ...] = ()
