"""Recovery that an earlier workflow of the job had started before that workflow was lost: it first runs to its end.

Called by `TrainingJob` before it begins anything, so that two recoveries never work on one job.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from temporalio import workflow

from rekindle.ids import incident_of, recovery_workflow, runs_mode
from rekindle.model.activities.requests import RecoveryEnd
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import cases
from rekindle.policy.modes.mode_table import MODES, About, row_of
from workflows import job_reducers, steps
from workflows.dialogue import cancel_and_forget
from workflows.incident import look
from workflows.job_context import JobContext
from workflows.journal import Journal
from workflows.leftover_pods import delete_backups

OPERATIONS = (About.LINKS, About.CHECKS)
"""Subjects of operations, which are done on a job that trains."""

UNNOTED = 10
"""Maximum number of incidents that the cluster may not have recorded. Modes that repair processes do not need the cluster."""


class _Found(NamedTuple):
    """Recovery that has begun, with its end."""

    recovery: str
    end: RecoveryEnd


async def is_settled(known: JobContext, journal: Journal) -> bool:
    """Returns whether the lost recovery is settled: it ended by itself, or there was none, or the job has ended.

    If not, the last mode cleans up what it left behind.
    """
    noted = known.state.lost_recovery
    is_certain = incident_of(noted) <= known.state.incidents
    ladder = await _ladder_of(noted, known)
    if ladder is None:
        return True
    nothing = _Found(noted, RecoveryEnd(settled=not is_certain, words="nothing is known of its end", known=False))
    last, end = ladder[-1] if ladder else nothing
    settled = end.settled or _is_of_known_faults(end, known.state)
    if end.known or is_certain:
        what = "it is settled" if settled else "what it left behind is swept"
        words = f"{last} ran when the job's workflow was lost; {what}: {end.words}"
        journal.soon(journal.record(known.state, "RecoveryFound", words, warning=not settled))
    known.state = job_reducers.found(known.state, last if end.known or is_certain else "")
    if end.known and settled:
        await _conclude(known, journal, _verdicts(ladder))
    elif end.known and known.state.job.observe:
        known.state = job_reducers.left_half_done(known.state, f"{last} {end.words}", workflow.now())
        return True
    return settled


def _is_of_known_faults(end: RecoveryEnd, state: JobState) -> bool:
    """Returns whether an operation ended because of faults that this workflow knows too.

    Repairing them completes what it left.
    """
    verdict = end.verdict
    interrupted = bool(verdict and verdict.was_interrupted and row_of(verdict.mode).about in OPERATIONS)
    return interrupted and cases.is_broken(state, workflow.now())


async def _ladder_of(noted: str, known: JobContext) -> list[_Found] | None:
    """Returns the modes of the last incident that had begun, in the order in which they began. Empty: nothing is known of any.

    Earlier incidents are noted on the way. None: the job has ended.
    """
    ladder: list[_Found] = []
    ahead = _perhaps_running(noted, known.state)
    while ahead:
        recovery = ahead.pop(0)
        known.state = known.state.with_(lost_recovery=recovery)  # so that it receives signals meanwhile
        end = await _end_of(recovery, known)
        if end is None:
            return None
        if end.known:
            if ladder and incident_of(ladder[-1].recovery) < incident_of(recovery):
                _note_earlier(known, ladder)
                ladder = []
            ladder = sorted((*ladder, _Found(recovery, end)), key=_began)
        number = incident_of(ladder[-1].recovery) if ladder else 0
        if not ahead and number == incident_of(recovery) < incident_of(noted) + UNNOTED:
            ahead = _of_incident(known.state, number + 1)
    return ladder


def _note_earlier(known: JobContext, ladder: Sequence[_Found]) -> None:
    if verdicts := _verdicts(ladder):
        found = job_reducers.found(known.state, ladder[-1].recovery)
        known.state = job_reducers.settled(found, verdicts, workflow.now())


def _verdicts(ladder: Sequence[_Found]) -> tuple[Verdict, ...]:
    """Returns the verdicts of an incident, each of which says what its mode has changed. Empty: the last mode did nothing."""
    return tuple(one.end.verdict for one in ladder if one.end.verdict) if ladder[-1].end.verdict else ()


def _began(found: _Found) -> float:
    return found.end.began.timestamp() if found.end.began else -math.inf


def _perhaps_running(noted: str, state: JobState) -> list[str]:
    """Returns the ids of this recovery and those that may have followed it.

    A mode is noted after its start, when the cluster accepts the note. One that comes earlier in the ladder may have followed:
    elastic training is tried first where a spare node is not waited for.
    """
    modes = [row.mode for row in MODES]
    first = next(place for place, mode in enumerate(modes) if runs_mode(noted, mode))
    rest = [(incident_of(noted), mode) for mode in (*modes[first:], *modes[:first])]
    of_the_next = _of_incident(state, incident_of(noted) + 1) if incident_of(noted) <= state.incidents else []
    return [*(recovery_workflow(state.job, incident, mode) for incident, mode in rest), *of_the_next]


def _of_incident(state: JobState, incident: int) -> list[str]:
    return [recovery_workflow(state.job, incident, row.mode) for row in MODES]


async def _end_of(recovery: str, known: JobContext) -> RecoveryEnd | None:
    """Waits for the end of a recovery; None: the job has ended meanwhile.

    A recovery that exceeds the deadline of its mode is ended, as its parent would have done.
    """
    waiting, row = steps.await_recovery_end(recovery), next(row for row in MODES if runs_mode(recovery, row.mode))
    try:
        await workflow.wait_condition(
            lambda: waiting.done() or bool(known.state.ended),
            timeout=row.deadline(known.state.job.limits),
            timeout_summary=f"deadline of the {row.mode}",
        )
    except TimeoutError:
        await steps.terminate(recovery, "its job's workflow was lost, and it outlives its deadline")
        return await waiting
    if waiting.done():
        return await waiting
    cancel_and_forget(waiting)
    return None


async def _conclude(known: JobContext, journal: Journal, verdicts: Sequence[Verdict]) -> None:
    """Stores what the recovery did as if this workflow had started it.

    A cancelled recovery does not report what it left behind, so its backup pods are deleted.

    Args:
        verdicts: those of its incident. Empty: it was cancelled.
    """
    before = known.state
    known.state = job_reducers.settled(before, verdicts, workflow.now())
    if known.state.policy is not before.policy:
        await journal.publish_policy(lambda: known.state)
    journal.soon(journal.remember())
    if not verdicts:
        await delete_backups(known)
    else:
        await look(known, journal)  # the recovery changed pods, which was not known until now
