"""Chances of each mode of the ladder for a job as it is now, for people: what speaks against a mode, and for which pods."""

from datetime import datetime

from rekindle.model.base import Value
from rekindle.model.keys import PLATFORM_STRATEGY
from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.policy.modes import cases, eligibility, platform_choice, retries
from rekindle.policy.modes.mode_table import LADDER, LAST, About, ModeRow


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


def chances(state: JobState, now: datetime | None = None) -> tuple[Chance, ...]:
    """Returns the chances of all modes, in the order in which they are tried.

    Without a known fault, they are those for a fault that is still to come.

    Args:
        now: time for which the bounds of recoveries are judged. None: they are not.
    """
    found = (_held(row, state, chance) for row in LADDER for chance in _of(row, state))
    return tuple(_bounded(state, chance, now) if now else chance for chance in found)


def _bounded(state: JobState, chance: Chance, now: datetime) -> Chance:
    """Returns the chance with the bounds that a fault would meet now. Requests of people may exceed those of restarts."""
    bounds = eligibility.bounds_reached(state, chance.mode, now)
    if chance.mode in retries.RESTARTS:
        is_last = chance.mode is LAST.mode
        bounds = tuple(filter(None, (cases.no_restart(state, now, requested=False, whole=is_last),)))
    return chance.model_copy(update={"against": tuple(dict.fromkeys((*chance.against, *bounds)))})


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
