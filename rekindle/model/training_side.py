"""Names of the training sides. What each of them can do is in `rekindle.policy.training_sides`."""

from enum import StrEnum

CONTROLLER_RECREATES = "mindio"
"""Stored word of `Trait.CONTROLLER_RECREATES`. MindIO was the first training side that needed such a kind of job."""


class TrainingSide(StrEnum):
    """Software that runs in the job's pods and carries out orders."""

    REKINDLE = "rekindle"
    MINDIO = "mindio"
