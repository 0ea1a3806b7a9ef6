"""Maintains the standbys of a job, beside its recoveries: `TrainingJob` does so when it has no other work.

A failure here never affects a recovery or training: it is reported once, and retried at increasing intervals.
"""

from collections.abc import Callable
from datetime import datetime

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from rekindle.model import bounds
from rekindle.model.activities.standbys import StandbysNow
from rekindle.model.standby import Upkeep
from rekindle.policy.placement import standbys
from workflows import steps
from workflows.dialogue import cancel_and_forget
from workflows.job_context import JobContext
from workflows.journal import Journal


class Standbys:
    def __init__(self, known: JobContext, journal: Journal) -> None:
        self._known, self._journal = known, journal
        self._trying: ActivityHandle[StandbysNow] | None = None

    @property
    def due(self) -> datetime | None:
        """Time at which the standbys are to be ensured again; None: they are as wanted, or no try is planned."""
        return standbys.next_try(self._known.state)

    async def keep(self, interrupted: Callable[[], bool]) -> None:
        """Ensures the wanted number of standbys on healthy nodes.

        Args:
            interrupted: there is something else to do, which must not wait.
        """
        state = self._known.state
        self._renew(standbys.tried(state.upkeep, workflow.now()))
        trying = self._trying = steps.ensure_standbys(state.job.id, standbys.wanted(state.job), standbys.to_avoid(state))
        before = self._known.sightings
        await workflow.wait_condition(lambda: trying.done() or interrupted())
        if not trying.done():
            cancel_and_forget(trying)
        elif error := trying.exception():
            why = bounds.note(str(error.__cause__ or error))
            workflow.logger.warning("standbys not ensured", extra={"error": why})
            self._renew(self._known.state.upkeep.model_copy(update={"refused": why}))
        else:
            self._renew(self._known.state.upkeep.model_copy(update={"refused": ""}))
            if self._known.sightings == before:  # otherwise a sighting is newer
                self._known.state = self._known.state.with_(standbys=trying.result().standbys)
        self.tell()

    def tell(self) -> None:
        """Reports a problem with the standbys, once for as long as it lasts."""
        state = self._known.state
        reason, words = standbys.trouble(state)
        if not reason and not standbys.are_as_wanted(state):
            return  # a lost standby was not replaced yet
        if reason and reason != state.upkeep.told:
            self._journal.soon(self._journal.record(state, reason, words, warning=True))
        self._renew(state.upkeep.model_copy(update={"told": reason}))

    def _renew(self, upkeep: Upkeep) -> None:
        if upkeep != self._known.state.upkeep:
            self._known.state = self._known.state.with_(upkeep=upkeep)

    async def end(self) -> None:
        """Deletes the standbys when the job's workflow ends, as the job then belongs to another party.

        Standbys that are still being created are waited for, so that they are deleted too.
        """
        state, trying = self._known.state, self._trying
        if not (state.standbys or standbys.wanted(state.job)) or state.job.observe:  # standbys may exist that were not seen yet
            return
        if trying:
            await workflow.wait_condition(trying.done)
        try:
            await steps.ensure_standbys(state.job.id, 0, ())
        except ActivityError as error:
            workflow.logger.warning("standbys left to be deleted later", extra={"error": str(error.cause)})
