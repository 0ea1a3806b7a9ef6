"""Table of all modes: what each is for, whether it may be tried, how it is requested, its limits, and its procedure.

`LADDER` is the order in which modes are tried for a fault. `OPERATIONS` are requested by people and platforms only. A new mode
is a row here, its name in `rekindle.model.mode.Mode`, its limits in `Limits`, and a module with its procedure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from rekindle.model.fault import FaultKind
from rekindle.model.job import Job
from rekindle.model.limits import Limits
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.policy.modes import eligibility
from rekindle.policy.training_sides.table import side_of


class About(Enum):
    """Target of a mode, which it moves or restarts."""

    POD = "one pod rank, which a request must name"
    RANKS = "the ranks that are faulty, of which the faults tell"
    JOB = "the whole job"
    LINKS = "devices and their links, which a request must name"
    CHECKS = "nodes and the checks on them, which a request must name"
    SIZE = "the number of replicas, which a request must name"


@dataclass(frozen=True)
class ModeRow:
    mode: Mode
    workflow: str
    """Type of the workflow. A client can start it; the `TrainingJob` runs it as its child."""

    procedure: str
    """Module that defines the workflow."""

    begins: str
    """First phase of the procedure. It is passed at the start, since each change of a search attribute adds an event to the
    history."""

    about: About
    serves: tuple[FaultKind, ...]
    """Kinds of faults for which the mode is tried without a request."""

    reasons_against: Callable[[JobState, int | None], tuple[str, ...]]
    """Returns the reasons why the mode may not be tried now for this pod rank. Empty: it may."""

    limits: tuple[str, ...] | None
    """Names of the limits that the mode may wait for, repeated as often as it may. Their sum and `clean_up` are its deadline.
    None: the mode has no deadline as a whole."""

    begins_unasked: str = ""
    """First phase if the training side gets its order at once, without an opening. Empty: the same as `begins`."""

    hands_over: bool = False
    """True if pods take over ranks from other pods. If the mode is cut off, only a restart finds out which pods to keep."""

    moves_pods: bool = False
    """True if pods are started on nodes that the scheduler chooses. In a storm the mode is held."""

    repeats: bool = False
    """True if the mode changes the size, so that it is unknown which pods train if it is cut off. It is carried out again then: a
    training side that changes its size at will does what is left to do, and answers as before."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.limits or () if name not in Limits.model_fields]:
            raise ValueError(f"limits of mode {self.mode}: {', '.join(unknown)} is no limit of `rekindle.model.limits.Limits`")

    def first_phase(self, job: Job) -> str:
        """Returns the first phase of the procedure for a job."""
        return self.begins_unasked if self.begins_unasked and side_of(job).acts_unasked else self.begins

    def deadline(self, limits: Limits) -> timedelta | None:
        """Returns the maximum duration of the mode, after which it is terminated. None: it has none."""
        if self.limits is None:
            return None
        return sum((getattr(limits, name) for name in self.limits), limits.clean_up)


IN_PLACE_TRIES = RESCHEDULING_TRIES = SCALE_IN_TRIES = 3
"""Number of tries in one recovery, since other ranks may be lost meanwhile, or new pods may fail."""
OPENING = ("absence", "stop", "settle", "release", "look", "platform_result", "absence", "offers")
REAL = (FaultKind.NODE, FaultKind.POD, FaultKind.PROCESS)

LADDER: tuple[ModeRow, ...] = (
    ModeRow(  # moves the pod to a spare node while training pauses for a moment
        mode=Mode.HOT_SWITCH,
        workflow="HotSwitch",
        procedure="workflows.hot_switch",
        begins="training side prepares",
        about=About.POD,
        serves=(FaultKind.SUB_HEALTH,),
        reasons_against=eligibility.hot_switch,
        limits=(
            "absence",  # the delivery of three orders at most is waited for at length
            "order",
            "absence",
            "backup_scheduled",
            "backup_start",
            "pause",
            "old_pod_deleted",
            "migration_delivered",
            "resume",
            "old_pod_deleted",
        ),
        hands_over=True,
        moves_pods=True,
    ),
    ModeRow(  # repeats the step; no process ends
        mode=Mode.ONLINE_RETRY,
        workflow="OnlineRetry",
        procedure="workflows.online_retry",
        begins="training stops",
        about=About.RANKS,
        serves=(FaultKind.PROCESS,),
        reasons_against=eligibility.online_retry,
        limits=(*OPENING, "absence", "retry"),
        begins_unasked="the step is repeated",
    ),
    ModeRow(  # restarts faulty processes in their pods, with the state of replicas
        mode=Mode.IN_PLACE,
        workflow="InPlaceRecovery",
        procedure="workflows.in_place",
        begins="training stops",
        about=About.RANKS,
        serves=(FaultKind.PROCESS,),
        reasons_against=eligibility.in_place,
        limits=(*OPENING, "rank_table", "absence", "repair") * IN_PLACE_TRIES,
        begins_unasked="faulty processes start again",
    ),
    ModeRow(  # replaces faulty pods on other nodes, with the state of replicas
        mode=Mode.PROCESS_RESCHEDULING,
        workflow="ProcessRescheduling",
        procedure="workflows.process_rescheduling",
        begins="training stops",
        about=About.RANKS,
        serves=REAL,
        reasons_against=eligibility.process_rescheduling,
        limits=(
            *(*OPENING, "rank_table", "replacement_scheduled", "backup_start", "absence", "repair") * RESCHEDULING_TRIES,
            *("old_pod_deleted",) * 2 * eligibility.MOST_REPLACED,  # for each pod that is replaced
        ),
        hands_over=True,
        moves_pods=True,
    ),
    ModeRow(  # goes on without faulty pods, whose shares of the batch the others carry
        mode=Mode.ELASTIC_TRAINING,
        workflow="ElasticTraining",
        procedure="workflows.elastic_training",
        begins="training stops",
        about=About.RANKS,
        serves=REAL,
        reasons_against=eligibility.elastic_training,
        limits=(*OPENING, "absence", "scale_in") * SCALE_IN_TRIES,
        begins_unasked="training goes on with fewer pods",
        repeats=True,
    ),
    ModeRow(  # saves the step at which training stands, for the restart that follows
        mode=Mode.DYING_GASP,
        workflow="DyingGasp",
        procedure="workflows.dying_gasp",
        begins="training stops",
        about=About.RANKS,
        serves=REAL,
        reasons_against=eligibility.dying_gasp,
        limits=(*OPENING, "absence", "dump"),
    ),
    ModeRow(  # replaces faulty pods, and starts the processes of all others again in their pods, from the newest checkpoint
        mode=Mode.POD_RESCHEDULING,
        workflow="PodRescheduling",
        procedure="workflows.pod_rescheduling",
        begins="training stops",
        about=About.RANKS,
        serves=REAL,
        reasons_against=eligibility.pod_rescheduling,
        limits=(
            *(*OPENING, "replacement_scheduled", "backup_start") * RESCHEDULING_TRIES,
            "absence",
            "restart",
            *("old_pod_deleted",) * 2 * eligibility.MOST_REPLACED,  # for each pod that is replaced
        ),
        hands_over=True,
        moves_pods=True,
    ),
    ModeRow(  # restarts all pods on healthy nodes, from the last checkpoint, and cleans up after all other modes
        mode=Mode.JOB_RESCHEDULING,
        workflow="JobRescheduling",
        procedure="workflows.job_rescheduling",
        begins="all pods stop",
        about=About.JOB,
        serves=REAL,
        reasons_against=eligibility.job_rescheduling,
        limits=None,  # all steps have limits, except for the wait for a cluster that does not answer; no mode would follow
        moves_pods=True,
    ),
)

LAST = LADDER[-1]

OPERATIONS: tuple[ModeRow, ...] = (
    ModeRow(  # moves devices to their other link while training pauses
        mode=Mode.LINK_SWITCH,
        workflow="LinkSwitch",
        procedure="workflows.link_switch",
        begins="devices are found",
        about=About.LINKS,
        serves=(),
        reasons_against=eligibility.operation,
        limits=("look", "order", "pause_train", "order", "link_switch", "absence", "continue_train"),
    ),
    ModeRow(  # tests nodes while training pauses, and isolates those with a fault
        mode=Mode.STRESS_TEST,
        workflow="StressTest",
        procedure="workflows.device_check",
        begins="ranks are found",
        about=About.CHECKS,
        serves=(),
        reasons_against=eligibility.operation,
        limits=("look", *("order",) * 4, "absence", "pause_train", "stress_test", "look", "continue_train"),
    ),
    ModeRow(  # changes the number of pods, while training pauses for a moment
        mode=Mode.SCALING,
        workflow="Scaling",
        procedure="workflows.scaling",
        begins="the size is decided",
        about=About.SIZE,
        serves=(),
        reasons_against=eligibility.scaling,
        limits=(
            "look",
            *("backup_scheduled",) * 2,  # for pods of others, and for those that are missing still
            "backup_start",
            "absence",
            "scale_in",
            "scale_out",
            *("old_pod_deleted",) * 4,
        ),
        hands_over=True,
        repeats=True,
    ),
)

MODES = (*OPERATIONS, *LADDER)  # a fault in an operation leads to the ladder


def row_of(mode: Mode) -> ModeRow:
    return next(row for row in MODES if row.mode is mode)
