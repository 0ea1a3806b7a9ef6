"""Orders to the training side, its reports, and results of recoveries."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self, TypedDict, Unpack

from pydantic import BeforeValidator, PlainSerializer, SerializerFunctionWrapHandler, model_serializer, model_validator

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.fault import Fault, FaultKind, FaultType
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.links import NodeLinks, OnBackup, RankLinks
from rekindle.model.ranks import Ranks, read_ranks, written_ranks
from rekindle.model.stress import RankOps, StressRequest, StressResults, Tested
from rekindle.model.trace import Trace


class Mode(StrEnum):
    """A mode of recovery. The value is shown to people, in the Temporal UI and in output."""

    HOT_SWITCH = "hot switch"
    ONLINE_RETRY = "online retry"
    IN_PLACE = "in-place recovery"
    PROCESS_RESCHEDULING = "process rescheduling"
    JOB_RESCHEDULING = "job rescheduling"
    LINK_SWITCH = "link switch"
    STRESS_TEST = "stress test"


class Outcome(StrEnum):
    """Result of a recovery."""

    RECOVERED = "recovered"
    ESCALATE = "escalate"
    """The next mode is tried; the verdict names it."""
    REFUSED = "refused"
    """Nothing was changed."""
    IGNORED = "ignored"
    """The sub-health was ignored; training continues."""
    CANCELLED = "cancelled"
    GIVEN_UP = "given_up"


class FaultRank(Value):
    rank: int
    type: FaultType = FaultType.OTHER


def _by_type(ranks: tuple[FaultRank, ...]) -> dict[str, str]:
    return {kind: written_ranks(one.rank for one in ranks if one.type is kind) for kind in sorted({one.type for one in ranks})}


def _read_by_type(value: object) -> object:
    if not isinstance(value, dict):
        return value
    found = [FaultRank(rank=rank, type=kind) for kind, ranks in value.items() for rank in read_ranks(ranks)]
    return tuple(sorted(found, key=lambda one: one.rank))


FaultRanks = Annotated[
    tuple[FaultRank, ...],
    BeforeValidator(_read_by_type),
    PlainSerializer(_by_type, return_type=dict[str, str], when_used="json"),
]
"""Ranks with the type of their fault. In JSON a text of ranks for each type, such as `{"1": "0-7"}`, so that 10,000 ranks fit
into a payload."""


class Order(Value):
    """Message to the training side; by default a `ProcessManageSignal`."""

    job_id: str
    uuid: str
    """Id of the attempt. The training side executes the same order with the same uuid only once."""

    signal_type: str
    actions: tuple[str, ...] = ()
    fault_ranks: FaultRanks = ()
    change_strategy: str = ""
    timeout: int = 0
    """Timeout in seconds. 0: the contract gives none."""

    node_rank_ids: tuple[int, ...] = ()
    extra_params: str = ""
    session: str = ""
    """Session of the subscription that gets the order. A newer subscription gets all orders of the attempt again. Empty: any
    subscription."""

    links: RankLinks | None = None
    """Content of a `SwitchRankList` for the stream `SubscribeNotifySwitch`. None: this is another message."""

    stress: tuple[RankOps, ...] = ()
    """Content of `StressTestRankParams` for the stream `SubscribeNotifyExecStressTest`. Empty: this is another message."""

    trace: Trace | None = None
    """Content of a `DataStatusRes` for the stream `SubscribeDataTraceSwitch`. None: this is another message."""

    at_once: bool = False
    """True if the client reads orders as they arrive, as Rekindle's manager does. Other clients may lose the first of two orders
    that arrive together."""

    @property
    def name(self) -> str:
        """Name of the order for people, such as `hot switch` or `migration`."""
        return self.change_strategy or (self.actions[0] if self.actions else self.signal_type)


class ReportKind(StrEnum):
    STOP_COMPLETE = "stop complete"
    STRATEGIES = "strategies"
    STATUS = "status"
    LINKS = "links"
    STRESS = "stress test"


class Report(Value):
    """Message by which the training side answers an order. The contract gives it no id."""

    kind: ReportKind
    code: int = 0
    info: str = ""
    fault_ranks: FaultRanks = ()
    strategies: tuple[str, ...] = ()
    strategy: str = ""
    attempt: str = ""
    """Uuid of the order that a status answers, as Rekindle's training side sends it. Empty: not sent."""

    isolate_ranks: Ranks = ()
    results: StressResults | None = None
    """Results of a stress test. None: this is another report."""


class Strategy(StrEnum):
    """Strategy that the training side can be told to execute for its faults. In-place recovery is `recover` with an extra
    parameter."""

    RETRY = "retry"
    RECOVER = "recover"
    DUMP = "dump"
    EXIT = "exit"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"


class Heard(Value):
    """Record of a report that was processed, by which a repetition is recognized."""

    id: str
    """Id of the update with the report. A gateway without an answer repeats the update with the same id, even to
    the next mode."""

    mark: str
    """Digest of the report's content. A client without an answer repeats the report on a new connection."""


class Receipt(Value):
    """Answer of the gateway to a client; `Status` on the wire."""

    code: int = 0
    info: str = ""
    order: Order | None = None
    """First order of the recovery that reported faults start, for the stream of its session. None for all other messages."""

    recovery: str = ""
    """Workflow id of the recovery that gives the order."""


class Progress(Value):
    """First completed step after a start of the training side."""

    incarnation: str
    step: int
    steps_lost: int = 0
    session: str = ""
    """Subscription of the training side at the time of its report. Empty: it had none."""

    ranks: int = 0
    """Number of ranks of the job, as its manager counts them. 0: unknown."""


class Attachment(Value):
    """Location of the job's stream."""

    queue: str
    """Task queue of the gateway that holds the stream."""

    session: str
    """Id of the subscription, unique for each."""

    since: datetime
    client: str = ""
    """Process of the client, as far as it is known. See `rekindle.policy.dialogue.client_identity`."""

    progress: Progress | None = None
    """Last progress that was reported to this gateway."""


class PodRef(Value):
    """Pod, identified by its UID. A replacement with the same name has another UID."""

    name: str
    uid: str
    node: str = ""
    rank: int | None = None
    """Pod rank. None for the manager's pod."""


class Phase(Value):
    """Phase of a recovery, for the post-mortem."""

    name: str
    seconds: float
    note: Note = ""


class Switched(Value):
    """Pod that took over the ranks of another pod."""

    pod_rank: int
    before: PodRef
    after: PodRef

    def left_behind(self, fault: Fault) -> bool:
        """Returns whether a fault is only about the pod that was replaced, or about its node."""
        other_pods = set(fault.pod_ranks) - {self.pod_rank}
        of_the_node = fault.kind is FaultKind.NODE and fault.node == self.before.node and not other_pods
        of_the_rank = fault.kind is FaultKind.POD and not other_pods and bool(fault.pod_ranks)
        return of_the_node or of_the_rank or fault.pod_uids == (self.before.uid,)


class SituationChanges(TypedDict, total=False):
    """Fields of `Situation`, for `with_`. A test compares the two."""

    attempt: str
    faults: tuple[Fault, ...]
    faulty: tuple[FaultRank, ...]
    reported: tuple[FaultRank, ...]
    healed: tuple[int, ...]
    stopped: bool
    announced: tuple[FaultRank, ...]
    leaving: tuple[int, ...]
    offered: bool
    offers: tuple[str, ...]
    presumed: bool
    ordered: tuple[str, ...]
    answer_by: datetime | None
    told_on: str
    tried: tuple[Mode, ...]
    unread: tuple[Report, ...]
    heard: tuple[Heard, ...]


class Situation(Value):
    """Knowledge and progress of the opening of an incident. Passed from mode to mode."""

    attempt: str = ""
    """Uuid of the open attempt. Empty: none is open."""

    faults: tuple[Fault, ...] = ()
    faulty: FaultRanks = ()
    """Ranks that are faulty now, by these faults and by reports of the training side."""

    reported: FaultRanks = ()
    """Ranks that the training side reported as faulty by itself. Ranks that it only repeats after an announcement are not
    included."""

    healed: Ranks = ()
    """Ranks that were announced as faulty and whose pods have no fault any more."""

    stopped: bool = False
    """True if training has stopped: the training side reported it, or its report was lost in an outage."""

    announced: FaultRanks = ()
    """Ranks that `globalFault` announced to the training side. They are announced once in an attempt."""

    leaving: Ranks = ()
    """Pod ranks that an exit order of this incident has named. Named again, the order would end the pod that replaced the old
    one."""

    offered: bool = False
    """True if the training side has reported its offers, or its report was lost in an outage."""

    offers: tuple[str, ...] = ()
    """Strategies that the training side can execute now. `exit` is not included: it is always possible."""

    presumed: bool = False
    """True if the offers were lost in an outage, and `offers` contains what such a training side always offers."""

    ordered: tuple[str, ...] = ()
    """Strategies that were ordered in this incident."""

    answer_by: datetime | None = None
    """Time until which the training side waits for the next order. None: it waits without limit."""

    told_on: str = ""
    """Session of the subscription on which all orders of the attempt were written."""

    tried: tuple[Mode, ...] = ()
    unread: tuple[Report, ...] = ()
    heard: tuple[Heard, ...] = ()
    """The last reports that were processed."""

    def with_(self, **changes: Unpack[SituationChanges]) -> Self:
        """Returns a copy with these fields changed."""
        return self.model_copy(update=dict(changes))


class Handled(Value):
    """Occurrence of a fault. A fault that comes back or grows is another occurrence."""

    source: str
    id: str
    accepted_at: datetime | None

    @classmethod
    def of(cls, fault: Fault) -> Self:
        return cls(source=fault.source, id=fault.id, accepted_at=fault.accepted_at)


class Own(Value):
    """Verdict of the mode that was requested, as part of the verdict of the mode that followed."""

    outcome: Outcome
    reason: Text


class Training(StrEnum):
    """State of training when a mode ends without having recovered it. Policy decides which mode follows."""

    LOST = "lost"
    """The state of training is unknown: only a restart of the whole job helps."""

    WHOLE = "whole"
    """Training stands with all that it has, and may repeat its step."""

    SUSPECT = "suspect"
    """Ranks stand on nodes that they must leave."""

    FAULTED = "faulted"
    """A real fault interrupted the mode: what mends that fault follows."""


TRAINING_BEFORE = {"online retry": Training.WHOLE, "process rescheduling": Training.SUSPECT, "job rescheduling": Training.LOST}
"""State of training by the next mode, which verdicts of earlier versions name."""


class VerdictChanges(TypedDict, total=False):
    """Fields of `Verdict` that change after the end of a mode, for `with_`."""

    outcome: Outcome
    reason: str
    seconds: float
    phases: tuple[Phase, ...]
    went_on_at: datetime | None
    training: Training | None
    policy_after: SubHealthStrategy | None
    look_at: str
    switched: tuple[Switched, ...]
    handled: tuple[Handled, ...]
    moved_links: RankLinks | None
    moved_by: str
    tested: Tested | None
    asked: Own | None
    found: tuple[Fault, ...]
    left_behind: tuple[PodRef, ...]
    failed_on: tuple[str, ...]
    unread: tuple[Report, ...]
    situation: Situation | None


FEW = (
    "training",
    "again",
    "failed_on",
    "passing",
    "moved_links",
    "moved_by",
    "tested",
    "asked",
    "found",
    "handled",
    "left_behind",
    "unread",
    "situation",
)
"""Fields of a verdict that are serialized only if they are not empty."""


class Verdict(Value):
    """Result of a recovery, readable as a post-mortem."""

    mode: Mode
    outcome: Outcome
    reason: Text
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    steps_lost: int | None = None
    training: Training | None = None
    """None: training stands as the situation says, or was not touched."""

    policy_after: SubHealthStrategy | None = None
    """New sub-health policy of the job. None: unchanged."""

    look_at: Note = ""
    """Hint for people where to look."""

    passing: bool = False
    """True if a refusal may soon be outdated, so that another request may be accepted."""

    switched: tuple[Switched, ...] = ()
    moved_links: RankLinks | None = None
    """Ranks that use another link than before. None: no rank does."""

    moved_by: Text = ""
    """Workflow id of the maintenance that requested the movement, and that moves the ranks back."""

    tested: Tested | None = None
    """Results of a stress test. Not kept in the job's history."""

    asked: Own | None = None
    """Verdict of the requested mode that this mode followed. None: no mode was requested."""

    found: tuple[Fault, ...] = ()
    """Faults that were found by the mode and not known before. The next mode repairs them."""

    handled: tuple[Handled, ...] = ()
    """Faults that the mode has handled, in addition to those that it was started for."""

    went_on_at: datetime | None = None
    """Time at which the training side reported that training continues. Its earlier reports about processes are settled, later
    ones are new."""

    restarted_at: datetime | None = None
    """Time at which the mode recreated the job's pods. Faults that were seen before are settled."""

    left_behind: tuple[PodRef, ...] = ()
    """Pods that the mode could not delete. The `TrainingJob` retries that later."""

    failed_on: tuple[str, ...] = ()
    """Nodes on which pods of the mode did not start. For a while no mode places pods of the job there."""

    again: Note = ""
    """Condition that was missing for a restart, which left the job without pods. The restart is retried from time to time. Empty:
    it is not, and a person has to look."""

    unread: tuple[Report, ...] = ()
    situation: Situation | None = None
    """State of the incident for the next mode. None: the mode ended without returning one."""

    @model_serializer(mode="wrap")
    def _without_what_few_have(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Omits empty fields that few verdicts have. The state of a job may contain sixty verdicts."""
        fields: dict[str, object] = written(self)
        return {name: value for name, value in fields.items() if value or name not in FEW}

    @property
    def was_interrupted(self) -> bool:
        """True if a real fault interrupted the mode."""
        return self.training is Training.FAULTED

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, given: object) -> object:
        """Reads the successor that earlier versions have named, in place of the state of training."""
        if not isinstance(given, dict) or not (named := given.get("next_mode")):
            return given
        return {
            **given,
            "training": Training.FAULTED if given.get("outcome") == Outcome.CANCELLED else TRAINING_BEFORE.get(named),
        }

    def with_(self, **changes: Unpack[VerdictChanges]) -> Self:
        """Returns a copy with these fields changed."""
        return self.model_copy(update=dict(changes))


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

    front: Note = ""
    """Workflow id of the requester. Empty: a client requested the mode, or nobody did."""

    phase: str = ""
    """Phase of the mode at its start, for the list of workflows. Empty: an earlier version did not set it."""

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

    force: bool = False
    """Hot switch: True to move also a pod that was not reported as sub-healthy."""

    requested_by: Text = ""
    front: Note = ""
    """Workflow id of the requester, for the update. The update's id is its run id. A workflow id that is cut here is found by the
    run id alone."""


class Incident(Value):
    """A fault and all recoveries for it."""

    number: int
    summary: Note
    started_at: datetime
    seconds: float
    verdict: Outcome
    ladder: tuple[Verdict, ...]
    policy_after: SubHealthStrategy
    faults: tuple[Fault, ...] = ()
