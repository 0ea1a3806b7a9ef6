"""Ends the pods of a job that was given up, when people have had time to look at them. `TrainingJob` does so.

The job's controller creates no new pods before a restart: that is what a restart does first, and then it stops.
"""

from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from rekindle.errors import Refused
from rekindle.model import bounds
from rekindle.model.activities.pods import PodCount, Restart
from rekindle.model.state import GivenUp
from rekindle.policy.modes import given_up_pods
from workflows import steps
from workflows.incident import look
from workflows.job_context import JobContext
from workflows.journal import Journal

GRACE = timedelta(seconds=5)
"""Grace period for processes that still write. They are killed afterwards."""

FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)
"""Pause before another try; it doubles each time that the cluster refuses or does not answer, up to the second value."""

GENERATION = "given up"
"""Generation that no pod has, so that all pods count as old."""


class GivenUpPods:
    def __init__(self, known: JobContext, journal: Journal) -> None:
        self._known, self._journal = known, journal
        self._pause = FIRST_PAUSE
        self._not_before: datetime | None = None

    def due(self) -> datetime | None:
        """Returns when the pods are to be ended. None: no job was given up, or its pods are kept."""
        at = given_up_pods.due(self._known.state)
        return max(at, self._not_before) if at and self._not_before else at

    async def end(self) -> None:
        """Ends the pods, unless a look shows that this is no longer wanted. What fails is tried again later."""
        if why := given_up_pods.kept(self._known.state):
            self._conclude(f"its pods stay after the limit: {why}", ended=False)
            return
        if not await look(self._known, self._journal):
            self._later()
            return
        now = self._known.state
        if now.ended or now.given_up is None or given_up_pods.due(now) is None:
            return
        try:
            left = await self._left(GRACE)
            if left.count:
                left = await self._left(timedelta(0))
        except ActivityError as error:
            self._failed(error, now.given_up)
            return
        if left.count:
            workflow.logger.warning("pods of a given-up job still ending", extra={"pods": f"{left}"})
            self._later()
        elif self._is_still(now.given_up):
            self._conclude(
                f"its pods were ended {workflow.now():%Y-%m-%d %H:%M:%S} UTC, after the limit `givenUpPods`", ended=True
            )

    async def _left(self, grace: timedelta) -> PodCount:
        """Deletes all pods; returns those that are not gone in time."""
        job = self._known.state.job
        deleted = await steps.delete_pods(job.id, grace, (), job.limits.pods_deleted)
        if not deleted.count:
            return deleted
        old = Restart(job_id=job.id, generation=GENERATION, youngest=deleted.youngest, youngest_uids=deleted.youngest_uids)
        return await steps.await_old_gone(old, job.limits.pods_stopped)

    def _failed(self, error: ActivityError, gone: GivenUp) -> None:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == Refused.type and self._is_still(gone):
            why = f"{cause}".removeprefix(f"{Refused.type}: ")
            self._conclude(f"its pods stay after the limit, as no others would be admitted: {why}", ended=False)
            return
        workflow.logger.warning("pods of a given-up job not ended", extra={"error": f"{cause}"})
        self._later()

    def _is_still(self, gone: GivenUp) -> bool:
        """Returns whether the job is given up as it was before. A person may have begun again meanwhile."""
        now = self._known.state.given_up
        return now is not None and (now.since, now.incident) == (gone.since, gone.incident)

    def _later(self) -> None:
        self._not_before = workflow.now() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _conclude(self, words: str, *, ended: bool) -> None:
        state = self._known.state
        assert state.given_up, "only the pods of a given-up job are ended"
        change = {"pods": bounds.note(words), "pods_ended": ended, "stopped": state.given_up.stopped or ended}
        self._known.state = state = state.with_(given_up=state.given_up.model_copy(update=change))
        self._pause, self._not_before = FIRST_PAUSE, None
        self._journal.soon(self._journal.remember())
        reason = "GivenUpPodsEnded" if ended else "GivenUpPodsKept"
        self._journal.soon(self._journal.record(state, reason, words, warning=True))
