"""Decides which mode follows one that has not recovered training. A mode names no successor: it says how training is left."""

from collections.abc import Collection, Sequence
from datetime import datetime

from rekindle.model.mode import Mode
from rekindle.model.state import JobState
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import cases, eligibility, ladder
from rekindle.policy.modes.mode_table import LAST, About, row_of
from rekindle.policy.training_sides.table import side_of

SUCCESSORS = {
    Training.LOST: LAST.mode,
    Training.SAVES: LAST.mode,
    Training.WHOLE: Mode.ONLINE_RETRY,
    Training.SUSPECT: Mode.PROCESS_RESCHEDULING,
}
"""Mode that follows one that left training so. After a mode that a fault interrupted comes the cheapest that repairs the
fault."""

NEW_PROCESSES = (Mode.POD_RESCHEDULING, LAST.mode)
"""Modes that begin again from the newest checkpoint, so that the state is saved before them, and nothing else follows that."""

LEAVES_NODES = (Mode.PROCESS_RESCHEDULING, Mode.ELASTIC_TRAINING, Mode.POD_RESCHEDULING, LAST.mode)
"""Modes after which no suspect rank is on its node any more."""


def next_after(
    state: JobState, verdicts: Sequence[Verdict], planned: Sequence[Mode], tried: Collection[Mode], now: datetime
) -> Mode | None:
    """Returns the mode that follows one that has not recovered; None: none is left. Nothing follows the last mode of the ladder.

    Args:
        verdicts: those of the incident, at least one. Ranks that one of them calls suspect leave their nodes.
        planned: modes of the incident's plan.
        tried: modes that ran in this incident.
    """
    if LAST.mode in tried:
        return None
    last = verdicts[-1]
    left = [mode for mode in (*_mending(state, now), *planned) if mode not in tried]
    if any(verdict.training is Training.SUSPECT for verdict in verdicts):
        left = [mode for mode in left if mode in LEAVES_NODES] or [LAST.mode]
    if last.mode is Mode.DYING_GASP:
        left = [mode for mode in left if mode in NEW_PROCESSES]
    named = SUCCESSORS.get(last.training) if last.training else None
    if named is Mode.ONLINE_RETRY and named not in tried and not eligibility.repeated_step(state):
        return named  # in no plan, since it was not requested
    following = named if named in left else next(iter(left), None)
    return Mode.DYING_GASP if following in NEW_PROCESSES and _may_save(state, verdicts, tried) else following


def _may_save(state: JobState, verdicts: Sequence[Verdict], tried: Collection[Mode]) -> bool:
    """Returns whether the ranks that are left are to save their state before they begin again.

    They are not asked after a repair that they did not answer, nor if one of them may have a wrong state. A hot switch that
    failed says nothing about ranks that report their own faults.
    """
    last = verdicts[-1]
    was_switched = row_of(last.mode).about is About.POD and side_of(state.job).reports_its_fault
    is_reached = last.training is not Training.LOST or was_switched
    is_sound = all(verdict.training is not Training.SUSPECT for verdict in verdicts)
    return is_reached and is_sound and Mode.DYING_GASP not in tried and not eligibility.dying_gasp(state, None)


def _mending(state: JobState, now: datetime) -> tuple[Mode, ...]:
    """Returns the modes that repair the faults that count now."""
    kinds = tuple(dict.fromkeys(fault.kind for fault in cases.counting(state, now) if not fault.backup))
    return ladder.for_real_faults(state, kinds).modes if kinds else ()
