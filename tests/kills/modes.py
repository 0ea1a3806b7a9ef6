"""The modes, one row each: the fault of the job, the orders to its training side, and the pods that change."""

from dataclasses import dataclass, field

from rekindle.model.elastic import WORD
from rekindle.model.fault import FaultType
from rekindle.model.keys import ELASTIC, RECOVER_STRATEGY
from rekindle.model.keys import POD_RESCHEDULING as ONLY_PODS
from rekindle.model.mode import Mode, Outcome
from rekindle.model.training_side import TrainingSide

OPENING = ("stop_train", "on_global_rank")
OPENING_PHASES = 3
ALL = "retry,recover-in-place,recover"
REPORTS = ("stop complete", "strategies", "status")
OPERATIONS = {Mode.LINK_SWITCH: ("links", "order switch links"), Mode.STRESS_TEST: ("stress test", "order stress test")}
"""The report of the work in the pause, and the order that it answers."""


@dataclass(frozen=True)
class Struck:
    """One mode and the fault that leads to it."""

    mode: Mode
    strikes: str
    """Description of the fault."""

    carries_out: tuple[str, ...]
    """Orders after the opening."""

    own_phases: int
    """Number of phases of its procedures, without those of the opening."""

    faulty: tuple[int, ...] = ()
    """Ranks that the training side reports; none: the cluster reports a sub-health."""

    type: FaultType = FaultType.OTHER
    loses_pod: bool = False
    """True if pod rank 1 is gone before anything is reported."""

    moves: bool = False
    """Another pod takes over pod rank 1, and the old one is deleted."""

    leaves: bool = False
    """True if training goes on without pod rank 1."""

    then: Mode | None = None
    """Mode that follows it in every case, as it does not recover training itself."""

    asks_ours: bool = True
    """True if our training side is stopped and asked, too."""

    allowed: str = ""
    """Modes that the owner of our job allows; empty: the owner sets nothing, and all are allowed."""

    labels: dict[str, str] = field(default_factory=dict)
    """Further labels of the job."""

    annotations: dict[str, str] = field(default_factory=dict)
    """Further annotations of the job."""

    name: str = ""
    """Title of a section of the table; empty: the mode's."""

    @property
    def title(self) -> str:
        return self.name or self.mode

    @property
    def word(self) -> str:
        """Returns the name under which a mode is requested, such as `in-place`."""
        return self.title.removesuffix(" recovery").replace(" ", "-")

    @property
    def ladder(self) -> list[tuple[Mode, Outcome]]:
        """Returns the modes of an undisturbed incident, and how they end."""
        recovered = (self.then or self.mode, Outcome.RECOVERED)
        return [(self.mode, Outcome.ESCALATE), recovered] if self.then else [recovered]

    @property
    def modes(self) -> tuple[Mode, ...]:
        return tuple(mode for mode, _ in self.ladder)

    @property
    def renews(self) -> tuple[int, ...]:
        """Returns the pod ranks that other pods take over."""
        return (0, 1) if self.restarts else (1,) * self.moves

    @property
    def ends(self) -> tuple[int, ...]:
        """Returns the pod ranks whose pods are deleted."""
        return (1,) if self.leaves else self.renews

    @property
    def restarts(self) -> bool:
        """True if all pods of the job are replaced, and its manager with them."""
        return Mode.JOB_RESCHEDULING in self.modes

    def is_opened(self, side: TrainingSide) -> bool:
        return bool(self.faulty) and (self.asks_ours or side is TrainingSide.MINDIO)

    def orders(self, side: TrainingSide) -> tuple[str, ...]:
        """Returns all orders, in sequence."""
        told = [order for order in self.carries_out if side is TrainingSide.REKINDLE or order != "new pod running"]
        return (*OPENING, *told) if self.is_opened(side) else tuple(told)

    def phases(self, side: TrainingSide) -> int:
        return self.own_phases + OPENING_PHASES * self.is_opened(side)

    def reports(self, side: TrainingSide) -> tuple[str, ...]:
        if self.mode in OPERATIONS:
            return ("stop complete", OPERATIONS[self.mode][0], "status")
        if not self.orders(side):
            return ()
        if self.is_opened(side):
            return REPORTS
        return REPORTS[1:] if self.mode is Mode.HOT_SWITCH else REPORTS[-1:]

    def of(self, side: TrainingSide) -> dict[str, str]:
        """Returns the job's annotations."""
        allowed = self.allowed if side is TrainingSide.REKINDLE else ALL
        return {**({RECOVER_STRATEGY: allowed} if allowed else {}), **self.annotations}

    def report_behind(self, side: TrainingSide) -> dict[str, str]:
        """Returns, by kind of report, the activity or update that comes before it in every undisturbed run."""
        if not self.orders(side):
            return {}
        if self.mode in OPERATIONS:
            done, order = OPERATIONS[self.mode]
            return {"stop complete": "order pause_train", done: order, "status": "order continue"}
        loaded = "order new pod running" if side is TrainingSide.REKINDLE else "wait until the backup pod runs"
        offered = "order on_global_rank" if self.faulty else loaded
        behind = {"stop complete": "order stop_train", "strategies": offered}
        carried_out = f"order {self.carries_out[-1]}"
        if self.mode is Mode.POD_RESCHEDULING:
            return {**behind, "first step": carried_out, "status": "progress"}
        return {**behind, "status": carried_out}


HOT_SWITCH = Struck(
    mode=Mode.HOT_SWITCH,
    strikes="the node of pod rank 1 is sub-healthy",
    carries_out=("hot switch", "new pod running", "migration"),
    own_phases=7,
    moves=True,
)
ONLINE_RETRY = Struck(
    mode=Mode.ONLINE_RETRY,
    strikes="rank 3 has a fault of its device's memory",
    carries_out=("retry",),
    own_phases=1,
    asks_ours=False,
    faulty=(3,),
    type=FaultType.MEMORY,
)
IN_PLACE = Struck(
    mode=Mode.IN_PLACE,
    strikes="the process of rank 3 dies",
    carries_out=("recover",),
    own_phases=1,
    asks_ours=False,
    faulty=(3,),
)
PROCESS_RESCHEDULING = Struck(
    mode=Mode.PROCESS_RESCHEDULING,
    strikes="pod rank 1 loses its pod, and the training side reports its ranks",
    carries_out=("recover",),
    own_phases=3,
    faulty=(2, 3),
    loses_pod=True,
    moves=True,
    allowed="recover",
)
ELASTIC_TRAINING = Struck(
    mode=Mode.ELASTIC_TRAINING,
    strikes="pod rank 1 loses its pod, and the owner of the job allows nothing but to go on without it",
    carries_out=("downgrade",),
    own_phases=2,
    asks_ours=False,
    faulty=(2, 3),
    loses_pod=True,
    leaves=True,
    allowed=WORD,
    annotations={ELASTIC: "1; wait=0"},
)
SCALING = Struck(
    mode=Mode.SCALING,
    strikes="a client asks for a job of one pod. Pod rank 1 leaves while training goes on",
    carries_out=("downgrade",),
    own_phases=3,
    leaves=True,
    annotations={ELASTIC: "1"},
)
DYING_GASP = Struck(
    mode=Mode.DYING_GASP,
    strikes="""pod rank 1 loses its pod, and the owner of the job allows nothing but to save the state. The job is rescheduled
after that: an incident of two recoveries""",
    carries_out=("dump",),
    own_phases=4,
    then=Mode.JOB_RESCHEDULING,
    faulty=(2, 3),
    loses_pod=True,
    allowed="dump",
)
POD_RESCHEDULING = Struck(
    mode=Mode.POD_RESCHEDULING,
    strikes="pod rank 1 loses its pod, and only that pod is to be replaced. All processes begin again",
    carries_out=("exit",),
    own_phases=3,
    faulty=(2, 3),
    loses_pod=True,
    moves=True,
    allowed="exit",
    labels={ONLY_PODS: "on"},
)
JOB_RESCHEDULING = Struck(
    mode=Mode.JOB_RESCHEDULING,
    strikes="the process of rank 3 dies, and the owner of the job allows nothing but a restart",
    carries_out=(),
    own_phases=3,
    asks_ours=False,
    faulty=(3,),
    allowed="exit",
)
LINK_SWITCH = Struck(
    mode=Mode.LINK_SWITCH,
    strikes="a client asks for the devices of pod rank 1 to be moved to their backup links",
    carries_out=("pause_train", "continue"),
    own_phases=4,
)
STRESS_TEST = Struck(
    mode=Mode.STRESS_TEST,
    strikes="a client asks for a test of the devices of pod rank 1, of which none is faulty",
    carries_out=("pause_train", "continue"),
    own_phases=5,
)
MODES = (
    HOT_SWITCH,
    ONLINE_RETRY,
    IN_PLACE,
    PROCESS_RESCHEDULING,
    ELASTIC_TRAINING,
    DYING_GASP,
    POD_RESCHEDULING,
    JOB_RESCHEDULING,
    SCALING,
    LINK_SWITCH,
    STRESS_TEST,
)
LINK_FAILOVER = Struck(
    mode=Mode.LINK_SWITCH,
    strikes="""a client fails the devices of pod rank 1 over, and switches them back when that is done. Numbers are ids of events
in the history of the maintenance, which asks the job for two link switches""",
    carries_out=("pause_train", "continue"),
    own_phases=4,
    name="link failover",
)
"""A maintenance whose own workflow is met by kills. Those of the job and of the switches are in `LINK_SWITCH`."""

SECTIONS = (*MODES, LINK_FAILOVER)
