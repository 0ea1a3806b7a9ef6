"""Orders, reports, and how a recovery ends."""

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
    """A way to recover. The value is what people read, in the Temporal UI and in output."""

    HOT_SWITCH = "hot switch"
    ONLINE_RETRY = "online retry"
    IN_PLACE = "in-place recovery"
    PROCESS_RESCHEDULING = "process rescheduling"
    JOB_RESCHEDULING = "job rescheduling"
    LINK_SWITCH = "link switch"
    STRESS_TEST = "stress test"


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
"""In JSON the ranks of each type of fault, such as `{"1": "0-7"}`: 10,000 of them fit into a payload."""


class Order(Value):
    """One message to the training side: a `ProcessManageSignal`."""

    job_id: str
    uuid: str
    """The attempt. The same order with the same uuid is carried out once."""

    signal_type: str
    actions: tuple[str, ...] = ()
    fault_ranks: FaultRanks = ()
    change_strategy: str = ""
    timeout: int = 0
    """Seconds; 0 where the contract gives none."""

    node_rank_ids: tuple[int, ...] = ()
    extra_params: str = ""
    session: str = ""
    """The subscription that it is for: a newer one gets the orders of the attempt in turn. Empty: whichever is there."""

    links: RankLinks | None = None
    """Order for the stream `SubscribeNotifySwitch`, in place of a `ProcessManageSignal`: a `SwitchRankList`."""

    stress: tuple[RankOps, ...] = ()
    """Order for the stream `SubscribeNotifyExecStressTest`, in place of a `ProcessManageSignal`: `StressTestRankParams`."""

    trace: Trace | None = None
    """Order for the stream `SubscribeDataTraceSwitch`, in place of a `ProcessManageSignal`: a `DataStatusRes`."""

    at_once: bool = False
    """Its client reads orders as they come, as our own manager does; another one may lose the first of two that come together."""

    @property
    def name(self) -> str:
        """What people call it: `hot switch`, `migration`, ..."""
        return self.change_strategy or (self.actions[0] if self.actions else self.signal_type)


class ReportKind(StrEnum):
    STOP_COMPLETE = "stop complete"
    STRATEGIES = "strategies"
    STATUS = "status"
    LINKS = "links"
    STRESS = "stress test"


class Report(Value):
    """A message of the training side that answers an order. It carries no id in the contract."""

    kind: ReportKind
    code: int = 0
    info: str = ""
    fault_ranks: FaultRanks = ()
    strategies: tuple[str, ...] = ()
    strategy: str = ""
    attempt: str = ""
    """Of ours, in a status: the uuid of the order that it answers. Empty: nobody said."""

    isolate_ranks: Ranks = ()
    results: StressResults | None = None
    """Of a stress test."""


class Strategy(StrEnum):
    """What the training side can be told to do about its faults. In-place recovery is a `recover` with an extra parameter."""

    RETRY = "retry"
    RECOVER = "recover"
    DUMP = "dump"
    EXIT = "exit"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"


class Heard(Value):
    """A report that was taken, to know it again when it is repeated."""

    id: str
    """Of the update that brought it: a gateway that got no answer sends it again with this id, also to the next mode."""

    mark: str
    """Of what it says: a client that got no answer says it again, on a new connection."""


class Receipt(Value):
    """The gateway's answer to a client: `Status` on the wire."""

    code: int = 0
    info: str = ""
    order: Order | None = None
    """Answer to faults alone: the first order of the recovery that they begin, for the stream of its session."""

    recovery: str = ""
    """Workflow id of the recovery that gives this order."""


class Progress(Value):
    """The first completed step of one life of the training side."""

    incarnation: str
    step: int
    steps_lost: int = 0
    session: str = ""
    """The training side's subscription when it told; empty: it had none."""

    ranks: int = 0
    """Number of ranks of the job, as its manager counts them; 0: it does not say."""


class Attachment(Value):
    """Where the job's stream is."""

    queue: str
    """Task queue of the gateway that holds it."""

    session: str
    """One value for each subscription."""

    since: datetime
    client: str = ""
    """Which process the client is, as well as it is known: see `rekindle.policy.clients`."""

    progress: Progress | None = None
    """The last that this gateway was told."""


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
    note: Note = ""


class Switched(Value):
    """A pod that took over another's ranks."""

    pod_rank: int
    before: PodRef
    after: PodRef

    def left_behind(self, fault: Fault) -> bool:
        """Whether a fault is only about the pod that was replaced, or about the node that it was on."""
        other_pods = set(fault.pod_ranks) - {self.pod_rank}
        of_the_node = fault.kind is FaultKind.NODE and fault.node == self.before.node and not other_pods
        of_the_rank = fault.kind is FaultKind.POD and not other_pods and bool(fault.pod_ranks)
        return of_the_node or of_the_rank or fault.pod_uids == (self.before.uid,)


class SituationChanges(TypedDict, total=False):
    """The fields of `Situation`, for `with_`; a test holds the two together."""

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
    """What the opening of an incident learnt, and how far it came; travels from mode to mode."""

    attempt: str = ""
    """The uuid of the open attempt; empty: none is open."""

    faults: tuple[Fault, ...] = ()
    faulty: FaultRanks = ()
    """The ranks that are faulty now, by these faults and by the training side's own word."""

    reported: FaultRanks = ()
    """What the training side named as faulty by itself. It repeats what was announced to it, which is no word of its own."""

    healed: Ranks = ()
    """Ranks that were announced and in whose pods nothing is faulty any more."""

    stopped: bool = False
    """Training has stopped: the training side said so, or its word was lost in an outage."""

    announced: FaultRanks = ()
    """What `globalFault` named, which the training side hears once an attempt."""

    leaving: Ranks = ()
    """Pod ranks that an exit order of this incident has named; named again, it would end the pod that came in its place."""

    offered: bool = False
    """The training side has said what it offers, or its word was lost in an outage."""

    offers: tuple[str, ...] = ()
    """The strategies that it could carry out now. `exit` is no offer: it is always possible."""

    presumed: bool = False
    """The offers were lost in an outage; these are what such a training side always offers."""

    ordered: tuple[str, ...] = ()
    """The strategies that it was told to carry out in this incident."""

    answer_by: datetime | None = None
    """Until when the training side waits for the next order; None: for as long as it takes."""

    told_on: str = ""
    """The subscription on which all orders of the attempt were written."""

    tried: tuple[Mode, ...] = ()
    unread: tuple[Report, ...] = ()
    heard: tuple[Heard, ...] = ()
    """The last reports that were taken."""

    def with_(self, **changes: Unpack[SituationChanges]) -> Self:
        """The situation with these fields changed."""
        return self.model_copy(update=dict(changes))


class Handled(Value):
    """One occurrence of a fault: what has come back, or has grown, since is another one."""

    source: str
    id: str
    accepted_at: datetime | None

    @classmethod
    def of(cls, fault: Fault) -> Self:
        return cls(source=fault.source, id=fault.id, accepted_at=fault.accepted_at)


class Own(Value):
    """Verdict of the mode that somebody had asked for, beside the verdict of what followed it."""

    outcome: Outcome
    reason: Text


class Training(StrEnum):
    """State of training when a mode ends without having recovered it. Policy decides which mode follows."""

    LOST = "lost"
    """Nobody knows where training stands: only a restart of the whole job helps."""

    WHOLE = "whole"
    """Training stands with all that it has, and may repeat its step."""

    SUSPECT = "suspect"
    """Ranks stand on nodes that they must leave."""

    FAULTED = "faulted"
    """A real fault interrupted the mode: what mends that fault follows."""


TRAINING_BEFORE = {"online retry": Training.WHOLE, "process rescheduling": Training.SUSPECT, "job rescheduling": Training.LOST}
"""By the mode that verdicts of earlier versions name as the next one."""


class VerdictChanges(TypedDict, total=False):
    """The fields of `Verdict` that are changed behind a mode, for `with_`."""

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
"""Fields of a verdict that are written only where there is something in them."""


class Verdict(Value):
    """How one recovery ended; reads as a post-mortem."""

    mode: Mode
    outcome: Outcome
    reason: Text
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    steps_lost: int | None = None
    training: Training | None = None
    """None: training stands as the situation says, or was not touched."""

    policy_after: SubHealthStrategy | None = None
    """What the job's sub-health policy became; None: unchanged."""

    look_at: Note = ""
    """Where a person should look."""

    passing: bool = False
    """A refusal may be over in a moment: another request may be accepted."""

    switched: tuple[Switched, ...] = ()
    moved_links: RankLinks | None = None
    """Ranks that use another link than before."""

    moved_by: Text = ""
    """Workflow id of who asked for that, and moves them back."""

    tested: Tested | None = None
    """Stress test: what it found. Not kept in the job's history."""

    asked: Own | None = None
    """Verdict of the mode that was asked for, which this one followed; None: nobody asked."""

    found: tuple[Fault, ...] = ()
    """Faults that nobody knew of before: the mode behind it mends them."""

    handled: tuple[Handled, ...] = ()
    """The faults that the mode has dealt with, beyond those that it was started for."""

    went_on_at: datetime | None = None
    """When the training side said that training goes on: what it had told of its processes before is done with, what it told
    behind that is news."""

    restarted_at: datetime | None = None
    """When the mode started the job's pods anew: faults seen before are done with."""

    left_behind: tuple[PodRef, ...] = ()
    """Pods that it could not delete: the `TrainingJob` tries again later."""

    failed_on: tuple[str, ...] = ()
    """Nodes on which pods that it made did not start: for a while no mode puts pods of the job there."""

    again: Note = ""
    """Condition under which a restart that left the job without pods is worth another try: that is done from time to time. Empty:
    a person has to look."""

    unread: tuple[Report, ...] = ()
    situation: Situation | None = None
    """What the mode leaves to the next one; None: the mode ended without a word."""

    @model_serializer(mode="wrap")
    def _without_what_few_have(self, written: SerializerFunctionWrapHandler) -> dict[str, object]:
        """A job's state has sixty of them."""
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
        """The verdict with these fields changed."""
        return self.model_copy(update=dict(changes))


class RecoveryContext(Value):
    """Second argument of every mode, given by the `TrainingJob`: what only that knows. A mode without it is a front."""

    job: Job
    incident: int
    attachment: Attachment | None
    situation: Situation
    incarnation: str = ""
    """The life of the training side that the incident met."""

    sessions: tuple[str, ...] = ()
    """Its subscriptions so far: what still comes from them says nothing of a later life."""

    policy: SubHealthStrategy = SubHealthStrategy.IGNORE
    avoid_nodes: tuple[str, ...] = ()
    """Where new pods of the job must not go."""

    lost_nodes: tuple[str, ...] = ()
    """Whose pods nobody ends gracefully."""

    holders: tuple[str, ...] = ()
    """Who held each pod rank before the incident; see `Sighting.holders`."""

    links: tuple[OnBackup, ...] = ()
    """Who uses a backup link."""

    front: Note = ""
    """Workflow that asked for it; empty: a client did, or nobody."""

    phase: str = ""
    """Row of the list of workflows at its start; empty: an earlier version did not say."""

    first_order: Order | None = None
    """Order that the receipt of the faults has brought to the stream of its session."""


class ModeRequest(Value):
    """Argument of the update `recover`, and first argument of every mode: what somebody asks for."""

    job: Text = ""
    """Id or name of the job, where a client starts the mode's workflow; the update is sent to the job itself."""

    mode: Mode | None = None
    """Which mode, for the update; a mode's workflow knows its own."""

    pod_rank: int | None = None
    links: tuple[NodeLinks, ...] = ()
    """Link switch: the devices that it moves."""

    stress: StressRequest | None = None
    """Stress test: which checks are made on which nodes."""

    force: bool = False
    """Hot switch: also a pod that nobody reported as sub-healthy."""

    requested_by: Text = ""
    front: Note = ""
    """Id of the workflow that asks, for the update; its run's id is the update's. A longer one is found by that alone."""


class Incident(Value):
    """A fault and all the recoveries that it took."""

    number: int
    summary: Note
    started_at: datetime
    seconds: float
    verdict: Outcome
    ladder: tuple[Verdict, ...]
    policy_after: SubHealthStrategy
    faults: tuple[Fault, ...] = ()
