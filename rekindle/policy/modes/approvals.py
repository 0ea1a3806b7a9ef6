"""Approval of modes by people: whether a mode needs it, how long the question waits, and what an answer leads to. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from rekindle.errors import BadInput
from rekindle.model.approval import Answer, Question, Unanswered, spelled
from rekindle.model.bounds import note
from rekindle.model.fault import FaultKind
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import observe_only, requests, retries
from rekindle.policy.modes.cases import Case, is_broken
from rekindle.policy.modes.mode_table import LAST, About, row_of
from rekindle.policy.training_sides.table import side_of

DELIVERED = timedelta(seconds=5)
"""Time for the order after an approval to arrive, at a training side that exits if no order comes in time."""

EXAMPLE = '{"approved": true, "by": "an operator"}'


def question(state: JobState, case: Case, mode: Mode, incident: int, since: datetime) -> Question | None:
    """Returns the question to ask before this mode. None: the mode needs no approval. A requested mode needs none.

    Args:
        since: time since which the mode has been waiting, perhaps for the answer to another question.
    """
    if mode not in state.job.approvals or _is_requested(case, mode):
        return None
    return Question(
        mode=mode,
        incident=incident,
        about=note(case.summary),
        since=since,
        until=since + _longest(state, mode, state.job.limits.approval),
        unanswered=state.job.approvals[mode],
    )


def hold(state: JobState, case: Case, mode: Mode, incident: int, since: datetime) -> Question | None:
    """Returns the question that holds a mode in a storm, and after whose limit the mode runs. None: the mode is not held.

    What a person requested or wanted again is not held. Neither is the restart after a recovery that was lost half-way.

    Args:
        since: time since which the mode has been waiting, perhaps for the answer to another question.
    """
    longest = _longest(state, mode, state.job.limits.storm)
    if not (state.storm and row_of(mode).moves_pods and longest) or _is_wanted(state, case, mode):
        return None
    return Question(
        mode=mode,
        incident=incident,
        about=note(case.summary),
        since=since,
        until=since + longest,
        unanswered=Unanswered.APPROVE,
        storm=state.storm,
    )


def _is_wanted(state: JobState, case: Case, mode: Mode) -> bool:
    """Returns whether a mode runs in a storm too: a person wants it, or another try of the ladder, or a recovery is half done."""
    if case.request:
        return _is_requested(case, mode) or case.request.request.mode is LAST.mode
    if not case.faults:
        return True  # the job's workflow was lost in a recovery
    again = state.tried_again
    if again is None or not retries.is_wanted(state):
        return False
    return all(fault.accepted_at and fault.accepted_at <= again for fault in case.faults)


def _longest(state: JobState, mode: Mode, limit: timedelta) -> timedelta:
    """Returns the time for which a question may wait. A training side that stands may exit if no order comes."""
    if row_of(mode).about is About.POD or side_of(state.job).waits_for_orders:
        return limit
    return min(limit, state.job.limits.next_order - DELIVERED)


SAVED_RESTARTS = ((Mode.DYING_GASP, LAST.mode), (LAST.mode, Mode.DYING_GASP))
"""Requested modes, each with the mode that belongs to it: a restart and the dying gasp before it are one."""


def _is_requested(case: Case, mode: Mode) -> bool:
    """Returns whether a person has requested the mode."""
    requested = case.request.request.mode if case.request else None
    return requested is mode or (requested, mode) in SAVED_RESTARTS


def asked_before(mode: Mode, follows: Mode | None) -> tuple[Mode, ...]:
    """Returns the modes that are asked about before a mode begins. The state is saved only for the mode that follows, which is
    asked about too."""
    return (mode, follows) if mode is Mode.DYING_GASP and follows else (mode,)


def is_moot(state: JobState, case: Case, asked: Question, now: datetime, *, interrupted: bool) -> Verdict | None:
    """Returns the verdict of a mode whose question no longer matters. None: it does.

    No mode of its incident has run, so that training was not touched.

    Args:
        interrupted: True if a real fault has interrupted the incident of a sub-healthy pod.
    """
    mode, meanwhile = asked.mode, "while a storm held it" if asked.storm else "before it was approved"
    if state.job.observe:
        return Verdict(mode=mode, outcome=Outcome.CANCELLED, reason=observe_only.ONLY)
    if _is_only_slow(case) and not interrupted:
        if is_broken(state, now):
            words = f"a real fault came {meanwhile}"
            return Verdict(mode=mode, outcome=Outcome.CANCELLED, training=Training.FAULTED, reason=words)
        seen = [one.fault for one in state.faults if one.well_since is None]
        stands = any(fault.is_part_of(one) for fault in case.faults for one in seen)
    else:
        stands = is_broken(state, now)
    return None if stands else Verdict(mode=mode, outcome=Outcome.CANCELLED, reason=f"the fault was over {meanwhile}")


def _is_only_slow(case: Case) -> bool:
    return bool(case.faults) and all(one.kind is FaultKind.SUB_HEALTH for one in case.faults)


def denied(case: Case, mode: Mode, why: str, before: Sequence[Verdict]) -> Verdict:
    """Returns the verdict of a mode that was denied: the next mode follows. A sub-health is left alone instead.

    Args:
        before: verdicts of the modes that have run, of which the last one tells how training stands.
    """
    only_slow = not before and _is_only_slow(case)
    left = before[-1].training if before else None
    return Verdict(
        mode=mode,
        outcome=Outcome.IGNORED if only_slow else Outcome.ESCALATE,
        reason=why,
        training=None if left is Training.FAULTED else left,
    )


def ruling(question: Question, answer: Answer | None) -> tuple[bool, str]:
    """Returns whether the mode may run, and who decided that.

    Args:
        answer: None: nobody answered in time.
    """
    if answer is None and question.storm:
        return True, f"held by a storm for {question.until - question.since}"
    if answer is None:
        approved, by = question.unanswered is Unanswered.APPROVE, f"nobody within {question.until - question.since}"
        words = f"{'approved' if approved else 'denied'} by default, answered by {by}"
        return approved, words
    why = f": {answer.reason}" if answer.reason else ""
    return answer.approved, f"{'approved' if answer.approved else 'denied'} by {answer.by or 'a client'}{why}"


def to_decide(state: JobState) -> list[str]:
    """Returns what a person is asked to decide, a line each, with the command for it."""
    lines, name = [], state.job.name
    if (waits := state.question) and waits.storm:
        until = f"{waits.until:%Y-%m-%d %H:%M:%S} UTC"
        lines.append(
            f"the {waits.mode} is held until the storm is over, or {until}: `rekindle approve {name}` runs it now, "
            f"`deny` leaves it out (storm: {waits.storm}; {waits.about})"
        )
    elif waits:
        default = "approved" if waits.unanswered is Unanswered.APPROVE else "denied"
        until = f"{waits.until:%Y-%m-%d %H:%M:%S} UTC"
        lines.append(
            f"the {waits.mode} waits for approval until {until}, and is {default} then: `rekindle approve {name}`, or `deny` "
            f"({waits.about})"
        )
    if gone := state.given_up:
        since = f"{gone.since:%Y-%m-%d %H:%M:%S} UTC"
        pods = f"; {gone.pods}" if gone.pods else ""
        lines.append(f"given up {since}: {gone.mode}, {gone.reason}{pods}; `rekindle retry {name}` begins again")
    return lines


def read(given: object) -> Answer:
    """Returns the answer that a client wrote.

    Raises:
        BadInput: names each wrong field.
    """
    return requests.read_as(Answer, given, EXAMPLE)


def invalid(given: object) -> str:
    """Returns the error in an answer. Empty: there is none."""
    try:
        if named := read(given).mode:
            requests.mode_named(named)
    except BadInput as error:
        return str(error)
    return ""


def refused(state: JobState, answer: Answer, last: str) -> str:
    """Returns why a valid answer answers nothing. Empty: it answers the question that waits.

    Args:
        last: the last decision about the job. Empty: none is known.
    """
    waits = state.question
    if waits is None:
        return f"no mode of job {state.job.name} waits for approval{last and f'; the last decision: {last}'}"
    if answer.mode and requests.mode_named(answer.mode) is not waits.mode:
        return f"mode: {answer.mode} does not wait for approval, accepted is {spelled(waits.mode)}, which does"
    return ""
