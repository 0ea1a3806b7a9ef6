"""State of a job, shared by its entity workflow, its incidents, and what works for them."""

from rekindle.model.state import JobState
from rekindle.model.stress import Tested


class JobContext:
    def __init__(self, state: JobState) -> None:
        self.state = state
        self.sightings = 0
        """Number of sightings in this run. The result of our own look is outdated if a sighting arrived meanwhile."""
        self.tested: dict[str, Tested] = {}
        """Result of the last stress test, by request id.

        It is part of the answer to the request, as it does not fit into the state.
        """
        self.last_decision = ""
        """Last decision whether a mode may run, in words. Empty: there was none in this run."""
