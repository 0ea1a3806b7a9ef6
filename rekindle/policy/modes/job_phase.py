"""Phases of a job, in a few words, for lists and pages."""

from rekindle.model.approval import Question
from rekindle.model.fault import HOLDERS
from rekindle.model.mode import Mode
from rekindle.model.state import GivenUp, JobState
from rekindle.policy.training_sides.table import side_of

ENDED = "ended"
RECOVERING = "recovering"
TRAINING = "training"
"""Beginning of the phase of a job that was attached at some time. Gateways list such jobs."""

STARTING = "starting"
"""Phase of a job that has never completed a step, as far as its training side reports."""


STOPPED = "no pods"
"""Phase of a job that had pods and has none: a restart was given up half-way, or its pods were deleted."""


GIVEN_UP = "given up"
"""Phase of a job whose recovery was given up or aborted."""

PODS_ENDED = "given up, pods ended"
"""Phase of such a job whose pods were ended after the limit `givenUpPods`."""

ASKING = "waits for approval"
"""Phase of a job of which a mode may run only if a person approves it."""

HELD = "held by a storm"
"""Phase of a job of which a mode waits until the storm is over."""

NOT_ATTACHED = f"{TRAINING}, not attached"
"""Phase of a job that was attached at some time and is not."""

SMALL = f"{TRAINING}, small"
"""Phase of a job that trains with fewer pods than it was started with."""

PHASES = (STARTING, TRAINING, SMALL, NOT_ATTACHED, RECOVERING, ASKING, HELD, GIVEN_UP, PODS_ENDED, STOPPED)
"""Phases of a job whose workflow runs."""


def phase(state: JobState, running: Mode | None) -> str:
    """Returns the phase of a job. It trains if it has completed a step. If its training side reports no steps, it trains if it
    is attached."""
    if state.ended:
        return ENDED
    if running:
        return RECOVERING
    if state.question or state.given_up:
        return _asking(state.question) if state.question else _given_up(state.given_up)
    if _has_no_pods(state):
        return STOPPED
    silent = not side_of(state.job).reports_its_steps
    if state.progress is None and not (silent and state.attachment):
        return STARTING
    here = SMALL if state.small else TRAINING
    return here if state.attachment else NOT_ATTACHED


def _asking(question: Question) -> str:
    return HELD if question.storm else ASKING


def _given_up(given_up: GivenUp | None) -> str:
    return PODS_ENDED if given_up and given_up.pods_ended else GIVEN_UP


def has_trained(words: str) -> bool | None:
    """Returns whether a job with this phase has ever trained. None: the phase leaves that open."""
    if words.startswith(TRAINING) or words == STOPPED:
        return True
    return False if words == STARTING else None


def _has_no_pods(state: JobState) -> bool:
    lost = (one.fault for one in state.faults if one.fault.id == HOLDERS)
    return any(len(fault.pod_ranks) == state.job.pods and not fault.generation for fault in lost)
