"""The row of each training side."""

from rekindle.model.job import Job
from rekindle.model.training_side import TrainingSide
from rekindle.policy.training_sides.mindio import MINDIO
from rekindle.policy.training_sides.rekindle import REKINDLE
from rekindle.policy.training_sides.row import TrainingSideRow

ROWS: dict[TrainingSide, TrainingSideRow] = {TrainingSide.REKINDLE: REKINDLE, TrainingSide.MINDIO: MINDIO}


def side_of(job: Job) -> TrainingSideRow:
    """Returns the facts about the training side of a job."""
    return ROWS[job.training_side]
