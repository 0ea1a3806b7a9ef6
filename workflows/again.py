"""Retries of restarts that were given up: when the next one begins, and which are retried automatically. Pure."""

from datetime import datetime, timedelta

from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.incident import Incident
from rekindle.model.mode import Outcome
from rekindle.model.state import Again, JobState
from rekindle.policy.modes.mode_table import LAST
from workflows import faults

FAULT = "given-up"
"""Id of the fault of a job that a restart could not bring back. It makes the restart be retried, whatever other faults exist."""

OURS = "rekindle"

SPACED, LONGEST_SPACE = timedelta(seconds=30), timedelta(minutes=5)
"""Pause between restarts that were given up, beginning with the second; it doubles up to the second value.

The first one is followed at once, as it may have found out which nodes to avoid.
"""

FIRST, RARELY = timedelta(minutes=1), timedelta(minutes=30)
"""Pause after a restart that could not create pods; it doubles up to the second value."""


def concluded(state: JobState, incident: Incident) -> JobState:
    """Returns the state after an incident.

    An incident without a restart, for example because restarts were too frequent, changes nothing.
    """
    last = incident.ladder[-1]
    if last.outcome is Outcome.RECOVERED:
        return over(state)
    if last.mode is not LAST.mode or last.outcome is not Outcome.GIVEN_UP or not (last.restarted_at or last.again):
        return state
    tries = (state.again.tries if state.again else 0) + 1
    end = incident.started_at + timedelta(seconds=incident.seconds)
    if not last.again:
        pause = min(LONGEST_SPACE, SPACED * 2 ** min(tries - 2, 10)) if tries > 1 else timedelta(0)
        return state.with_(again=Again(at=end + pause, tries=tries))
    pause = timedelta(0) if last.failed_on and tries == 1 else min(RARELY, FIRST * 2 ** min(tries - 1, 10))
    given_up = Fault(id=FAULT, kind=FaultKind.PROCESS, message=f"a restart was given up for want of {last.again}", source=OURS)
    state = faults.reported(state, FaultReport(faults=(given_up,)), end)
    return state.with_(again=Again(at=end + pause, tries=tries, judges=True))


def over(state: JobState) -> JobState:
    """Returns the state when the job trains again: no retry is due."""
    left = tuple(one for one in state.faults if one.fault.id != FAULT)
    is_over = state.again or state.given_up or len(left) < len(state.faults)
    return state.with_(again=None, given_up=None, faults=left) if is_over else state


def is_due(state: JobState, now: datetime) -> bool:
    """Returns whether a restart that was given up is to be retried now."""
    return state.again is not None and state.again.judges and state.again.at <= now


def judged_again(state: JobState) -> JobState:
    """Returns the state with its remaining faults judged again as if they were new."""
    assert state.again is not None
    waited = state.again.model_copy(update={"judges": False})
    return faults.rejudged(state, every=True).with_(again=waited)
