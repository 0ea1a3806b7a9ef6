"""Chooses the modes that are tried for a fault, and their order. The order itself is `mode_table.LADDER`."""

from datetime import timedelta

from rekindle.model.base import Value
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import Incident, ModeRequest
from rekindle.model.job import SubHealthStrategy, Trait
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import Downgrade, JobState
from rekindle.policy.detection.pod_ranks import ends_with_a_restart
from rekindle.policy.modes import elastic, eligibility
from rekindle.policy.modes.mode_table import LADDER, LAST, row_of

RESTARTS = {Mode.DYING_GASP, Mode.POD_RESCHEDULING, LAST.mode}
"""Modes after which all ranks begin again, with other processes."""


EXITS = {
    SubHealthStrategy.GRACE_EXIT: (Mode.DYING_GASP, LAST.mode),
    SubHealthStrategy.FORCE_EXIT: (LAST.mode,),
}
"""Modes for a sub-healthy pod by which all pods leave, by the policy. Source: the Kubernetes contract."""


UNWANTED = {eligibility.NOT_WANTED, elastic.NOT_ELASTIC}
"""Reasons against modes that the owner of the job did not ask for. They are not told where a restart is left."""

ONCE_WITHIN = timedelta(days=1)
"""Time within which a job is restarted once for the same slow node."""


class Plan(Value):
    """Modes to try for a fault, or the reason why there are none."""

    modes: tuple[Mode, ...] = ()
    provided: tuple[str, ...] = ()
    """Further conditions of the first mode, for a job whose training side is unknown."""

    passed_over: str = ""
    """Reasons against each cheaper mode, if only a restart of the whole job is left."""

    refused: str = ""
    ignored: str = ""


def for_sub_health(state: JobState, pod_rank: int) -> Plan:
    """Returns the plan for a sub-healthy pod, by the policy in force."""
    if state.policy is not SubHealthStrategy.HOT_SWITCH:
        return Plan(ignored=_why_ignored(state.policy, state.downgrade))
    return _from_above(state, FaultKind.SUB_HEALTH, pod_rank)


def for_exit(state: JobState, fault: Fault) -> Plan:
    """Returns the plan for a sub-healthy pod whose job is to be restarted elsewhere, if no scheduler does that.

    One restart is made for a fault within a day: if the pods are on the node again, no other one was free.
    """
    policy = state.policy
    if state.job.has(Trait.CONTROLLER_RECREATES):
        return Plan(ignored=_why_ignored(policy, state.downgrade))
    if _was_restarted_for(state, fault):
        return Plan(ignored=f"the job was restarted for it less than a day ago (policy {policy})")
    if blocker := blocked(state, LAST.mode):
        return Plan(refused=blocker)
    if reasons := LAST.reasons_against(state, None):
        return Plan(refused="; ".join(reasons))
    return Plan(modes=tuple(mode for mode in EXITS[policy] if not row_of(mode).reasons_against(state, None)))


def _was_restarted_for(state: JobState, fault: Fault) -> bool:
    lately = (one for one in state.history if fault.accepted_at and fault.accepted_at - one.started_at < ONCE_WITHIN)
    places = {(one.node, one.code) for incident in lately if _has_restarted(incident) for one in incident.faults}
    return (fault.node, fault.code) in places


def _has_restarted(incident: Incident) -> bool:
    last = incident.ladder[-1]
    return last.mode is LAST.mode and last.outcome is Outcome.RECOVERED


def for_real_faults(state: JobState, kinds: tuple[FaultKind, ...]) -> Plan:
    """Returns the plan for real faults: every mode that serves all of them and has no reason against it. The last mode is always
    included. If it cannot run, its verdict has the reason, since a person has to look."""
    rows = [row for row in LADDER if set(kinds) <= set(row.serves)]
    if blocker := blocked(state, LAST.mode):
        return Plan(refused=blocker)
    against = {row.mode: reasons for row in rows if row is not LAST and (reasons := row.reasons_against(state, None))}
    modes = tuple(row.mode for row in rows if row.mode not in against)
    told = {mode: reasons[0] for mode, reasons in against.items() if not UNWANTED & set(reasons)}
    why = "; ".join(f"no {mode}: {reason}" for mode, reason in told.items()) if not set(modes) - RESTARTS else ""
    return Plan(modes=modes, passed_over=why)


def for_what_is_faulty(state: JobState) -> Plan:
    """Returns the plan for all faults that are known now."""
    if not (real := eligibility.real_faults(state)):
        return Plan(refused=f"nothing of job {state.job.name} is known to be faulty")
    return for_real_faults(state, tuple(dict.fromkeys(fault.kind for fault in real)))


def for_request(state: JobState, mode: Mode, pod_rank: int | None, *, save: bool = False) -> Plan:
    """Returns the plan for a requested mode, regardless of the policy: that mode, then the last one if it fails.

    Args:
        save: the ranks save their state before a restart of the job, if they can, so that it loses no step.
    """
    if blocker := blocked(state, mode):
        return Plan(refused=blocker)
    if reasons := row_of(mode).reasons_against(state, pod_rank):
        return Plan(refused="; ".join(reasons))
    saves = save and mode is LAST.mode and not row_of(Mode.DYING_GASP).reasons_against(state, None)
    before = (Mode.DYING_GASP,) if saves else ()
    return Plan(modes=tuple(dict.fromkeys((*before, mode, LAST.mode))))


def as_requested(state: JobState, request: ModeRequest) -> Plan:
    """Returns the plan for a request. One that leaves out cheaper modes saves nothing either.

    Only a job that is well saves its state. Otherwise a recovery has come to no good end, in which training has saved, or could
    not. A training side that stands since then answers no further opening.
    """
    assert request.mode is not None
    is_well = state.given_up is None and not eligibility.real_faults(state)
    return for_request(state, request.mode, request.pod_rank, save=request.save and request.cheaper and is_well)


def from_mode(state: JobState, first: Mode | None) -> Plan:
    """Returns the plan for all faults that are known now, without the modes of the ladder before `first`."""
    plan = for_what_is_faulty(state)
    if plan.refused or first is None:
        return plan
    cheaper = _before(first)
    return plan.model_copy(update={"modes": tuple(mode for mode in plan.modes if mode not in cheaper)})


def left_out(request: ModeRequest | None) -> tuple[Mode, ...]:
    """Returns the modes that a requester does not want."""
    return _before(request.mode) if request and request.mode and not request.cheaper else ()


def _before(mode: Mode) -> tuple[Mode, ...]:
    order = [row.mode for row in LADDER]
    return tuple(order[: order.index(mode)]) if mode in order else ()


def _from_above(state: JobState, kind: FaultKind, pod_rank: int) -> Plan:
    """Returns the first mode that serves this fault, if nothing speaks against it, and then the last mode."""
    first = next(row for row in LADDER if kind in row.serves)
    plan = for_request(state, first.mode, pod_rank)
    return plan if plan.refused else Plan(modes=plan.modes, provided=eligibility.provided(state, pod_rank))


def blocked(state: JobState, mode: Mode) -> str:
    """Returns why a mode may not begin. Empty: it may. Only the first problem is named; the job's page lists all. The last mode
    may begin if two pods have the same rank, since it recreates all pods."""
    problems = [problem for problem in state.problems if not (mode is LAST.mode and ends_with_a_restart(problem))]
    return f"the job cannot be recovered as it is: {problems[0]}" if problems else ""


def _why_ignored(policy: SubHealthStrategy, downgrade: Downgrade | None) -> str:
    if downgrade:
        return f"the policy was downgraded to ignore: {downgrade.reason}"
    if policy is SubHealthStrategy.IGNORE:
        return "the job's policy is ignore"
    return f"the job's policy is {policy}, which its scheduler carries out"
