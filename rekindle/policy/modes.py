"""Every mode in one row: what it is for, whether it may be tried, how it is asked for, what it may take, and its procedure.

The order of `LADDER` is that in which modes are tried for one fault; `OPERATIONS` are begun by people and platforms alone. A new
mode is a row here, its word in `rekindle.model.recovery.Mode`, its waits in `Limits`, and one file with its procedure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from rekindle.model.fault import FaultKind
from rekindle.model.job import TrainingSide
from rekindle.model.limits import Limits
from rekindle.model.recovery import Mode
from rekindle.model.state import JobState
from rekindle.policy import eligibility


class About(Enum):
    """What a mode moves or restarts."""

    POD = "one pod rank, which a request must name"
    RANKS = "the ranks that are faulty, of which the faults tell"
    JOB = "the whole job"
    LINKS = "devices and their links, which a request must name"
    CHECKS = "nodes and the checks on them, which a request must name"


@dataclass(frozen=True)
class ModeRow:
    mode: Mode
    workflow: str
    """Workflow type: a client starts it, the `TrainingJob` runs it as its child."""

    procedure: str
    """Module that defines it."""

    begins: str
    """The first phase of its procedure: given at its start, since each change of an attribute is an event of the history."""

    about: About
    serves: tuple[FaultKind, ...]
    """Faults for which it is tried unasked."""

    reasons_against: Callable[[JobState, int | None], tuple[str, ...]]
    """Why it may not be tried now for this pod rank, in words; none: it may."""

    limits: tuple[str, ...] | None
    """Fields of `Limits` that it may wait for, as often as it may: their sum and `clean_up` are its deadline. None: it has no
    deadline as a whole."""

    begins_unasked: str = ""
    """The same where our own training side is told at once what to do, without a question."""

    def first_phase(self, side: TrainingSide) -> str:
        """The first phase of its procedure with this training side."""
        return self.begins_unasked if self.begins_unasked and side is TrainingSide.REKINDLE else self.begins

    def deadline(self, limits: Limits) -> timedelta | None:
        """How long the mode may take until it is ended; None: until it ends by itself."""
        if self.limits is None:
            return None
        return sum((getattr(limits, name) for name in self.limits), limits.clean_up)


IN_PLACE_TRIES = RESCHEDULING_TRIES = 3
"""Of one recovery, in which other ranks were lost meanwhile, or new pods failed."""
OPENING = ("absence", "stop", "settle", "release", "look", "absence", "offers")
REAL = (FaultKind.NODE, FaultKind.POD, FaultKind.PROCESS)

LADDER: tuple[ModeRow, ...] = (
    ModeRow(  # the pod moves to a spare node, training pauses for a moment
        mode=Mode.HOT_SWITCH,
        workflow="HotSwitch",
        procedure="workflows.hot_switch",
        begins="training side prepares",
        about=About.POD,
        serves=(FaultKind.SUB_HEALTH,),
        reasons_against=eligibility.hot_switch,
        limits=(
            "absence",  # three orders at most are waited for at length
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
    ),
    ModeRow(  # the step is repeated, no process ends
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
    ModeRow(  # faulty processes start again in their pods, and take their state from replicas
        mode=Mode.IN_PLACE,
        workflow="InPlaceRecovery",
        procedure="workflows.in_place",
        begins="training stops",
        about=About.RANKS,
        serves=(FaultKind.PROCESS,),
        reasons_against=eligibility.in_place,
        limits=(*OPENING, "absence", "repair") * IN_PLACE_TRIES,
        begins_unasked="faulty processes start again",
    ),
    ModeRow(  # other pods take over the ranks of faulty ones, on other nodes, and their state from replicas
        mode=Mode.PROCESS_RESCHEDULING,
        workflow="ProcessRescheduling",
        procedure="workflows.process_rescheduling",
        begins="training stops",
        about=About.RANKS,
        serves=REAL,
        reasons_against=eligibility.process_rescheduling,
        limits=(
            *(*OPENING, "replacement_scheduled", "backup_start", "absence", "repair") * RESCHEDULING_TRIES,
            *("old_pod_deleted",) * 2 * eligibility.MOST_REPLACED,  # for each pod that is replaced
        ),
    ),
    ModeRow(  # all pods start again on healthy nodes, from the last checkpoint; it sweeps what any other mode left behind
        mode=Mode.JOB_RESCHEDULING,
        workflow="JobRescheduling",
        procedure="workflows.rescheduling",
        begins="all pods stop",
        about=About.JOB,
        serves=REAL,
        reasons_against=eligibility.job_rescheduling,
        limits=None,  # each step has a limit but the wait for a cluster that does not answer, and nothing would come after it
    ),
)

LAST = LADDER[-1]

OPERATIONS: tuple[ModeRow, ...] = (
    ModeRow(  # devices are moved to their other link while training pauses
        mode=Mode.LINK_SWITCH,
        workflow="LinkSwitch",
        procedure="workflows.link_switch",
        begins="devices are found",
        about=About.LINKS,
        serves=(),
        reasons_against=eligibility.operation,
        limits=("look", "order", "pause_train", "order", "link_switch", "absence", "continue_train"),
    ),
    ModeRow(  # nodes are tested while training pauses; those with a fault are isolated, and training goes on without them
        mode=Mode.STRESS_TEST,
        workflow="StressTest",
        procedure="workflows.stress_test",
        begins="ranks are found",
        about=About.CHECKS,
        serves=(),
        reasons_against=eligibility.operation,
        limits=("look", *("order",) * 4, "absence", "pause_train", "stress_test", "look", "continue_train"),
    ),
)

MODES = (*OPERATIONS, *LADDER)  # a fault in an operation leads to the ladder


def row_of(mode: Mode) -> ModeRow:
    return next(row for row in MODES if row.mode is mode)
