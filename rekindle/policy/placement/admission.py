"""Decides when the cluster is asked whether it would admit a backup pod of a job. Pure."""

from rekindle.model.job import SubHealthStrategy
from rekindle.model.state import JobState


def is_due(state: JobState) -> bool:
    """Returns whether the question is due: a hot switch is expected, every rank has a pod to copy, and it was not asked yet."""
    job = state.job
    expected = job.admitted and job.sub_health is SubHealthStrategy.HOT_SWITCH and not (job.observe or job.unmovable)
    complete = len(state.holders) == job.pods and all(state.holders) and not state.problems
    return expected and complete and not (state.asked or state.ended)
