"""Unconditional retries: restarts after a pod or process failed, although nobody saw a fault of a node or device.

The label `fault-retry-times` limits them, over the whole life of the job. Source: the Kubernetes contract.
"""

from collections.abc import Iterable

from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.keys import FAULT_RETRY_TIMES
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.policy.modes.mode_table import LAST

SOFTWARE = (FaultKind.POD, FaultKind.PROCESS)
"""Kinds of faults of which the cause is unknown."""


RESTARTS = (Mode.POD_RESCHEDULING, LAST.mode)
"""Modes that use a retry."""


def left(state: JobState) -> int | None:
    """Returns the number of unconditional retries that are left. None: they are not limited."""
    total = state.job.retries
    return None if total is None else max(total - state.retried, 0)


def used_up(state: JobState, faults: Iterable[Fault]) -> str:
    """Returns why a restart for these faults would exceed the budget. Empty: it would not."""
    if left(state) != 0 or is_wanted(state) or not is_unconditional(faults):
        return ""
    return f"a pod failed, no fault of a node or device is known, and {FAULT_RETRY_TIMES}={state.job.retries} is used up"


def is_wanted(state: JobState) -> bool:
    """Returns whether a person wants another try, which no incident has made yet. It may exceed the budget."""
    again = state.tried_again
    return again is not None and all(incident.started_at < again for incident in state.history)


def counted(state: JobState, incident: Incident) -> int:
    """Returns the number of unconditional retries of the job after this incident. Only a restart that succeeded counts."""
    last = incident.ladder[-1]
    was_retried = last.mode in RESTARTS and last.outcome is Outcome.RECOVERED and is_unconditional(incident.faults)
    return state.retried + was_retried


def is_unconditional(faults: Iterable[Fault]) -> bool:
    """Returns whether no cause of these faults is known."""
    known = [fault for fault in faults if not fault.backup]
    return bool(known) and all(fault.kind in SOFTWARE for fault in known)
