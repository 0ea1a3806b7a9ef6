"""What is being done about a job, in a word or two, as lists and pages show it."""

from rekindle.model.job import TrainingSide
from rekindle.model.recovery import Mode
from rekindle.model.state import JobState

ENDED = "ended"
RECOVERING = "recovering"
TRAINING = "training"
"""A job whose phase begins with it was attached at some time. Gateways list such jobs."""

STARTING = "starting"
"""No step of the job was ever completed, as far as its training side tells."""


def phase(state: JobState, running: Mode | None) -> str:
    """The phase of a job. It trains when it has completed a step, or where MindIO, which tells of none, is attached."""
    if state.ended:
        return ENDED
    if running:
        return RECOVERING
    mindio = state.job.training_side is TrainingSide.MINDIO
    if state.progress is None and not (mindio and state.attachment):
        return STARTING
    return TRAINING if state.attachment else f"{TRAINING}, not attached"
