"""Deletes pods that recoveries left behind, as soon as the cluster allows it. `TrainingJob` does so when it has no other work."""

from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.policy.modes import cases, elastic
from workflows import steps
from workflows.dialogue import cancel_and_forget
from workflows.job_context import JobContext

PAUSE, PATIENCE = timedelta(seconds=15), timedelta(minutes=10)
"""Pause between two tries to delete the backup pods of a mode that was ended, and the time limit for all tries."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)
"""Pause before the deletion is tried again; it doubles each time that the cluster refuses, up to the second value."""


class LeftoverPods:
    def __init__(self, known: JobContext) -> None:
        self._known = known
        self._pause = FIRST_PAUSE
        self._at: datetime | None = None

    def due(self, now: datetime) -> datetime | None:
        """Returns when the next deletion is to be tried. None: no pods were left behind."""
        if not (self._known.state.left_behind or elastic.to_sweep(self._known.state)):
            self._at = None
        elif self._at is None:
            self._at = now + self._pause
        return self._at

    async def sweep(self, interrupted: Callable[[], bool]) -> bool:
        """Deletes the pods that were left behind, and returns whether none is left.

        Args:
            interrupted: there is something else to do, which must not wait.
        """
        state, self._at = self._known.state, None
        have_left = elastic.to_sweep(state)
        sweeping = steps.sweep(state.job.id, state.left_behind, have_left)
        await workflow.wait_condition(lambda: sweeping.done() or interrupted())
        if not sweeping.done():
            cancel_and_forget(sweeping)
            return False
        if error := sweeping.exception():
            workflow.logger.warning("pods left to be deleted later", extra={"error": str(error)})
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return False
        self._known.state = elastic.swept(self._known.state.with_(left_behind=()), have_left)
        self._pause = FIRST_PAUSE
        return True


async def delete_backups(known: JobContext) -> None:
    """Deletes all backup pods of the job, after a mode that was cancelled and names none. No rank was handed over to them.

    They are not known by name, so a later sweep could not delete them. A restart would delete them, and does not wait for this.
    """
    until = workflow.now() + PATIENCE
    while not await _backups_are_deleted(known) and workflow.now() < until:
        try:
            await workflow.wait_condition(
                lambda: cases.is_broken(known.state, workflow.now()), timeout=PAUSE, timeout_summary="delete backup pods"
            )
        except TimeoutError:
            continue
        return


async def _backups_are_deleted(known: JobContext) -> bool:
    try:
        await steps.delete_backups(known.state.job.id)
    except ActivityError as error:
        workflow.logger.warning("backup pod possibly left", extra={"error": str(error.cause)})
        return False
    return True
