"""Nodes that are to be left: what becomes of a job whose pod cannot move away from one by a hot switch. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from rekindle.model.job import Drain, Job, SubHealthStrategy
from rekindle.model.recovery import Incident, Outcome, Verdict
from rekindle.model.state import JobState
from rekindle.policy.cases import Case
from rekindle.policy.modes import LAST

MOST_RARELY = timedelta(minutes=30)
"""Between two tries that each cost training a pause."""

WAITS = "the drain waits"

WENT_BACK = "the backup pod could not take over, training goes on where it was"
"""Of the verdict of a hot switch that paused training and moved nothing."""


def is_drain(case: Case) -> bool:
    """Whether it is only about nodes that are to be left, and nobody asked for it."""
    return case.request is None and bool(case.faults) and all(fault.is_maintenance for fault in case.faults)


def decided(case: Case, job: Job, verdict: Verdict) -> Verdict:
    """A hot switch that found no spare lowers no policy where nothing is wrong with the node; what follows is the job's word."""
    if not is_drain(case) or verdict.outcome is not Outcome.IGNORED:
        return verdict
    kept = verdict.with_(policy_after=None)
    if job.drain is Drain.RESCHEDULE:
        return kept.with_(outcome=Outcome.ESCALATE, next_mode=LAST.mode)
    return kept.with_(reason=f"{WAITS}: {verdict.reason}") if job.drain is Drain.WAIT else kept


def holds(job: Job, case: Case) -> bool:
    """Whether the node cannot be drained as long as nothing is done about the case."""
    return is_drain(case) and job_holds(job)


def job_holds(job: Job) -> bool:
    """Whether its ranks are to be moved before their node is drained. The policy is the one in force."""
    return job.sub_health is SubHealthStrategy.HOT_SWITCH and job.drain is not Drain.LET_GO and not job.observe


def waits(job: Job, case: Case, last: Verdict) -> bool:
    """Whether the case is judged again after a while, without anybody's doing."""
    return is_drain(case) and job.drain is Drain.WAIT and last.outcome in (Outcome.IGNORED, Outcome.REFUSED)


def waited(history: Iterable[Incident], case: Case) -> Incident | None:
    """The incident that ended in the same wait: of its repetitions the last one is remembered."""
    same = (one for one in history if one.summary == case.summary and one.ladder[-1].reason.startswith(WAITS))
    return next(same, None)


def again_at(job: Job, before: Incident | None, incident: Incident) -> datetime:
    """When it is tried again to leave the node. A try that finds no free node costs training nothing; of those that pause it for
    nothing, each is followed by the next after twice as long.

    Args:
        before: the try before this one; None: it is the first.
    """
    patience = job.limits.drain_again
    if before and _went_back(before) and _went_back(incident):
        patience = max(patience, min(MOST_RARELY, 2 * (incident.started_at - _end(before))))
    return _end(incident) + patience


def _went_back(incident: Incident) -> bool:
    return WENT_BACK in incident.ladder[-1].reason


def _end(incident: Incident) -> datetime:
    return incident.started_at + timedelta(seconds=incident.seconds)


def is_due(state: JobState, now: datetime) -> bool:
    return state.drain_again is not None and state.drain_again <= now


def judged_again(state: JobState) -> JobState:
    again = (one.model_copy(update={"judged": ""}) if one.fault.is_maintenance else one for one in state.faults)
    return state.with_(faults=tuple(again), drain_again=None)
