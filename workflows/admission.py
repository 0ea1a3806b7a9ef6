"""Asks whether the cluster would admit a backup pod, once in each generation of a job's pods, so that a problem is known before a
recovery needs one. Used by `TrainingJob`; a failure here never affects a recovery."""

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.policy.placement import admission
from workflows import steps
from workflows.job_context import JobContext
from workflows.journal import Journal


class Admission:
    def __init__(self, known: JobContext, journal: Journal) -> None:
        self._known, self._journal = known, journal

    def tell(self) -> None:
        """Begins to ask, if it is due."""
        if admission.is_due(self._known.state):
            self._known.state = self._known.state.with_(asked=True)
            self._journal.soon(self._ask())

    async def _ask(self) -> None:
        state = self._known.state
        try:
            refusal = await steps.try_backup(state.job.id)
        except ActivityError as error:
            workflow.logger.warning("admission check failed", extra={"error": str(error.cause)})
            return
        if refusal:
            words = f"the cluster would refuse a backup pod as things are: {refusal}"
            await self._journal.record(state, "HotSwitchesRefused", words, warning=True)
