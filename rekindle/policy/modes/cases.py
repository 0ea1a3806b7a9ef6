"""Chooses what a job's workflow does next, from everything that it knows."""

from datetime import datetime, timedelta

from rekindle.model.base import Value
from rekindle.model.bounds import Text, few, numbered
from rekindle.model.fault import WATCHER, Fault, FaultKind
from rekindle.model.links import describe as describe_links
from rekindle.model.mode import Mode
from rekindle.model.state import JobState, Pending, Standing
from rekindle.policy.modes import elastic, eligibility, ladder, loops, requests, retries
from rekindle.policy.modes.mode_table import LAST, About, row_of
from rekindle.policy.training_sides.table import side_of

RESTARTS = 5
"""Number of restarts of one job within the limit `bounds_within`. The next one is given up, since a job that keeps failing by its
own fault must not occupy its nodes for ever."""
TOO_OFTEN = "it needs a look by a person"

GROWTH = Mode.SCALING
"""Mode by which missing replicas come back."""

SOON = timedelta(minutes=1)
"""A real fault counts as present if by its rule it will count within this time."""

NAMED = 3
"""Number of faults that a summary names. It gives the number of the others."""


class Case(Value):
    """Subject and plan of an incident, decided before it starts."""

    plan: ladder.Plan
    summary: Text
    pod_rank: int | None = None
    faults: tuple[Fault, ...] = ()
    request: Pending | None = None
    replicas: int | None = None
    """Number of replicas to which the job is to grow by itself. None: it is not."""

    @property
    def mode(self) -> Mode:
        """The mode that is tried first, or would be."""
        if self.plan.modes:
            return self.plan.modes[0]
        if self.request and self.request.request.mode:
            return self.request.request.mode
        return LAST.mode if self.pod_rank is None else Mode.HOT_SWITCH


def next_case(state: JobState, now: datetime) -> Case | None:
    """Returns what to do now: first real faults, then requests, then sub-healthy pods. None: there is nothing to do now."""
    if state.lost_recovery:
        return lost_recovery(state)
    held = state.given_up is not None and state.given_up.holds
    real = () if held else _real_faults_due(state, now)
    if real and not (state.again and now < state.again.at):
        return _real_faults(state, real)
    stands = bool(real) or held
    if not stands and _counts_soon(state, now):
        return None  # anything that is started now would be interrupted
    if state.request:
        return _request(state, state.request)
    return None if stands else _sub_health_due(state, now) or _growth_due(state, now)


def _growth_due(state: JobState, now: datetime) -> Case | None:
    """Returns the case of a missing replica that is to come back. None: none is, or not yet."""
    if (
        state.small is None
        or not elastic.may_grow(state, now)
        or eligibility.scaling(state, None)
        or ladder.blocked(state, GROWTH)
    ):
        return None
    plan = ladder.Plan(modes=(GROWTH, LAST.mode))
    now_there = elastic.present(state.job, state.small)
    wanted = elastic.next_size(state.job, state.small, at_once=side_of(state.job).returns_at_once)
    summary = f"back from {now_there} of {state.job.layout.replicas} replicas"
    return Case(plan=plan, summary=summary, replicas=wanted)


def _sub_health_due(state: JobState, now: datetime) -> Case | None:
    """Returns the case of the sub-healthy pod whose turn it is. None: there is none, or the job stands, so that no pod is moved
    while it trains."""
    sub_healths = [one.fault for one in state.faults if one.fault.kind is FaultKind.SUB_HEALTH and _counts(one)]
    due = [fault for fault in sub_healths if _due(fault, timedelta(0)) <= now]
    stands = state.given_up is not None and state.given_up.stopped
    return _sub_health(state, _in_turn(state, due)) if due and not stands else None


def lost_recovery(state: JobState) -> Case:
    """Returns the case for a recovery that an earlier workflow of the job had begun. It comes before all other cases."""
    plan = ladder.Plan(modes=(LAST.mode,))
    return Case(plan=plan, summary=f"recovery {state.lost_recovery} was lost with the job's workflow")


def next_due(state: JobState, now: datetime) -> datetime | None:
    """Returns the next time at which a fault begins to count or is over, or a drain or a restart is retried. None: there is no
    such time."""
    sub_healths = [one for one in state.faults if one.fault.kind is FaultKind.SUB_HEALTH]
    over = (one.over_at for one in state.faults if one.over_at and one.over_at > now)
    tried = (state.drain_again, state.again.at if state.again else None, elastic.grows_at(state))
    again = (moment for moment in tried if moment and moment > now)
    moments = (_later(state, _real(state), now), _later(state, sub_healths, now), *again, *over)
    return min(filter(None, moments), default=None)


def _later(state: JobState, standing: list[Standing], now: datetime) -> datetime | None:
    """Returns the next time at which one of these faults begins to count. None: no fault is waiting for that."""
    patience = _patience(state, standing)
    return min((due for one in standing if _counts(one) and (due := _due(one.fault, patience)) > now), default=None)


def _counts_soon(state: JobState, now: datetime) -> bool:
    """Returns whether a real fault that does not count yet is waited for. It is a lost node that may return, or a fault by a rule
    in its last minute. The time that rules and owners set may be days."""
    real = _real(state)
    patience = _patience(state, real)
    return any(
        _counts(one) and now < (due := _due(one.fault, patience)) and (one.fault.decided is None or due <= now + SOON)
        for one in real
    )


def _counts(standing: Standing) -> bool:
    """Returns whether the fault is present and not judged, so that it needs a decision now or later."""
    return not standing.judged and standing.well_since is None


def counting(state: JobState, now: datetime) -> tuple[Fault, ...]:
    """Returns the faults that are sent to a running mode: real faults that count now, and faults of backup pods."""
    patience = _patience(state, _real(state))
    broken = (one.fault for one in state.faults if one.fault.kind is not FaultKind.SUB_HEALTH and one.is_here)
    return tuple(fault for fault in broken if fault.backup or _due(fault, patience) <= now)


def is_broken(state: JobState, now: datetime) -> bool:
    """Returns whether the job has ended, or has a real fault that counts now."""
    return bool(state.ended) or any(not fault.backup for fault in counting(state, now))


def _real(state: JobState) -> list[Standing]:
    real = (one for one in state.faults if one.fault.kind is not FaultKind.SUB_HEALTH and not one.fault.backup)
    return [one for one in real if one.is_here]


def _real_faults_due(state: JobState, now: datetime) -> tuple[Fault, ...]:
    """Returns all real faults that count soon, once one that was not judged counts now. They are recovered together."""
    real = _real(state)
    patience = _patience(state, real)
    if not any(not one.judged and _due(one.fault, patience) <= now for one in real):
        return ()
    return tuple(one.fault for one in real if _due(one.fault, patience) <= now + SOON)


def _patience(state: JobState, real: list[Standing]) -> timedelta:
    """Returns how long a node may be not ready. It is zero if there is also a dead pod or a report of the training side: then the
    node is lost."""
    only_nodes = all(one.fault.kind is FaultKind.NODE for one in real if one.fault.decided is None)
    return state.job.limits.node_lost if only_nodes else timedelta(0)


def _due(fault: Fault, patience: timedelta) -> datetime:
    """Returns when a fault counts. For a fault by a rule that is after the rule's `settle` time."""
    assert fault.accepted_at is not None
    if fault.decided:
        return fault.accepted_at + timedelta(seconds=fault.decided.settle)
    given_time = fault.kind is FaultKind.NODE and fault.source == WATCHER
    return fault.accepted_at + patience if given_time else fault.accepted_at


def _real_faults(state: JobState, faults: tuple[Fault, ...]) -> Case:
    words = "; ".join(describe(fault) for fault in faults[:NAMED])
    more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    plan = ladder.for_real_faults(state, tuple(dict.fromkeys(fault.kind for fault in faults)))
    return Case(plan=plan, summary=f"{words}{more}", faults=faults)


def _request(state: JobState, pending: Pending) -> Case:
    request = pending.request
    assert request.mode is not None
    about_pod = row_of(request.mode).about is About.POD
    refused = requests.refused(state, request)  # something may have happened since the request was accepted
    plan = ladder.Plan(refused=refused) if refused else ladder.as_requested(state, request)
    what = f"{request.mode} of pod rank {request.pod_rank}" if about_pod else f"{request.mode}"
    if request.links:
        what = f"{what} of {describe_links(request.links)}"
    if request.stress:
        what = f"{what} of {few(sorted(request.stress.nodes)) or 'all nodes'}"
    concerned = [one.fault for one in state.faults if about_pod and request.pod_rank in one.fault.pod_ranks]
    return Case(
        plan=plan,
        summary=f"{what}, requested by {request.requested_by or 'a client'}",
        pod_rank=request.pod_rank if about_pod else None,
        faults=tuple(concerned),
        request=pending,
    )


def _in_turn(state: JobState, due: list[Fault]) -> Fault:
    """Returns the first of these faults. If it is about a drain, drains take turns: one that never succeeds must not block the
    others."""
    leave = [fault for fault in due if fault.is_maintenance]
    return leave[state.incidents % len(leave)] if due[0].is_maintenance else due[0]


def _sub_health(state: JobState, fault: Fault) -> Case:
    """Returns the case of a sub-healthy pod. Tries to drain a node are one incident for each pod, so that the summary names the
    pod."""
    pod_rank = fault.pod_ranks[0] if fault.pod_ranks else 0
    summary = f"pod rank {pod_rank}: {describe(fault)}" if fault.is_maintenance else describe(fault)
    exits = state.policy in ladder.EXITS and not fault.is_maintenance
    plan = ladder.for_exit(state, fault) if exits else ladder.for_sub_health(state, pod_rank)
    if fault.is_maintenance and plan.modes and may_leave(state, pod_rank):
        plan = _without_its_pod(state, plan, pod_rank)
    return Case(plan=plan, summary=summary, pod_rank=pod_rank, faults=(fault,))


def may_leave(state: JobState, pod_rank: int | None) -> bool:
    """Returns whether the job can train without this pod, which has to leave its node."""
    if pod_rank is None or not side_of(state.job).scales_at_will or eligibility.scaling(state, None):
        return False
    return not elastic.too_few(state.job, state.small, (pod_rank,))


def _without_its_pod(state: JobState, plan: ladder.Plan, pod_rank: int) -> ladder.Plan:
    """Returns the plan for a node that goes away: the pod leaves if no spare node is found for it. If its owner wants no wait for
    one and there is no standby, the pod leaves at once. A spare node is sought if training does not go on without it."""
    first, *others = plan.modes
    if elastic.takes_only_standbys(state.job, state.small, (pod_rank,)) and not elastic.stands_by(state):
        return plan.model_copy(update={"modes": (GROWTH, first, *others)})
    return plan.model_copy(update={"modes": (first, GROWTH, *others)})


def no_restart(state: JobState, now: datetime, *, requested: bool, whole: bool = True) -> str:
    """Returns why the job is not restarted now. Empty: it can be. Only requests of people may exceed the number of restarts.

    Args:
        whole: True if all of its pods are recreated.
    """
    within = state.job.limits.bounds_within
    recent = [moment for moment in state.restarts if now - moment < within]
    too_often = f"the job was restarted {RESTARTS} times within {within}: {TOO_OFTEN}" if len(recent) >= RESTARTS else ""
    exceeded = retries.used_up(state, eligibility.real_faults(state)) or loops.hopeless(state) or too_often
    return (whole and state.job.no_restart) or ("" if requested else exceeded)


def describe(fault: Fault) -> str:
    """Returns a description of a fault in one line, for summaries."""
    is_of_pods = fault.kind is FaultKind.POD  # the message names pod ranks
    where = fault.node or fault.pod or (numbered("rank", fault.ranks) if fault.ranks and not is_of_pods else "")
    code = f" {fault.code}" if fault.code else ""
    words = f": {fault.message}" if fault.message else ""
    words += f" (rule {fault.decided.rule})" if fault.decided else ""
    return f"{fault.kind.replace('_', '-')} {where}".strip() + f"{code}{words}"
