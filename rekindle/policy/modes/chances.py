"""Chances of each mode of the ladder for a job as it is now, for people: what speaks against a mode, and for which pods."""

from rekindle.model.base import Value
from rekindle.model.keys import PLATFORM_STRATEGY
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.policy.modes import eligibility, platform_choice
from rekindle.policy.modes.mode_table import LADDER, About, ModeRow


class Chance(Value):
    """Mode of the ladder, and what speaks against it."""

    mode: Mode
    pod_ranks: tuple[int, ...] = ()
    """Pods that this is about. Empty: the whole job."""

    against: tuple[str, ...] = ()
    """Reasons why the mode would not be tried. Empty: it would be tried for a fault that it serves."""

    held: str = ""
    """Reason of a storm by which the mode is held. Empty: it would begin at once."""

    asked: str = ""
    """Annotation by which a platform allows the mode for a fault. Empty: no platform decides."""


def chances(state: JobState) -> tuple[Chance, ...]:
    """Returns the chances of all modes, in the order in which they are tried.

    Without a known fault, they are those for a fault that is still to come.
    """
    return tuple(_held(row, state, chance) for row in LADDER for chance in _of(row, state))


def _held(row: ModeRow, state: JobState, chance: Chance) -> Chance:
    held = state.storm if row.moves_pods else ""
    asked = PLATFORM_STRATEGY if platform_choice.decides(state.job, None, row.mode) else ""
    return chance.model_copy(update={"held": held, "asked": asked})


def _of(row: ModeRow, state: JobState) -> list[Chance]:
    if row.about is not About.POD:
        reasons = row.reasons_against(state, None)
        return [Chance(mode=row.mode, against=tuple(reason for reason in reasons if reason != eligibility.NOT_FAULTY))]
    by_reasons: dict[tuple[str, ...], list[int]] = {}
    for rank in range(state.job.pods):
        by_reasons.setdefault(row.reasons_against(state, rank), []).append(rank)
    if len(by_reasons) == 1:
        return [Chance(mode=row.mode, against=next(iter(by_reasons)))]
    return [Chance(mode=row.mode, pod_ranks=tuple(ranks), against=reasons) for reasons, ranks in by_reasons.items()]
