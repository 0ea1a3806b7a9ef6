"""State of a job's workflow, and how each message changes it: one pure function per message, from state to state.

Called by the handlers of `TrainingJob` and by `workflows.incident`. Faults, which are differences, have `workflows.faults`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from rekindle.ids import incident_of, is_recovery_of, recovery_workflow
from rekindle.model import bounds
from rekindle.model.account import TimeReport
from rekindle.model.activities.jobs import Survey
from rekindle.model.attachment import Attachment, Progress
from rekindle.model.fault import EXPECTED_HOLDER, HOLDERS, TRAINING_SIDE, WATCHER, Fault, FaultKind, FaultReport, Sighting
from rekindle.model.incident import Incident
from rekindle.model.job import ManagerLost, SubHealthStrategy
from rekindle.model.keys import DOWNGRADED
from rekindle.model.links import OnBackup
from rekindle.model.mode import Outcome
from rekindle.model.situation import PodRef, Switched
from rekindle.model.sizes import LONGEST_NOTE
from rekindle.model.state import (
    KEPT_ANSWERS,
    KEPT_REFUSING,
    KEPT_REPORTS,
    Answered,
    Downgrade,
    JobState,
    Pending,
    Refusing,
    Registration,
    Remembered,
)
from rekindle.model.verdict import Verdict
from rekindle.policy.account import ledger
from rekindle.policy.detection import refusals
from rekindle.policy.detection.pod_ranks import count_problem, is_of_count
from rekindle.policy.drain import drain_verdicts
from rekindle.policy.modes import contract_words, elastic, retries
from rekindle.policy.modes.cases import RESTARTS, Case, lost_recovery
from rekindle.policy.modes.eligibility import MOST_REPAIRS, is_behind_an_operation, recovery_is_on
from rekindle.policy.modes.mode_table import LAST, MODES, About, row_of
from rekindle.policy.operations import links
from rekindle.policy.training_sides.table import side_of
from workflows import again, attachments, faults, given_up, history

KEPT_PODS = 20
"""Maximum number of remembered pods that were left behind. More of them mean that the cluster deletes no pods."""

OF_NODES = (FaultKind.NODE, FaultKind.SUB_HEALTH, FaultKind.PROCESS)
"""Kinds of faults that a look finds at nodes, and not at the job's pods."""

REFUSES = timedelta(minutes=10)
"""Time for which new pods avoid a node that has refused one. A device plugin starts minutes after its node."""

LONGEST_ID = 64
"""Maximum length of a remembered update id. Repetitions with a longer id, which a client chose itself, are not recognized."""

OURS = "rekindle"
"""Source of faults that a recovery left."""

# ---- messages of the watcher


def registered(state: JobState, registration: Registration, now: datetime) -> JobState:
    """Returns the state after a registration, with new labels and limits.

    What an earlier workflow knew is read from the job's object.
    """
    job = registration.job
    if not state.registered:
        now_held = registration.sighting.holders if registration.sighting else ()
        holders = _as_moved(registration.holders, registration.remembered.moved, now_held)
        state = _remembered(state, registration, now)
        account = ledger.registered(state.account, now.timestamp())
        state = state.with_(registered=True, holders=holders, unswept=contract_words.are_used(job), account=account)
    if DOWNGRADED in job.annotations and job.sub_health is SubHealthStrategy.IGNORE:
        job = job.model_copy(update={"sub_health": _owners_word(state)})  # we wrote `ignore` into the label
    return elastic.without_missing(state if job == state.job else faults.rejudged(state.with_(job=job), every=True))


def _remembered(state: JobState, registration: Registration, now: datetime) -> JobState:
    """Returns the state with what the previous workflow of the job wrote onto its object.

    Anybody may write there, so an id that is no recovery of this job is ignored. A recovery is noted after its start, so one may
    exist without a note.
    """
    known = registration.remembered
    restarts = tuple(moment for moment in known.restarts if moment <= now)[-RESTARTS:]
    had_another = bool(known.job or registration.holders)
    perhaps = recovery_workflow(state.job, known.incidents + 1, MODES[0].mode) if had_another else ""
    recovery = known.recovery if is_recovery_of(state.job, known.recovery) else perhaps
    state = state.with_(
        incidents=known.incidents,
        restarts=restarts,
        retried=known.retried,
        lost_recovery=recovery,
        left_behind=known.left_behind[-KEPT_PODS:],
        links=known.links,
        small=known.small,
        given_up=known.given_up if known.given_up and known.given_up.holds else None,  # all else is decided again
        misses_stream=had_another and not state.introduced and recovery_is_on(registration.job),
    )
    if reason := known.downgrade or ("" if known.incidents else registration.job.annotations.get(DOWNGRADED, "")):
        return state.with_(downgrade=Downgrade(reason=reason, since=now, before=known.policy_before))
    return state


def _as_moved(holders: tuple[str, ...], moved: Iterable[Switched], now: Sequence[str]) -> tuple[str, ...]:
    """Returns the holders with each replaced pod exchanged for its successor.

    The watcher knows only the replaced ones, and a takeover by a recovery is no fault. A rank that was missing had no holder any
    more, while the watcher knows the last one. Where that pod holds the rank now, the takeover is older.

    Args:
        now: holders of the present sighting. Empty: unknown.
    """
    after = {(one.pod_rank, faults.short(one.before.uid)): faults.short(one.after.uid) for one in moved}
    came = {rank: uid for (rank, before), uid in after.items() if not before and holders[rank : rank + 1] != now[rank : rank + 1]}
    return tuple(after.get((rank, uid)) or came.get(rank, uid) for rank, uid in enumerate(holders))


def to_remember(state: JobState, recovery: str) -> Remembered:
    """Returns what is stored on the job's object, in case this workflow is lost."""
    down = state.downgrade
    return Remembered(
        incidents=state.incidents,
        job=state.job.id,
        recovery=recovery,
        downgrade=down.reason if down else "",
        policy_before=down.before if down else SubHealthStrategy.HOT_SWITCH,
        restarts=state.restarts,
        retried=state.retried,
        left_behind=state.left_behind,
        links=state.links,
        small=state.small,
        given_up=state.given_up,
        moved=tuple(one for incident in state.history[-1:] for verdict in incident.ladder for one in verdict.switched),
    )


def last_verdict(state: JobState) -> str:
    """Describes the outcome of the last incident, for people; empty: there was none."""
    return f"{state.history[-1].verdict}: {state.history[-1].ladder[-1].mode}" if state.history else ""


def _owners_word(state: JobState) -> SubHealthStrategy:
    return state.downgrade.before if state.downgrade else state.job.sub_health


def sighted(state: JobState, sighting: Sighting, now: datetime, *, restarting: bool) -> JobState:
    """Returns the state after a sighting of pods and nodes.

    While a mode restarts all pods, holders of ranks are determined at its end.
    """
    if elastic.is_whole(state, sighting):
        state = state.with_(small=None) if restarting else elastic.whole_again(state)
    state = elastic.pods_that_come(state, sighting)
    sighting = elastic.seen(state, sighting)
    told = _with_problems(state.with_(standbys=sighting.standbys, storm=sighting.storm), sighting.problems)
    told = with_refusing(told, refusals.refusing(sighting.faults), now)
    state = faults.seen(told, sighting, now, restarting=restarting)
    return _with_manager(state, sighting.manager, now, restarting=restarting)  # after a restart the manager is not new


def with_refusing(state: JobState, names: tuple[str, ...], now: datetime) -> JobState:
    """Returns the state in which new pods avoid, for a while, nodes on which pods of the job have just failed to start."""
    if not names:
        return state
    others = (one for one in state.refusing if one.node not in names)
    known = (*others, *(Refusing(node=name, at=now) for name in names))
    return state.with_(refusing=known[-KEPT_REFUSING:])


def refusing(state: JobState, now: datetime) -> tuple[str, ...]:
    """Returns the nodes that have recently refused pods of the job, or on which pods did not start."""
    return tuple(one.node for one in state.refusing if now - one.at < REFUSES)


def _with_problems(state: JobState, of_pods: tuple[str, ...]) -> JobState:
    """Returns the state with the problems that keep the job from being recovered.

    What was judged for another reason is judged again.

    Args:
        of_pods: why its pods cannot be distinguished.
    """
    counted = count_problem(state.job, state.progress.ranks) if state.progress else ""
    problems = (*filter(None, [counted]), *of_pods)
    if state.problems[:1] != problems[:1]:
        state = faults.rejudged(state, every=True)
    return state.with_(problems=problems)


def _with_manager(state: JobState, manager: str, now: datetime, *, restarting: bool) -> JobState:
    """Returns the state after a sighting of the manager.

    If the manager has its own pod, its replacement is noticed before it attaches.
    """
    another = bool(state.manager and manager and manager != state.manager)
    state = state.with_(manager=manager or state.manager)
    if not another or restarting or side_of(state.job).successor_continues:
        return state
    return _manager_is_lost(state, f"manager {manager} is another process", manager, now)


def _manager_is_lost(state: JobState, how: str, name: str, now: datetime) -> JobState:
    """Stores that the manager was lost. This is also a fault if the job's owner has configured it so."""
    state = state.with_(manager_lost=how)
    if state.job.manager_lost is not ManagerLost.RESTART:
        return state
    lost = Fault(
        id=f"{faults.LOST_MANAGER}{name}", kind=FaultKind.PROCESS, message=f"the manager was lost: {how}", source="gateway"
    )
    return faults.reported(state, FaultReport(faults=(lost,)), now)


# ---- messages of the training side


def attached(state: JobState, attachment: Attachment, now: datetime, *, restarting: bool) -> JobState:
    """Returns the state when the job's stream is at this gateway.

    What could not be done without a stream is judged again. A new manager process may know none of its ranks.
    """
    before, was_here = state.manager_lost, state.introduced and state.attachment != attachment
    side = side_of(state.job)
    if not (side.reports_its_steps or restarting):  # the stream is the only sign that the job trains again
        state = again.over(state)
    state = faults.rejudged(attachments.attached(state, attachment, restarting=restarting))
    if was_here and not (restarting or side.repeats_reports):
        state = state.with_(unsure_since=now)
    if not side.reports_its_steps:
        state = state.with_(account=ledger.attached(state.account, now.timestamp(), state.job.ranks))
    if state.manager_lost in ("", before):
        return state
    return _manager_is_lost(state, state.manager_lost, attachment.session, now)


def progressed(state: JobState, progress: Progress, now: datetime, *, recovering: bool) -> JobState:
    """Returns the state after the first completed step of a training side.

    A message from a training side that has ended is ignored.
    """
    if progress.session in state.former:
        return state
    before = state.progress
    if before and before.incarnation != progress.incarnation and not recovering:
        state = faults.of_a_new_life(state)  # as small as it was: a manager that follows another one reports its first step too
    of_pods = tuple(one for one in state.problems if not is_of_count(one))
    state = state.with_(progress=progress, account=ledger.stepped(state.account, now.timestamp()))
    return faults.rejudged(_with_problems(again.over(state), of_pods))


def timed(state: JobState, report: TimeReport, *, recovering: bool) -> JobState:
    """Returns the state with a report for how long the job has trained."""
    return state.with_(account=ledger.told(state.account, report, recovering=recovering))


def reported(state: JobState, report: FaultReport, now: datetime, *, recovering: bool = False, update_id: str = "") -> JobState:
    """Returns the state with faults that the training side or a person reported.

    Args:
        update_id: of the report. The server recognizes a repeated update only within one run of the workflow.
    """
    if update_id in state.reports:
        return state
    if 0 < len(update_id) <= LONGEST_ID:
        state = state.with_(reports=(*state.reports, update_id)[-KEPT_REPORTS:])
    if any(fault.source == TRAINING_SIDE for fault in report.faults):
        state = state.with_(unsure_since=None)
    return faults.reported(state, report, now, recovering=recovering)


# ---- requests


def requested(state: JobState, request: Pending) -> JobState:
    return state.with_(request=request)


def answered(state: JobState, request_id: str, verdict: Verdict) -> JobState:
    """Returns the state when a request has its verdict.

    The verdict is stored, so that a repeated request does not begin the mode again. The latest ones contain what was moved, and
    which pods have left or come back.
    """
    resized = verdict.resized and verdict.resized.model_copy(update={"places": ()})
    whole = history.short(verdict, LONGEST_NOTE).with_(switched=verdict.switched[:1], resized=resized)
    answer = Answered(id=request_id, verdict=whole)
    waiting = None if state.request and state.request.id == request_id else state.request
    known = [
        Answered(id=one.id, verdict=history.short(one.verdict, history.SHORT)) for one in state.answers[: 1 - history.KEPT_WHOLE]
    ]
    return state.with_(request=waiting, answers=(*known, *state.answers[1 - history.KEPT_WHOLE :], answer)[-KEPT_ANSWERS:])


def withdrawn(state: JobState, request_id: str) -> JobState:
    """Stores that the requester gave up before the mode began, or before the request arrived. The mode will not begin."""
    asked = state.request.request.mode if state.request and state.request.id == request_id else None
    reason = "cancelled by request, before it began"
    return answered(state, request_id, Verdict(mode=asked or LAST.mode, outcome=Outcome.CANCELLED, reason=reason))


def answer_of(state: JobState, request_id: str) -> Verdict | None:
    return next((answer.verdict for answer in state.answers if answer.id == request_id), None)


# ---- links


def with_links(state: JobState, verdict: Verdict) -> JobState:
    """Returns the state after links were moved.

    It is stored at once, as the rest of the incident may be lost with the job's workflow.
    """
    if verdict.moved_links is None:
        return state
    return state.with_(links=links.moved(state.links, verdict.moved_links, verdict.moved_by))


def without_links(state: JobState, over: Iterable[OnBackup]) -> JobState:
    """Removes links that are no longer on their backup, as the pods were replaced and the new ones began on their first links."""
    return state.with_(links=links.without(state.links, (rank for one in over for rank in one.ranks)))


# ---- the sub-health policy


def downgraded(state: JobState, verdict: Verdict, now: datetime) -> JobState:
    """Returns the state in which a verdict has lowered the sub-health policy from `hotSwitch` to `ignore`.

    Other policies are not changed.
    """
    lowers = verdict.policy_after is SubHealthStrategy.IGNORE and state.policy is SubHealthStrategy.HOT_SWITCH
    if not lowers or state.job.observe:
        return state
    return state.with_(downgrade=Downgrade(reason=verdict.reason, since=now, before=state.policy))


def surveyed(state: JobState, survey: Survey, now: datetime) -> JobState:
    """Returns the state after our own look at the cluster. Information about nodes that were not read stays."""
    seen = (one.fault for one in state.faults if one.fault.source == WATCHER and one.well_since is None)
    elsewhere = [fault for fault in seen if fault.kind in OF_NODES]
    kept = tuple(fault for fault in elsewhere if fault.node and fault.node not in survey.nodes)
    sighting = survey.sighting
    whole = Sighting(
        holders=sighting.holders,
        generation=sighting.generation,
        manager=sighting.manager,
        faults=(*sighting.faults, *kept),
        problems=sighting.problems,
        standbys=sighting.standbys,
        unbelieved=sighting.unbelieved,
        storm=state.storm,  # known by the watcher alone, which sees all nodes
    )
    return sighted(state, whole, now, restarting=False)


def lifted(state: JobState) -> JobState:
    return faults.rejudged(state.with_(downgrade=None))


# ---- incidents


def begun(state: JobState, case: Case) -> JobState:
    """Returns the state when an incident begins: it has its number, and its request is no longer waiting."""
    waiting = None if case.request else state.request
    return state.with_(incidents=state.incidents + 1, request=waiting, lost_recovery="")


def found(state: JobState, recovery: str) -> JobState:
    """Returns the state with the last recovery that an earlier workflow of the job had started; empty: none.

    That recovery may not have been noted on the job's object.
    """
    return state.with_(lost_recovery=recovery, incidents=max(state.incidents, incident_of(recovery)))


def left_half_done(state: JobState, how: str, now: datetime) -> JobState:
    """Adds a fault for a lost recovery that did not end well, of a job that is only observed by now.

    The fault stands for as long as no action is allowed.
    """
    fault = Fault(id=state.lost_recovery, kind=FaultKind.PROCESS, message=how, source=OURS)
    return faults.reported(state.with_(lost_recovery=""), FaultReport(faults=(fault,)), now)


def settled(state: JobState, verdicts: Sequence[Verdict], now: datetime) -> JobState:
    """Ends the incident of a lost recovery that came to its end.

    Without a verdict the recovery did nothing, and no incident is stored.

    Args:
        verdicts: those of the modes of the incident, in their order, as far as they are known.
    """
    case = lost_recovery(state)
    state = state.with_(lost_recovery="")
    if not verdicts:
        return state
    for verdict in verdicts:
        state = with_links(downgraded(state, verdict, now), verdict)
    seconds = sum(verdict.seconds for verdict in verdicts)
    incident = Incident(
        number=state.incidents,
        summary=case.summary,
        started_at=now - timedelta(seconds=seconds),
        seconds=seconds,
        verdict=verdicts[-1].outcome,
        ladder=tuple(verdict.with_(unread=(), situation=None) for verdict in verdicts),
        policy_after=state.policy,
    )
    return concluded(state, case, incident)


def judged(state: JobState, case: Case, why: str) -> JobState:
    """Returns the state in which the faults of a case are judged: nothing more is done about them unless they change."""
    return state.with_(faults=tuple(faults.judged(state.faults, case.faults, why)))


def was_observed(state: JobState, case: Case, reason: str) -> bool:
    """Returns whether this decision is already in the history.

    An observed job is judged repeatedly with the same result. The faults of older incidents are not stored; a fault that came
    back or has grown was accepted after them.
    """
    since = max((fault.accepted_at for fault in case.faults if fault.accepted_at), default=None)
    said = bounds.note(case.summary), bounds.cut(reason, history.SHORT)
    for incident in state.history:
        is_newer = since is not None and since > incident.started_at
        if not is_newer and (incident.summary, bounds.cut(incident.ladder[-1].reason, history.SHORT)) == said:
            return True
    return False


def observed(state: JobState, case: Case, reason: str, now: datetime) -> JobState:
    """Stores what would have been done for a job that is only observed, as a separate incident."""
    state = judged(state, case, reason)
    if was_observed(state, case, reason):
        return state
    incident = Incident(
        number=state.incidents + 1,
        summary=case.summary,
        started_at=now,
        seconds=0.0,
        verdict=Outcome.REFUSED,
        ladder=(Verdict(mode=case.mode, outcome=Outcome.REFUSED, reason=reason),),
        policy_after=state.policy,
        faults=tuple(faults.brief(fault) for fault in case.faults),
    )
    return state.with_(incidents=incident.number, history=history.kept((*state.history, incident)), lost_recovery="")


def concluded(state: JobState, case: Case, incident: Incident, met: Iterable[Fault] = ()) -> JobState:
    """Returns the state when an incident has ended.

    The incident is in the history, ranks have their new holders, and repaired faults are removed.

    Args:
        met: faults that its last mode was given, of the case or not. No mode begins again for those that it could not repair.
    """
    restarts = [verdict.restarted_at for verdict in incident.ladder if verdict.restarted_at]
    begun = [verdict.restarted_at for verdict in incident.ladder if verdict.restarted_at and not _made_no_pods(verdict)]
    last = incident.ladder[-1]
    if last.mode in retries.RESTARTS and last.switched:
        begun = [*begun, incident.started_at]  # as many of them need a person as restarts of the whole job
    is_repair = last.went_on_at and row_of(last.mode).about is About.RANKS and not is_behind_an_operation(incident.ladder)
    repairs = [incident.started_at] if is_repair else []
    is_wait = drain_verdicts.waits(state.job, case, incident.ladder[-1])
    repeated = drain_verdicts.waited(state.history, case) if is_wait else elastic.repeated(state.history, case.summary, last)
    state = state.with_(
        history=history.kept((*(one for one in state.history if one != repeated), incident)),
        restarts=(*state.restarts, *begun)[-RESTARTS:],
        retried=retries.counted(state, incident),
        repairs=(*state.repairs, *repairs)[-MOST_REPAIRS:],
        holders=_held(state, incident.ladder),
        left_behind=_left_behind(state, incident.ladder),
        manager_lost="" if restarts else state.manager_lost,
        asked=state.asked and not restarts,
        given_up=given_up.after(state, incident),
        faults=tuple(faults.left(state, case, incident)),
        account=ledger.concluded(state.account, incident, reports_steps=side_of(state.job).reports_its_steps),
    )
    for verdict in incident.ladder:
        state = elastic.resized(state, verdict, _end_of(incident))
    if case.replicas is not None:
        state = elastic.tried(state, last, _end_of(incident))
    if restarts:
        state = attachments.restarted(state)
    if restarts or last.went_on_at:
        state = state.with_(unsure_since=None)
    state = again.concluded(state, incident)
    if last.outcome is Outcome.RECOVERED:
        return state
    if is_wait:
        state = state.with_(drain_again=drain_verdicts.again_at(state.job, repeated, incident))
    about = [
        *drain_verdicts.concerned(state, case, last, met),
        *(one.fault for one in state.faults if one.fault.id == again.FAULT),
    ]
    return state.with_(faults=tuple(faults.judged(state.faults, about, f"{last.outcome}: {last.reason}")))


def _end_of(incident: Incident) -> datetime:
    return incident.started_at + timedelta(seconds=incident.seconds)


def _made_no_pods(verdict: Verdict) -> bool:
    return bool(verdict.again) and not verdict.failed_on


def _held(state: JobState, verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Returns the holders of the ranks after an incident.

    After a restart each rank is expected to be held, by the first pod that is seen. A rank that was switched passes to the backup
    pod, if the replaced pod still holds it or its holder had been lost. Otherwise the verdict is older than the last look.
    """
    ladder = list(verdicts)
    if any(verdict.restarted_at for verdict in ladder):
        return (EXPECTED_HOLDER,) * state.job.pods
    lost = {rank for one in state.faults if one.fault.id == HOLDERS for rank in one.fault.pod_ranks}
    holders = list(state.holders)
    for one in (one for verdict in ladder for one in verdict.switched if one.pod_rank < len(holders)):
        if one.pod_rank in lost or holders[one.pod_rank] == faults.short(one.before.uid):
            holders[one.pod_rank] = faults.short(one.after.uid)
    return tuple(holders)


def _left_behind(state: JobState, verdicts: Iterable[Verdict]) -> tuple[PodRef, ...]:
    """Returns the pods that are left behind after these verdicts. A restart deletes all of them."""
    left = state.left_behind
    for verdict in verdicts:
        left = () if verdict.restarted_at else tuple(dict.fromkeys((*left, *verdict.left_behind)))[-KEPT_PODS:]
    return left
