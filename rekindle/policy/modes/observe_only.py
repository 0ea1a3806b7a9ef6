"""Messages for a job that is only observed: what would be done for it, and why a request has no effect."""

from rekindle.model.mode import Mode
from rekindle.policy.modes.ladder import Plan

ONLY = (
    "this installation only observes: nothing was touched; "
    "REKINDLE_OBSERVE=false or the namespace's label rekindle.io/mode=active lets it act"
)


def would(plan: Plan, pod_rank: int | None) -> str:
    """Returns a plan with modes in words."""
    first, *below = (_named(mode, pod_rank) for mode in plan.modes)
    then = "".join(f", then {mode} if that fails" for mode in below)
    provided = f", provided that {' and '.join(plan.provided)}" if plan.provided else ""
    return f"would run {first}{then}{provided}"


def _named(mode: Mode, pod_rank: int | None) -> str:
    return f"{mode} (pod rank {pod_rank})" if mode is Mode.HOT_SWITCH else mode
