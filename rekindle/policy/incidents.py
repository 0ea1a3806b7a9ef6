"""Which incident comes next, and what a verdict leaves behind. Pure bookkeeping of `TrainingJob`."""

from datetime import datetime, timedelta

from rekindle.model.base import Value
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.job import Job, SubHealthStrategy
from rekindle.model.keys import DOWNGRADED
from rekindle.model.ranks import written_ranks
from rekindle.model.recovery import Incident, Mode, ModeRequest, Verdict
from rekindle.model.state import KEPT_EPISODES, KEPT_INCIDENTS, Downgrade, JobState, SubHealthyPod
from rekindle.policy import ladder, requests

RESTARTS = 5
"""Job reschedulings of one job within `RESTARTS_WITHIN`, after which the next is given up: a job that dies again and again by its
own fault must not hold its nodes for ever."""
RESTARTS_WITHIN = timedelta(hours=1)
TOO_OFTEN = f"the job was restarted {RESTARTS} times within {RESTARTS_WITHIN}: it needs a look by a person"


KEPT_RANKS = 64
"""Ranks of a fault that stay in the history: all of them, twenty times over, would not fit into one payload."""

KEPT_HELD = 100
"""Real faults that wait until the job's problems are over. Beyond it the oldest go: what is left leads to the same recovery."""


class Case(Value):
    """What an incident is about, decided before it starts."""

    plan: ladder.Plan
    summary: str
    pod_rank: int | None = None
    faults: tuple[Fault, ...] = ()
    request: ModeRequest | None = None


def take_fault(state: JobState, fault: Fault) -> JobState:
    """The state with a fault noted: a sub-health by pod, a real one in the backlog. A known episode changes nothing."""
    if fault.episode in (*state.seen, *state.held) or fault.backup or _is_removed(state, fault.pod_uid):
        return state
    seen = (*state.seen, fault.episode)[-KEPT_EPISODES:]
    if fault.kind is not FaultKind.SUB_HEALTH:
        rejudged = rejudge(state)
        return rejudged.model_copy(update={"seen": seen, "faults": (*state.faults, fault)})
    known = {(pod.pod_rank, pod.fault.episode) for pod in state.sub_healthy}
    pods = tuple(SubHealthyPod(pod_rank=rank, fault=fault) for rank in fault.pod_ranks if (rank, fault.episode) not in known)
    return state.model_copy(update={"seen": seen, "sub_healthy": (*state.sub_healthy, *pods)})


def _is_removed(state: JobState, pod_uid: str) -> bool:
    """Whether a recovery removed this very pod: its end, seen late, is no news."""
    return bool(pod_uid) and any(pod_uid in v.removed_pods for incident in state.history for v in incident.ladder)


def registered(state: JobState, job: Job) -> JobState:
    """The state with what the job's object says now. While a downgrade stands, or is still written into its label, the owner's
    own policy is kept; another policy or other capabilities are a reason to judge sub-healths again."""
    if state.downgrade or DOWNGRADED in job.annotations:
        job = job.model_copy(update={"sub_health": state.job.sub_health})
    return state if job == state.job else rejudge(state.model_copy(update={"job": job}))


def clear_episode(state: JobState, episode: str) -> JobState:
    """The state without a sub-health that is over; the same node may fall ill again under another episode."""
    left = tuple(pod for pod in state.sub_healthy if pod.fault.episode != episode)
    return state.model_copy(update={"sub_healthy": left})


def found_problems(state: JobState, problems: tuple[str, ...]) -> JobState:
    """The state with what keeps the job from being recovered. What was declined for the first of them, and is not any more, is
    judged again."""
    same_reason = state.problems[:1] == problems[:1]
    state = state.model_copy(update={"problems": problems})
    return state if same_reason else rejudge(state.model_copy(update={"held": ()}))


def rejudge(state: JobState) -> JobState:
    """Sub-healths that were refused are judged again: at an attach, the first step, a fault, or when a downgrade is lifted."""
    pods = tuple(pod.model_copy(update={"judged": ""}) for pod in state.sub_healthy)
    return state.model_copy(update={"sub_healthy": pods})


def next_case(state: JobState) -> Case | None:
    """What to do next: real faults first, then requests, then sub-healthy pods that were not judged yet."""
    if waiting := waiting_faults(state):
        return _real_faults(state, waiting)
    if state.requests:
        return _request(state, state.requests[0])
    for pod in state.sub_healthy:
        if not pod.judged:
            return _sub_health(state, pod)
    return None


def waiting_faults(state: JobState) -> tuple[Fault, ...]:
    """Real faults that nothing was decided about."""
    return tuple(fault for fault in state.faults if fault.episode not in state.held)


def _real_faults(state: JobState, faults: tuple[Fault, ...]) -> Case:
    words = "; ".join(describe(fault) for fault in faults[:3])
    more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
    return Case(plan=ladder.for_real_fault(state), summary=f"{words}{more}", faults=faults)


def _request(state: JobState, request: ModeRequest) -> Case:
    faults = tuple(pod.fault for pod in state.sub_healthy if pod.pod_rank == request.pod_rank)
    by = f"requested by {request.requested_by or 'a client'}"
    refused = requests.refused(state, request)  # something may have come before it since it was accepted
    if request.mode is Mode.HOT_SWITCH and request.pod_rank is not None:
        return Case(
            plan=ladder.Plan(refused=refused) if refused else ladder.Plan(modes=ladder.LADDER),
            summary=f"hot switch of pod rank {request.pod_rank}, {by}",
            pod_rank=request.pod_rank,
            faults=faults,
            request=request,
        )
    plan = ladder.Plan(refused=refused) if refused else ladder.for_real_fault(state)
    return Case(plan=plan, summary=f"{request.mode}, {by}", faults=faults, request=request)


def _sub_health(state: JobState, pod: SubHealthyPod) -> Case:
    plan = ladder.for_sub_health(state, pod.pod_rank)
    return Case(plan=plan, summary=describe(pod.fault), pod_rank=pod.pod_rank, faults=(pod.fault,))


def may_restart(state: JobState, now: datetime) -> bool:
    """Whether the job was not restarted too often lately."""
    recent = [moment for moment in state.restarts if now - moment < RESTARTS_WITHIN]
    return len(recent) < RESTARTS


def describe(fault: Fault) -> str:
    """One line on a fault, for summaries."""
    where = fault.node or fault.pod or (f"ranks {written_ranks(fault.ranks)}" if fault.ranks else "")
    code = f" {fault.code}" if fault.code else ""
    words = f": {fault.message}" if fault.message else ""
    return f"{fault.kind.replace('_', '-')} {where}{code}{words}".strip()


def without(state: JobState, case: Case) -> JobState:
    """The state when a case was begun: its faults and its request are no longer waiting. Faults that were declined are held."""
    if case.request:
        return state.model_copy(update={"requests": tuple(r for r in state.requests if r != case.request)})
    if case.pod_rank is None and case.plan.modes:
        return state.model_copy(update={"faults": tuple(f for f in state.faults if f not in case.faults)})
    if case.pod_rank is None:
        kept = state.faults[-KEPT_HELD:]
        return state.model_copy(update={"faults": kept, "held": tuple(fault.episode for fault in kept)})
    return state


def judged(state: JobState, pod_rank: int, why: str) -> JobState:
    """The state with a sub-healthy pod decided upon."""
    pods = tuple(pod.model_copy(update={"judged": why}) if pod.pod_rank == pod_rank else pod for pod in state.sub_healthy)
    return state.model_copy(update={"sub_healthy": pods})


def concluded(state: JobState, incident: Incident) -> JobState:
    """The state after an incident: history, pods that moved, faults that are done with. Pods that were started anew and are on a
    sub-healthy node again are another episode."""
    removed = {uid for verdict in incident.ladder for uid in verdict.removed_pods}
    moved = {switched.pod_rank for verdict in incident.ladder for switched in verdict.switched}
    restarted = max((verdict.restarted_at for verdict in incident.ladder if verdict.restarted_at), default=None)
    pods = () if restarted else tuple(pod for pod in state.sub_healthy if pod.pod_rank not in moved)
    faults = tuple(fault for fault in state.faults if fault.pod_uid not in removed and not _before(fault, restarted))
    history = (*state.history, incident.model_copy(update={"faults": _kept(incident.faults)}))[-KEPT_INCIDENTS:]
    restarts = (*state.restarts, *((restarted,) if restarted else ()))[-RESTARTS:]
    return state.model_copy(update={"history": history, "restarts": restarts, "sub_healthy": pods, "faults": faults})


def _kept(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    return tuple(fault.model_copy(update={"ranks": fault.ranks[:KEPT_RANKS]}) for fault in faults)


def is_told(state: JobState, case: Case, reason: str) -> bool:
    """Whether this very decision is in the history: where a job is only observed, it is judged again and again alike."""
    faults = _kept(case.faults)
    return any(incident.faults == faults and incident.ladder[-1].reason == reason for incident in state.history)


def _before(fault: Fault, restarted: datetime | None) -> bool:
    return restarted is not None and fault.seen_at < restarted


def downgraded(state: JobState, verdict: Verdict, now: datetime) -> JobState:
    """The state after a verdict that lowers the sub-health policy to `ignore`; never that of a job that is only observed."""
    lowers = verdict.policy_after is SubHealthStrategy.IGNORE and state.policy is not SubHealthStrategy.IGNORE
    if not lowers or state.job.observe:
        return state
    reason = Downgrade(reason=verdict.reason, since=now, before=state.policy)
    return state.model_copy(update={"downgrade": reason})
