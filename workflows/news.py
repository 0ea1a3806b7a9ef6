"""News of a job for the workflows that work on it: its running mode, and the maintenances that have moved its links."""

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import FailureError

from rekindle.ids import Signals
from rekindle.model.base import Value
from rekindle.model.fault import Fault, FaultsNow
from rekindle.model.links import LinksReset, OnBackup
from rekindle.model.state import JobState
from rekindle.policy.modes import cases, elastic
from rekindle.policy.operations import links
from workflows import job_reducers
from workflows.incident import IncidentRun
from workflows.job_context import JobContext
from workflows.journal import Journal

HAVE_LEFT = "no longer on their backup links, as their pods have left the job"


class News:
    def __init__(self, known: JobContext, journal: Journal, running: Callable[[], IncidentRun | None]) -> None:
        """Args:
        running: returns the incident that is running; None: there is none.
        """
        self._known, self._journal, self._running = known, journal, running
        self._told: tuple[Fault, ...] = ()
        """Faults that were sent last."""

    def forget(self) -> None:
        """Begins with a mode that no fault was sent to."""
        self._told = ()

    def tell_faults(self) -> None:
        """Sends the current faults to the running mode if they have changed. Faults that are missing from them are over."""
        now = cases.counting(self._known.state, workflow.now())
        if now != self._told:
            self._told = now
            self.tell(Signals.FAULTS, FaultsNow(faults=now))

    def tell(self, signal: str, payload: Value) -> None:
        """Sends a signal to the running mode, also to that of an earlier workflow of the job, which may be waiting for it."""
        if incident := self._running():
            incident.tell(signal, payload)
        elif lost := self._known.state.lost_recovery:
            self._journal.soon(_signalled(lost, signal, payload))

    def tell_reset_links(self, before: JobState) -> None:
        """Informs maintenances that some of their ranks have other pods, which began on their first links, or have left."""
        over = links.reset(before, self._known.state)
        if not over:
            return
        state = self._known.state = job_reducers.without_links(self._known.state, over)
        left = state.job.layout.ranks_of_all(elastic.missing_of(state.small))
        for some, why in ((links.without(over, left), "on their first links, in new pods"), (links.among(over, left), HAVE_LEFT)):
            if some:
                words = f"{why}: {links.described(some)}"
                self._journal.soon(self._journal.record(state, "LinksReset", words, warning=True))
                self.tell_maintenances(some, why)

    def tell_maintenances(self, over: tuple[OnBackup, ...], why: str) -> None:
        """Informs maintenances that links which they have moved are on their first links, or that others have taken them."""
        for one in over:
            if one.maintenance:
                reset = LinksReset(job_id=self._known.state.job.id, ranks=one.ranks, why=why)
                self._journal.soon(_signalled(one.maintenance, Signals.LINKS_RESET, reset))


async def _signalled(workflow_id: str, signal: str, payload: Value) -> None:
    try:
        await workflow.get_external_workflow_handle(workflow_id).signal(signal, payload)
    except FailureError as error:
        workflow.logger.info(
            "signal dropped, workflow already ended", extra={"workflow": workflow_id, "signal": signal, "error": str(error)}
        )
