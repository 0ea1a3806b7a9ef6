"""What is being done about a job, in a word or two, as lists and pages show it."""

from rekindle.model.fault import HOLDERS
from rekindle.model.job import TrainingSide
from rekindle.model.recovery import Mode
from rekindle.model.state import JobState

ENDED = "ended"
RECOVERING = "recovering"
TRAINING = "training"
"""A job whose phase begins with it was attached at some time. Gateways list such jobs."""

STARTING = "starting"
"""No step of the job was ever completed, as far as its training side tells."""


STOPPED = "no pods"
"""The job had pods, and has none: a restart of it was given up half-way, or its pods were deleted."""


def phase(state: JobState, running: Mode | None) -> str:
    """The phase of a job. It trains when it has completed a step, or where MindIO, which tells of none, is attached."""
    if state.ended:
        return ENDED
    if running:
        return RECOVERING
    if _has_no_pods(state):
        return STOPPED
    mindio = state.job.training_side is TrainingSide.MINDIO
    if state.progress is None and not (mindio and state.attachment):
        return STARTING
    return TRAINING if state.attachment else f"{TRAINING}, not attached"


def has_trained(words: str) -> bool | None:
    """Tells of a phase whether the job was ever seen to train; None: its phase does not say."""
    if words.startswith(TRAINING) or words == STOPPED:
        return True
    return False if words == STARTING else None


def _has_no_pods(state: JobState) -> bool:
    lost = (one.fault for one in state.faults if one.fault.id == HOLDERS)
    return any(len(fault.pod_ranks) == state.job.pods and not fault.generation for fault in lost)
