"""Which modes are tried for a fault, in which order."""

from rekindle.model.base import Value
from rekindle.model.job import SubHealthStrategy
from rekindle.model.recovery import Mode
from rekindle.model.state import Downgrade, JobState
from rekindle.policy import eligibility
from rekindle.policy.ranks import is_rank_carried_twice

LADDER: tuple[Mode, ...] = (
    Mode.HOT_SWITCH,  # sub-health only: the pod moves, training pauses for a moment
    Mode.JOB_RESCHEDULING,  # all pods start again on healthy nodes, from the last checkpoint
)


class Plan(Value):
    """What to do about a fault: a ladder, or why there is none."""

    modes: tuple[Mode, ...] = ()
    provided: tuple[str, ...] = ()
    """What would have to hold for the first mode, where that cannot be known."""

    refused: str = ""
    ignored: str = ""


def readiness(state: JobState) -> eligibility.Readiness:
    """What the state says of the training side. Only our own tells its first step; MindIO's is taken as done."""
    ours = state.job.training_side == "rekindle"
    return eligibility.Readiness(attached=state.attachment is not None, completed_a_step=state.progress is not None or not ours)


def for_sub_health(state: JobState, pod_rank: int) -> Plan:
    """The plan for a sub-healthy pod, by the policy in force."""
    if state.policy is not SubHealthStrategy.HOT_SWITCH:
        return Plan(ignored=_why_ignored(state.policy, state.downgrade))
    return for_hot_switch(state, pod_rank)


def for_hot_switch(state: JobState, pod_rank: int) -> Plan:
    """The plan for a hot switch that somebody asked for, whatever the policy."""
    ready = readiness(state)
    blocker = blocked(state, Mode.HOT_SWITCH)
    reasons = (blocker,) if blocker else eligibility.hot_switch(state.job, pod_rank, ready)
    if reasons:
        return Plan(refused="; ".join(reasons))
    return Plan(modes=LADDER, provided=eligibility.provided(state.job, pod_rank, ready))


def for_real_fault(state: JobState) -> Plan:
    """The plan for something broken."""
    if blocker := blocked(state, Mode.JOB_RESCHEDULING):
        return Plan(refused=blocker)
    return Plan(modes=tuple(mode for mode in LADDER if mode is not Mode.HOT_SWITCH))


def blocked(state: JobState, mode: Mode) -> str:
    """Why a mode may not begin; empty: it may. The first problem has to do: the job's page lists them all. Job rescheduling
    starts all pods anew, and so ends what left two of them with one rank."""
    sweeps = mode is Mode.JOB_RESCHEDULING
    problems = [problem for problem in state.problems if not (sweeps and is_rank_carried_twice(problem))]
    return f"the job cannot be recovered as it is: {problems[0]}" if problems else ""


def _why_ignored(policy: SubHealthStrategy, downgrade: Downgrade | None) -> str:
    if downgrade:
        return f"the policy was downgraded to ignore: {downgrade.reason}"
    if policy is SubHealthStrategy.IGNORE:
        return "the job's policy is ignore"
    return f"the job's policy is {policy}, which its scheduler carries out"
