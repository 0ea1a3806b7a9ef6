"""Recoveries that were given up or aborted: how they become part of the job's state, and how that ends. Pure."""

from datetime import datetime, timedelta

from rekindle.model import bounds
from rekindle.model.fault import TRAINING_SIDE, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.mode import Outcome
from rekindle.model.state import Again, GivenUp, JobState, Pending
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes.eligibility import real_faults
from rekindle.policy.modes.job_phase import has_trained, phase
from workflows import faults

STANDS = (Training.WHOLE, Training.SAVES, Training.SUSPECT)
"""States in which a mode leaves training that has stopped."""


def after(state: JobState, incident: Incident) -> GivenUp | None:
    """Returns the recovery that is given up after an incident. None: there is none."""
    last = incident.ladder[-1]
    if last.outcome is Outcome.RECOVERED:
        return None
    if last.outcome is not Outcome.GIVEN_UP:
        return state.given_up
    end = incident.started_at + timedelta(seconds=incident.seconds)
    stopped = any(verdict.restarted_at for verdict in incident.ladder)
    reason, limited = bounds.note(last.reason), stopped or _stands(incident)
    return GivenUp(since=end, incident=incident.number, mode=last.mode, reason=reason, stopped=stopped, limited=limited)


def _stands(incident: Incident) -> bool:
    """Returns whether training is known to stand after the incident.

    A node that is not ready, or a lost manager, may leave it untouched. Pods of such a job may train, and are not ended.
    """
    is_broken = any(fault.kind is FaultKind.POD or fault.source == TRAINING_SIDE for fault in incident.faults)
    return is_broken or any(verdict.training in STANDS for verdict in incident.ladder)


def aborted(state: JobState, verdict: Verdict, incident: int, now: datetime) -> JobState:
    """Returns the state after a person has aborted an incident: nothing more is done about the present faults."""
    words = f"{verdict.outcome}: {verdict.reason}"
    stopped = verdict.restarted_at is not None or _is_stopped(state)  # an earlier restart may have come to no step
    given_up = GivenUp(
        since=now, incident=incident, mode=verdict.mode, reason=bounds.note(verdict.reason), aborted=True, stopped=stopped
    )
    standing = tuple(faults.judged(state.faults, [one.fault for one in state.faults], words))
    return without(state.with_(faults=standing, again=None, given_up=given_up))


def _is_stopped(state: JobState) -> bool:
    return state.given_up is not None and state.given_up.stopped


def words(state: JobState) -> str:
    """Returns why nothing more is done for the job, and what became of its pods. Empty: it was not given up."""
    if state.given_up is None:
        return ""
    return "; ".join(filter(None, (state.given_up.reason, state.given_up.pods)))


def without(state: JobState) -> JobState:
    """Returns the state in which a recovery that was given up no longer matters, if nothing is faulty and the job trains."""
    given_up = state.given_up
    if given_up is None or given_up.stopped or real_faults(state) or not has_trained(phase(state.with_(given_up=None), None)):
        return state
    return state.with_(given_up=None)


def retried(state: JobState, request: Pending, now: datetime) -> JobState:
    """Returns the state in which a person wants another try: the ladder begins again, and may restart the job once more.

    Args:
        request: request for a restart, which is made if the job stands and nothing is known to be faulty.
    """
    stands = state.given_up is not None
    has_begun = state.again is None and not _is_stopped(state)
    again = None if has_begun else Again(at=now, tries=0)  # it has not completed a step since its pods were stopped
    state = faults.rejudged(state, every=True, mended=True)
    state = state.with_(again=again, given_up=None, restarts=(), repairs=(), tried_again=now)
    return state.with_(request=request) if stands and not real_faults(state) else state
