"""Facts about a training side on which policy and modes depend."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from rekindle.model.base import Value
from rekindle.model.job import Job
from rekindle.model.stress import Op

AT_ONCE = timedelta(0)


class Readiness(Value):
    """State of the training side as the `TrainingJob` knows it now."""

    attached: bool
    completed_a_step: bool
    """True if a step was completed, or if that is unknown: then the training side itself offers nothing before its first step."""

    lost_manager: str
    """Description of how the job's manager was lost for good. Empty: it was not."""


Check = Callable[[Job, int, Readiness], str]
"""Returns why a pod rank of a job cannot be hot-switched. Empty: nothing is against it."""


@dataclass(frozen=True, kw_only=True)
class TrainingSideRow:
    """Describes a training side. Each fact decides between two ways of a procedure."""

    label: str
    """Name in texts for users."""

    # ---- dialogue

    keeps_every_order: bool
    """True: it carries out each order of an attempt once, so that a new stream gets all of them again. False: it keeps the newest
    order only, and a repeated order is carried out twice."""

    repeats_reports: bool
    """True: it repeats a report until it is received. False: a report that was sent in an outage is lost."""

    waits_for_orders: bool
    """True: it accepts an order at any time, so that an outage of the control plane does not count. False: it exits if no order
    comes within the limit `nextOrder`."""

    successor_continues: bool
    """True: another process of its manager continues the attempts of the previous one. False: the successor knows no rank."""

    reports_its_steps: bool
    """True: it reports its first completed step. False: a job that is attached is assumed to train."""

    pace: timedelta = AT_ONCE
    """Time between two orders if the first one has no answer."""

    routes_settle: timedelta = AT_ONCE
    """Time between the offer of a retry for network faults and its order."""

    # ---- recovery of processes

    acts_unasked: bool
    """True: at a fault it stands, and carries out a strategy before the faults were announced."""

    pods_leave: bool
    """True: all ranks of a pod leave with a normal fault, unless they are restarted in their pod."""

    devices_settle: bool
    """True: other components watch its devices, and need the limits `settle` and `release` before faults are announced."""

    controller_recreates: bool
    """True: the job's controller recreates its pods and places them. False: Rekindle creates new pods."""

    usually_allows: Callable[[Job, str], bool]
    """Returns whether a strategy is allowed if the job's owner names none."""

    registers: Callable[[Job], bool]
    """Returns whether a manager of the job may register. Source: the wire contract, Init."""

    accepts_another: Callable[[int], bool]
    """Returns whether it accepts another announcement after this code of a failed strategy."""

    still_saves: Callable[[int], bool]
    """Returns whether it accepts `dump` after this code of a failed strategy, if it accepts no other announcement."""

    restarts_in_pods: bool = False
    """True: processes of pods that are left start again in their pods by order, and begin together with new pods."""

    # ---- hot switch

    checks: tuple[Check, ...] = ()
    """Further reasons why a pod cannot be hot-switched."""

    fences_old_processes: bool
    """True: training resumes while the old pod still runs, and may go back to it. False: the old pod must be gone first."""

    takes_backups: bool
    """True: it takes a backup pod that runs for a rank, so that a failed backup is a fault of the job."""

    hears_of_backups: bool
    """True: it receives an order when the backup pod runs."""

    survives_stop: bool
    """True: training goes on if the switch is stopped after the pause. False: it exits."""

    # ---- failed pauses

    reports_its_fault: bool
    """True: after a failure it stands, and reports which ranks are faulty. False: its state is unknown."""

    goes_on_by_itself: bool
    """True: training that is paused for an operation goes on if no order comes, and undoes an operation that fails."""

    holds_agents: bool
    """True: its agents restart ended processes, and need an order to wait before devices are tested."""

    # ---- what it can do

    ops: tuple[Op, ...] = field(default=tuple(Op))
    """Operations of a stress test."""

    scales_at_will: bool = False
    """True: it goes on with fewer ranks by order, while nothing is faulty. If it refuses, training goes on as before."""

    returns_at_once: bool = False
    """True: all missing ranks come back together. False: some may come back before others."""

    has_tracing: bool = False
    """True: the measurements of its ranks can be switched."""

    no_standbys: str = ""
    """Reason why a job has no standbys. Empty: it may have some."""
