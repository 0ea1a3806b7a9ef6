"""Restarts of a job that were given up: when the next one begins, and which are tried again by themselves. Pure."""

from datetime import datetime, timedelta

from rekindle.model.fault import Fault, FaultKind, FaultReport
from rekindle.model.recovery import Incident, Outcome
from rekindle.model.state import Again, JobState
from rekindle.policy.modes import LAST
from workflows import faults

FAULT = "given-up"
"""Id of the fault of a job that a restart could not bring back, so that it is tried again whatever else is wrong."""

OURS = "rekindle"

SPACED, LONGEST_SPACE = timedelta(seconds=30), timedelta(minutes=5)
"""Pause from a second restart that was given up to the next; it doubles. The first is followed at once: it may have learnt
of a place."""

FIRST, RARELY = timedelta(minutes=1), timedelta(minutes=30)
"""Pause from a restart that could not make pods to the next; it doubles."""


def concluded(state: JobState, incident: Incident) -> JobState:
    """An incident has ended. One that restarted nothing, as where that was done too often, says nothing."""
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
    """The job trains."""
    left = tuple(one for one in state.faults if one.fault.id != FAULT)
    return state.with_(again=None, faults=left) if state.again or len(left) < len(state.faults) else state


def is_due(state: JobState, now: datetime) -> bool:
    """Tells whether what was given up is tried again now."""
    return state.again is not None and state.again.judges and state.again.at <= now


def judged_again(state: JobState) -> JobState:
    """Lets what is still wrong be judged as if it were new."""
    assert state.again is not None
    waited = state.again.model_copy(update={"judges": False})
    return faults.rejudged(state, every=True).with_(again=waited)
