"""Pods of a job that was given up: how long they are kept for people to look at, and whether they can be ended. Pure."""

from datetime import datetime

from rekindle.model.job import Trait
from rekindle.model.state import JobState


def due(state: JobState) -> datetime | None:
    """Returns when the pods of a given-up job are to be ended. None: they are kept, or it was done.

    A person who aborted a recovery decides about the pods. A restart that is tried again by itself needs them or has ended them.
    """
    gone, limit = state.given_up, state.job.limits.given_up_pods
    if gone is None or not (gone.limited and limit) or gone.aborted or gone.pods:
        return None
    tries_again = state.again is not None and state.again.judges
    return None if state.job.observe or tries_again else gone.since + limit


def kept(state: JobState) -> str:
    """Returns why the pods of the job cannot be ended without being created again. Empty: they can be."""
    if state.job.has(Trait.CONTROLLER_RECREATES):
        return f"the controller of this {state.job.kind} would create them again"
    return f"{state.job.queue} would start the job again" if state.job.queue else ""
