"""Orders, reports, and how a recovery ends."""

from datetime import datetime
from enum import StrEnum

from rekindle.model.base import Value
from rekindle.model.fault import Fault, FaultType
from rekindle.model.job import Job, SubHealthStrategy


class Mode(StrEnum):
    """A way to recover. The value is what people read, in the Temporal UI and in output."""

    HOT_SWITCH = "hot switch"
    JOB_RESCHEDULING = "job rescheduling"


class Outcome(StrEnum):
    """How a recovery ended."""

    RECOVERED = "recovered"
    ESCALATE = "escalate"
    """To the next mode, which the verdict names."""
    REFUSED = "refused"
    """Nothing was touched."""
    IGNORED = "ignored"
    """The sub-health was left alone; training goes on."""
    CANCELLED = "cancelled"
    GIVEN_UP = "given_up"


class FaultRank(Value):
    rank: int
    type: FaultType = FaultType.OTHER


class Order(Value):
    """One message to the training side: a `ProcessManageSignal`."""

    job_id: str
    uuid: str
    """The attempt. The same order with the same uuid is carried out once."""

    signal_type: str
    actions: tuple[str, ...] = ()
    fault_ranks: tuple[FaultRank, ...] = ()
    change_strategy: str = ""
    timeout: int = 0
    """Seconds; 0 where the contract gives none."""

    node_rank_ids: tuple[int, ...] = ()
    extra_params: str = ""

    @property
    def name(self) -> str:
        """What people call it: `hot switch`, `migration`, ..."""
        return self.change_strategy or (self.actions[0] if self.actions else self.signal_type)


class ReportKind(StrEnum):
    STOP_COMPLETE = "stop complete"
    STRATEGIES = "strategies"
    STATUS = "status"


class Report(Value):
    """A message of the training side that answers an order. It carries no id on the wire."""

    kind: ReportKind
    code: int = 0
    info: str = ""
    fault_ranks: tuple[FaultRank, ...] = ()
    strategies: tuple[str, ...] = ()
    strategy: str = ""
    isolate_ranks: tuple[int, ...] = ()


class Receipt(Value):
    """The gateway's answer to a client: `Status` on the wire."""

    code: int = 0
    info: str = ""


class Progress(Value):
    """The first completed step of one life of the training side."""

    incarnation: str
    step: int
    steps_lost: int = 0


class Attachment(Value):
    """Where the job's stream is."""

    queue: str
    """Task queue of the gateway that holds it."""

    session: str
    """One value for each subscription."""

    since: datetime
    progress: Progress | None = None
    """The last one that the gateway was told: for a `TrainingJob` that has lost its own."""


class PodRef(Value):
    """One very pod: a replacement of the same name has another uid."""

    name: str
    uid: str
    node: str = ""
    rank: int | None = None
    """Pod rank; None for the manager's pod."""


class Phase(Value):
    """One phase of a procedure, for the post-mortem."""

    name: str
    seconds: float
    note: str = ""


class Switched(Value):
    """A pod that took over another's ranks."""

    pod_rank: int
    before: PodRef
    after: PodRef


class Verdict(Value):
    """How one recovery ended; reads as a post-mortem."""

    mode: Mode
    outcome: Outcome
    reason: str
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    steps_lost: int | None = None
    next_mode: Mode | None = None
    policy_after: SubHealthStrategy | None = None
    """What the job's sub-health policy became; None: unchanged."""

    look_at: str = ""
    """Where a person should look."""

    switched: tuple[Switched, ...] = ()
    removed_pods: tuple[str, ...] = ()
    """UIDs of pods that the mode removed: faults of theirs are done with."""

    restarted_at: datetime | None = None
    """When the mode started the job's pods anew: faults seen before are done with."""

    unread: tuple[Report, ...] = ()


class Situation(Value):
    """What the opening of an incident learnt; travels from mode to mode."""

    attempt: str = ""
    faults: tuple[Fault, ...] = ()
    tried: tuple[Mode, ...] = ()
    unread: tuple[Report, ...] = ()


class RecoveryContext(Value):
    """What only the `TrainingJob` knows. A mode without it is a front."""

    job: Job
    incident: int
    attachment: Attachment | None
    situation: Situation
    incarnation: str = ""
    """The life of the training side that the incident met."""

    policy: SubHealthStrategy = SubHealthStrategy.IGNORE


class ModeInput(Value):
    """Input of every mode. A client gives `job_id` and, for a hot switch, `pod_rank`."""

    job_id: str
    pod_rank: int | None = None
    force: bool = False
    """Hot switch: also a pod that nobody reported as sub-healthy."""

    requested_by: str = ""
    context: RecoveryContext | None = None
    """Filled by the `TrainingJob` only."""


class ModeRequest(Value):
    """A front's question to the `TrainingJob`, and the question's place in its queue."""

    mode: Mode
    pod_rank: int | None = None
    force: bool = False
    requested_by: str = ""
    front: str = ""
    """Workflow id that waits for the verdict; empty: nobody waits."""

    front_run: str = ""


class Incident(Value):
    """A fault and all the recoveries that it took."""

    number: int
    summary: str
    started_at: datetime
    seconds: float
    verdict: Outcome
    ladder: tuple[Verdict, ...]
    policy_after: SubHealthStrategy
    faults: tuple[Fault, ...] = ()
