"""Decides which modes a platform allows that decides in place of the job's own strategies. Source: the Kubernetes contract,
platform mode."""

from rekindle.model.contract import PlatformAnswer
from rekindle.model.dialogue import Strategy
from rekindle.model.incident import ModeRequest
from rekindle.model.job import Job, Trait
from rekindle.model.keys import PLATFORM_STRATEGY
from rekindle.model.mode import FAULT_MODES, Mode
from rekindle.policy.modes.mode_table import LAST, About, row_of

ALLOWED: dict[str, tuple[Mode, ...]] = {
    Strategy.RETRY: (Mode.ONLINE_RETRY, Mode.DYING_GASP, Mode.POD_RESCHEDULING),
    Strategy.RECOVER: (
        *(Mode.IN_PLACE, Mode.PROCESS_RESCHEDULING, Mode.ELASTIC_TRAINING, Mode.DYING_GASP, Mode.POD_RESCHEDULING),
    ),
    Strategy.DUMP: (Mode.DYING_GASP, Mode.POD_RESCHEDULING),
    Strategy.EXIT: (Mode.POD_RESCHEDULING,),
}
"""Modes that a strategy of the platform allows, besides a restart. After a strategy that failed, the state is saved, so that no
step is lost."""

STRATEGIES = ", ".join(ALLOWED)


def decides(job: Job, request: ModeRequest | None, first: Mode) -> bool:
    """Returns whether a platform decides about an incident. It decides about faults, and not about what a person requests."""
    is_asked = PLATFORM_STRATEGY in job.annotations and job.has(Trait.CONTRACT_WORDS)
    return is_asked and request is None and row_of(first).about is About.RANKS


def denied(answer: PlatformAnswer) -> tuple[Mode, ...]:
    """Returns the modes that the platform's strategy does not allow. Empty: it has named none that is accepted."""
    allowed = ALLOWED.get(answer.value.strip()) if answer.answered else None
    return () if allowed is None else tuple(mode for mode in FAULT_MODES if mode not in (*allowed, LAST.mode))


def words(answer: PlatformAnswer, within: str) -> str:
    """Describes who has decided, for the verdict.

    Args:
        within: time in which the platform could answer.
    """
    said = answer.value.strip()
    if answer.problem:
        return f"the platform was not asked: {answer.problem}"
    if not answer.answered:
        return f"the platform named no strategy within {within} ({PLATFORM_STRATEGY}): decided without it"
    if said not in ALLOWED:
        return (
            f"the platform's strategy {said[:40]!r} is not accepted, use {STRATEGIES} ({PLATFORM_STRATEGY}): decided without it"
        )
    return f"the platform decided: {said}"
