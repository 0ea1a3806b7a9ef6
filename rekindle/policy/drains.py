"""Nodes that are to be left: what becomes of a job whose pod cannot move away from one by a hot switch. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from rekindle.model import bounds
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Drain, Job, NoSpare, SubHealthStrategy
from rekindle.model.recovery import Incident, Outcome, Training, Verdict
from rekindle.model.state import JobState, Standing
from rekindle.policy import cases
from rekindle.policy.cases import Case

MOST_RARELY = timedelta(minutes=30)
"""Between two tries that each cost training a pause."""

TELL_AGAIN = timedelta(minutes=30)
"""Between two events that say why a drain waits. Kubernetes keeps one for an hour."""

WAITS = "the drain waits"

WAITS_FOR_SPARE = "the switch waits for a spare"

NO_SPARE = "no spare"
"""Beginning of the verdict of a hot switch that found no place for its backup pod."""

WENT_BACK = "the backup pod could not take over, training goes on where it was"
"""Of the verdict of a hot switch that paused training and moved nothing."""

BY_REQUEST = "cancelled by request"
"""How the verdict of a hot switch begins that a person has cancelled."""

WAITING = (Outcome.IGNORED, Outcome.REFUSED)
"""How a hot switch ends that left training where it was."""

LEFT_AS_IT_WAS = (*WAITING, Outcome.CANCELLED)
"""The same, also by whoever cancelled it."""


def is_drain(case: Case) -> bool:
    """Whether it is only about nodes that are to be left, and nobody asked for it."""
    return case.request is None and _is_about_leaving(case)


def _is_about_leaving(case: Case) -> bool:
    return bool(case.faults) and all(fault.is_maintenance for fault in case.faults)


def decided(case: Case, state: JobState, now: datetime, verdict: Verdict) -> Verdict:
    """A hot switch that found no spare lowers no policy where nothing is wrong with the node; what follows is the job's word. A
    job that may not start anew now waits in any case: its pods run, and hold the drain."""
    if _waits_for_spare(state.job, case, verdict):
        return verdict.with_(policy_after=None, reason=f"{WAITS_FOR_SPARE}: {verdict.reason}")
    if not _is_about_leaving(case) or verdict.outcome not in WAITING:
        return verdict
    return _of_a_drain(case, state, now, verdict)


def _of_a_drain(case: Case, state: JobState, now: datetime, verdict: Verdict) -> Verdict:
    kept, drain = verdict.with_(policy_after=None), state.job.drain
    if case.request:
        return kept
    if not _stands(state, case):
        return kept.with_(reason=f"{verdict.reason}; the node is not to be left any more")
    if drain is Drain.LET_GO:
        return kept
    no_restart = cases.no_restart(state, now, requested=False) if drain is Drain.RESCHEDULE else ""
    if drain is Drain.RESCHEDULE and not no_restart and verdict.outcome is Outcome.IGNORED:
        return kept.with_(outcome=Outcome.ESCALATE, training=Training.LOST)
    return kept.with_(reason=f"{WAITS}: {'; '.join(filter(None, (verdict.reason, no_restart)))}")


def _stands(state: JobState, case: Case) -> bool:
    """Whether any of it is seen still: a node may be uncordoned while a spare is sought."""
    seen = [one.fault for one in state.faults if one.well_since is None]
    return any(fault.is_part_of(one) for fault in case.faults for one in seen)


def holds(job: Job, case: Case) -> bool:
    """Whether the node cannot be drained as long as nothing is done about the case."""
    return is_drain(case) and job_holds(job)


def job_holds(job: Job) -> bool:
    """Whether its ranks are to be moved before their node is drained. The policy is the one in force."""
    return job.sub_health is SubHealthStrategy.HOT_SWITCH and job.drain is not Drain.LET_GO and not job.observe


def waits(job: Job, case: Case, last: Verdict) -> bool:
    """Whether the case is judged again after a while, without anybody's doing."""
    if last.outcome is Outcome.IGNORED and last.reason.startswith(WAITS_FOR_SPARE):
        return True
    return is_drain(case) and job.drain is not Drain.LET_GO and last.outcome in WAITING


def _waits_for_spare(job: Job, case: Case, last: Verdict) -> bool:
    """Tells whether the owner wants the hot switch of a sub-healthy pod that found no spare to be tried again."""
    of_sub_health = case.request is None and not _is_about_leaving(case)
    no_spare = last.outcome is Outcome.IGNORED and last.reason.startswith(NO_SPARE)
    return of_sub_health and no_spare and job.no_spare is NoSpare.WAIT


def worth_it(verdict: Verdict) -> str:
    """Returns what would make another try worth it, where a downgrade is told; empty: nobody knows."""
    if not verdict.reason.startswith(NO_SPARE):
        return ""
    return "; another try is worth it when a node is free: the annotation rekindle.io/no-spare: wait begins it by itself"


def why_held(state: JobState, case: Case, last: Verdict) -> str:
    """Behind an incident: for what the drain waits, for whoever drains the node; empty: it does not, or what broke comes first.
    What a person cancelled is not tried again by itself."""
    holds_still = (
        holds(state.job, case) and _stands(state, case) and state.policy is SubHealthStrategy.HOT_SWITCH and not state.ended
    )
    if not holds_still or last.outcome is Outcome.RECOVERED or last.was_interrupted:
        return ""
    return last.reason if last.reason.startswith(WAITS) else f"{WAITS}: {last.reason}"


def concerned(state: JobState, case: Case, last: Verdict, met: Iterable[Fault]) -> list[Fault]:
    """What a verdict decides about that mended nothing. One that left all as it was says nothing of the sub-healths of others;
    that a drain waits counts for all nodes that are to be left, but for pods whose hot switch a person has cancelled; and what a
    person asked for is no word on a drain.

    Args:
        met: faults that the last mode was given, of the case or not.
    """
    if last.outcome not in LEFT_AS_IT_WAS or not (case.request or is_drain(case)):
        return [*case.faults, *met]
    own = [fault for fault in case.faults if not (case.request and fault.is_maintenance)]
    cancelled = {one.fault.id for one in state.faults if was_cancelled(one.judged)}
    for_all = waits(state.job, case, last)
    others = (fault for fault in met if fault.kind is not FaultKind.SUB_HEALTH or (for_all and fault.is_maintenance))
    return [*own, *(fault for fault in others if fault.id not in cancelled)]


def waited(history: Iterable[Incident], case: Case) -> Incident | None:
    """The incident that ended in the same wait: of its repetitions the last one is remembered. That of an earlier drain of the
    node is another."""
    summary, since = bounds.note(case.summary), _since(case)  # as the history keeps it
    same = (one for one in history if one.summary == summary and one.ladder[-1].reason.startswith((WAITS, WAITS_FOR_SPARE)))
    return next((one for one in same if since is None or since <= one.started_at), None)


def _since(case: Case) -> datetime | None:
    """When the node was seen to be left."""
    return min((fault.accepted_at for fault in case.faults if fault.accepted_at), default=None)


def is_told(case: Case, before: Incident | None, now: datetime) -> bool:
    """Whether who drains the node is to hear why that waits: at first, and then before the cluster forgets its events."""
    since = _since(case)
    return before is None or (since is not None and (before.started_at - since) // TELL_AGAIN != (now - since) // TELL_AGAIN)


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


def was_cancelled(judged: str) -> bool:
    """Whether a person has ended the hot switch: then nobody tries it again."""
    return judged.startswith(f"{Outcome.CANCELLED}: {BY_REQUEST}")


def is_cancelled(one: Standing) -> bool:
    """Until its node is to be left anew."""
    return one.fault.is_maintenance and was_cancelled(one.judged)


def is_due(state: JobState, now: datetime) -> bool:
    return state.drain_again is not None and state.drain_again <= now


def judged_again(state: JobState) -> JobState:
    def is_tried(one: Standing) -> bool:
        if one.judged.startswith(f"{Outcome.IGNORED}: {WAITS_FOR_SPARE}"):
            return True
        return one.fault.is_maintenance and not is_cancelled(one)

    again = (one.model_copy(update={"judged": ""}) if is_tried(one) else one for one in state.faults)
    return state.with_(faults=tuple(again), drain_again=None)
