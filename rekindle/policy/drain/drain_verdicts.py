"""Decides what happens to a job if a hot switch cannot move its pod away from a node that is drained. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from rekindle.model import bounds
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident
from rekindle.model.job import Drain, Job, NoSpare, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState, Standing
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import cases
from rekindle.policy.modes.cases import Case

MOST_RARELY = timedelta(minutes=30)
"""Maximum time between two tries that each pause training."""

TELL_AGAIN = timedelta(minutes=30)
"""Time between two events with the reason why a drain waits. Kubernetes keeps an event for an hour."""

WAITS = "the drain waits"

WAITS_FOR_SPARE = "the switch waits for a spare"

NO_SPARE = "no spare"
"""Prefix of the reason of a hot switch that found no node for its backup pod."""

WENT_BACK = "the backup pod could not take over, training goes on where it was"
"""Part of the reason of a hot switch that paused training and moved nothing."""

BY_REQUEST = "cancelled by request"
"""Prefix of the reason of a hot switch that a person has cancelled."""

WAITING = (Outcome.IGNORED, Outcome.REFUSED)
"""Outcomes of a hot switch that left training where it was."""

LEFT_AS_IT_WAS = (*WAITING, Outcome.CANCELLED)
"""Outcomes of a hot switch that left training where it was, including a cancellation."""


def is_drain(case: Case) -> bool:
    """Returns whether a case was not requested, and is only about nodes that pods have to leave."""
    return case.request is None and _is_about_leaving(case)


def _is_about_leaving(case: Case) -> bool:
    return bool(case.faults) and all(fault.is_maintenance for fault in case.faults)


def decided(case: Case, state: JobState, now: datetime, verdict: Verdict) -> Verdict:
    """Returns the verdict of a hot switch with the decision of the job's owner for a drain or a missing spare. The policy is not
    downgraded if nothing is wrong with the node. A job that cannot be restarted now waits in any case: its pods run, and the
    drain waits for them."""
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
    if _other_way_follows(case, state, verdict):
        return kept.with_(outcome=Outcome.ESCALATE)
    if drain is Drain.LET_GO:
        return kept
    no_restart = cases.no_restart(state, now, requested=False) if drain is Drain.RESCHEDULE else ""
    if drain is Drain.RESCHEDULE and not no_restart and verdict.outcome is Outcome.IGNORED:
        return kept.with_(outcome=Outcome.ESCALATE, training=Training.LOST)
    return kept.with_(reason=f"{WAITS}: {'; '.join(filter(None, (verdict.reason, no_restart)))}")


def _other_way_follows(case: Case, state: JobState, verdict: Verdict) -> bool:
    """Returns whether the pod leaves the job since a hot switch found no spare, or is switched since training does not go on
    without it."""
    if case.plan.modes[:2] == (cases.GROWTH, Mode.HOT_SWITCH):
        return verdict.mode is cases.GROWTH
    no_spare = verdict.outcome is Outcome.IGNORED and verdict.reason.startswith(NO_SPARE)
    return no_spare and state.job.drain is not Drain.LET_GO and cases.may_leave(state, case.pod_rank)


def _stands(state: JobState, case: Case) -> bool:
    """Returns whether any fault of the case is still seen. A node may be uncordoned while a spare is sought."""
    seen = [one.fault for one in state.faults if one.well_since is None]
    return any(fault.is_part_of(one) for fault in case.faults for one in seen)


def holds(job: Job, case: Case) -> bool:
    """Returns whether the node cannot be drained until the case is handled."""
    return is_drain(case) and job_holds(job)


def job_holds(job: Job) -> bool:
    """Returns whether the ranks of the job have to move before its node is drained. `job.sub_health` has to be the policy in
    force."""
    return job.sub_health is SubHealthStrategy.HOT_SWITCH and job.drain is not Drain.LET_GO and not job.observe


def waits(job: Job, case: Case, last: Verdict) -> bool:
    """Returns whether the case is judged again automatically after some time."""
    if last.outcome is Outcome.IGNORED and last.reason.startswith(WAITS_FOR_SPARE):
        return True
    return is_drain(case) and job.drain is not Drain.LET_GO and last.outcome in WAITING


def _waits_for_spare(job: Job, case: Case, last: Verdict) -> bool:
    """Returns whether the owner wants a retry of the hot switch of a sub-healthy pod that found no spare."""
    of_sub_health = case.request is None and not _is_about_leaving(case)
    no_spare = last.outcome is Outcome.IGNORED and last.reason.startswith(NO_SPARE)
    return of_sub_health and no_spare and job.no_spare is NoSpare.WAIT


def worth_it(verdict: Verdict) -> str:
    """Returns a hint when another try is worth it, for the message of a downgrade. Empty: unknown."""
    if not verdict.reason.startswith(NO_SPARE):
        return ""
    return "; another try is worth it when a node is free: the annotation rekindle.io/no-spare: wait begins it by itself"


def why_held(state: JobState, case: Case, last: Verdict) -> str:
    """Returns why a drain still waits after an incident, for the person who drains the node. Empty: it does not wait, or a real
    fault comes first. A hot switch that a person has cancelled is not retried."""
    holds_still = (
        holds(state.job, case) and _stands(state, case) and state.policy is SubHealthStrategy.HOT_SWITCH and not state.ended
    )
    if not holds_still or last.outcome is Outcome.RECOVERED or last.was_interrupted:
        return ""
    return last.reason if last.reason.startswith(WAITS) else f"{WAITS}: {last.reason}"


def concerned(state: JobState, case: Case, last: Verdict, met: Iterable[Fault]) -> list[Fault]:
    """Returns the faults that are judged by a verdict that repaired nothing. If it left everything unchanged, it does not judge
    sub-healths of other nodes. That a drain waits counts for all drained nodes, except for pods whose hot switch was
    cancelled. The result of a request does not judge a drain.

    Args:
        met: all faults that the last mode was given.
    """
    if last.outcome not in LEFT_AS_IT_WAS or not (case.request or is_drain(case)):
        return [*case.faults, *met]
    own = [fault for fault in case.faults if not (case.request and fault.is_maintenance)]
    cancelled = {one.fault.id for one in state.faults if was_cancelled(one.judged)}
    for_all = waits(state.job, case, last)
    others = (fault for fault in met if fault.kind is not FaultKind.SUB_HEALTH or (for_all and fault.is_maintenance))
    return [*own, *(fault for fault in others if fault.id not in cancelled)]


def waited(history: Iterable[Incident], case: Case) -> Incident | None:
    """Returns the incident in the history that ended in the same wait, of which only the last repetition is kept. None: there is
    none. An incident of an earlier drain of the node is another one."""
    summary, since = bounds.note(case.summary), _since(case)  # the history keeps a summary of this length
    same = (one for one in history if one.summary == summary and one.ladder[-1].reason.startswith((WAITS, WAITS_FOR_SPARE)))
    return next((one for one in same if since is None or since <= one.started_at), None)


def _since(case: Case) -> datetime | None:
    """Returns the earliest time at which a fault of the case was accepted. None: none was."""
    return min((fault.accepted_at for fault in case.faults if fault.accepted_at), default=None)


def is_told(case: Case, before: Incident | None, now: datetime) -> bool:
    """Returns whether to create an event with the reason why a drain waits: at first, and again before the cluster deletes the
    last event."""
    since = _since(case)
    return before is None or (since is not None and (before.started_at - since) // TELL_AGAIN != (now - since) // TELL_AGAIN)


def again_at(job: Job, before: Incident | None, incident: Incident) -> datetime:
    """Returns when the next try to leave the node begins. A try that finds no free node does not affect training. After each
    further try that paused training in vain, the time is doubled.

    Args:
        before: incident of the try before this one; None: this was the first.
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
    """Returns whether a person has cancelled the hot switch. It is then not retried."""
    return judged.startswith(f"{Outcome.CANCELLED}: {BY_REQUEST}")


def is_cancelled(one: Standing) -> bool:
    """Returns whether a person has cancelled the hot switch for the drain of a node. This lasts until the node
    is drained again."""
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
