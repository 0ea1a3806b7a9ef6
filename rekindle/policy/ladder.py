"""Which modes are tried for a fault, in which order. The order itself is `modes.LADDER`."""

from rekindle.model.base import Value
from rekindle.model.fault import FaultKind
from rekindle.model.job import SubHealthStrategy
from rekindle.model.recovery import Mode
from rekindle.model.state import Downgrade, JobState
from rekindle.policy import eligibility
from rekindle.policy.modes import LADDER, LAST, row_of
from rekindle.policy.pod_ranks import ends_with_a_restart


class Plan(Value):
    """What to do about a fault: a ladder, or why there is none."""

    modes: tuple[Mode, ...] = ()
    provided: tuple[str, ...] = ()
    """What would have to hold for the first mode, where that cannot be known."""

    passed_over: str = ""
    """Reasons against each cheaper mode, in words, where only a restart of the whole job is left."""

    refused: str = ""
    ignored: str = ""


def for_sub_health(state: JobState, pod_rank: int) -> Plan:
    """The plan for a sub-healthy pod, by the policy in force."""
    if state.policy is not SubHealthStrategy.HOT_SWITCH:
        return Plan(ignored=_why_ignored(state.policy, state.downgrade))
    return _from_above(state, FaultKind.SUB_HEALTH, pod_rank)


def for_real_faults(state: JobState, kinds: tuple[FaultKind, ...]) -> Plan:
    """The plan for what is broken: every mode that serves all of it and that nothing speaks against. The last one is in it in any
    case: where it may not run it says so, as somebody has to look."""
    rows = [row for row in LADDER if set(kinds) <= set(row.serves)]
    if blocker := blocked(state, LAST.mode):
        return Plan(refused=blocker)
    against = {row.mode: reasons for row in rows if row is not LAST and (reasons := row.reasons_against(state, None))}
    modes = tuple(row.mode for row in rows if row.mode not in against)
    why = "; ".join(f"no {mode}: {reasons[0]}" for mode, reasons in against.items()) if modes == (LAST.mode,) else ""
    return Plan(modes=modes, passed_over=why)


def for_what_is_faulty(state: JobState) -> Plan:
    """The plan for what is broken now, as far as anybody knows."""
    if not (real := eligibility.real_faults(state)):
        return Plan(refused=f"nothing of job {state.job.name} is known to be faulty")
    return for_real_faults(state, tuple(dict.fromkeys(fault.kind for fault in real)))


def for_request(state: JobState, mode: Mode, pod_rank: int | None) -> Plan:
    """The plan for a mode that somebody asked for, whatever the policy: that one, and the last one if it fails."""
    if blocker := blocked(state, mode):
        return Plan(refused=blocker)
    if reasons := row_of(mode).reasons_against(state, pod_rank):
        return Plan(refused="; ".join(reasons))
    return Plan(modes=tuple(dict.fromkeys((mode, LAST.mode))))


def _from_above(state: JobState, kind: FaultKind, pod_rank: int) -> Plan:
    """The first mode that serves this fault, if nothing speaks against it, and the last one below it."""
    first = next(row for row in LADDER if kind in row.serves)
    plan = for_request(state, first.mode, pod_rank)
    return plan if plan.refused else Plan(modes=plan.modes, provided=eligibility.provided(state, pod_rank))


def blocked(state: JobState, mode: Mode) -> str:
    """Why a mode may not begin; empty: it may. The first problem has to do: the job's page lists them all. The last mode starts
    all pods anew, and so ends what left two of them with one rank."""
    problems = [problem for problem in state.problems if not (mode is LAST.mode and ends_with_a_restart(problem))]
    return f"the job cannot be recovered as it is: {problems[0]}" if problems else ""


def _why_ignored(policy: SubHealthStrategy, downgrade: Downgrade | None) -> str:
    if downgrade:
        return f"the policy was downgraded to ignore: {downgrade.reason}"
    if policy is SubHealthStrategy.IGNORE:
        return "the job's policy is ignore"
    return f"the job's policy is {policy}, which its scheduler carries out"
