"""Decides which recovery gets a spare node while fewer are free than recoveries need, for all jobs in one place.

Started with the first claim, and over when there was none for a while. A claim is over when its recovery is, or by itself after
its time, so that nothing holds a spare for ever.
"""

from datetime import datetime, timedelta

from temporalio import workflow

from rekindle.ids import Queries, Signals, SpareUpdates, Workflows
from rekindle.model import bounds, stored
from rekindle.model.spares import SpareAnswer, SpareClaim, SpareClaims, SpareQuestion
from rekindle.policy.placement import spares

ROOM = 200
"""Number of history events after which the workflow begins a new run. A control worker that follows a dead one replays the run
before it answers: a thousand recoveries within a run cost the next one a second."""

LINGERS = timedelta(minutes=10)
"""Time after the last claim in which the workflow waits for another one, so that single recoveries share a run."""


@workflow.defn(name=Workflows.SPARES)
class Spares:
    @workflow.init
    def __init__(self, given: object) -> None:
        known, _ = stored.read(SpareClaims, given, needed=())
        self._claims = known.claims if known else ()
        self._changed, self._woken = False, False

    @workflow.run
    async def run(self, given: object) -> None:
        """Args:
        given: a `SpareClaims`, as this version or an earlier one has written it.
        """
        until = workflow.now() + LINGERS
        while True:
            self._claims = spares.current(self._claims, workflow.now())
            self._show()
            if self._moves_on():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(
                    SpareClaims(claims=self._claims),
                    initial_versioning_behavior=workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
                )
            if not self._claims and workflow.now() >= until:
                break
            until = await self._wait(until)
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _wait(self, until: datetime) -> datetime:
        """Waits for a claim, or for the end of one. Returns when the workflow ends without a further claim."""
        due = min((one.until for one in self._claims if one.until), default=until)
        self._changed = self._woken = False
        try:
            await workflow.wait_condition(
                lambda: self._changed or self._woken,
                timeout=max(due - workflow.now(), timedelta(0)),
                timeout_summary="a claim is over" if self._claims else "no claim comes",
            )
        except TimeoutError:
            pass
        return workflow.now() + LINGERS if self._changed else until

    @staticmethod
    def _moves_on() -> bool:
        info = workflow.info()
        return info.get_current_history_length() > ROOM or info.is_target_worker_deployment_version_changed()

    def _show(self) -> None:
        workflow.set_current_details(bounds.details("\n".join(f"- {spares.words(one)}" for one in self._claims)))

    @workflow.update(name=SpareUpdates.ASK)
    def ask(self, question: SpareQuestion) -> SpareAnswer:
        answer, self._claims = spares.answered(self._claims, question, workflow.now())
        self._changed = True
        return answer

    @workflow.signal(name=Signals.CLAIM)
    def claim(self, new: SpareClaim) -> None:
        self._claims = spares.with_claim(spares.current(self._claims, workflow.now()), new, workflow.now())
        self._changed = True

    @workflow.signal(name=Signals.RELEASE)
    def release(self, job_id: str) -> None:
        self._claims = spares.without(self._claims, job_id)
        self._changed = True

    @workflow.signal(name=Signals.UPGRADED)
    def upgraded(self) -> None:
        """Causes a workflow task, by which the server reports whether another version is current."""
        self._woken = True

    @workflow.query(name=Queries.STATUS)
    def status(self) -> SpareClaims:
        return SpareClaims(claims=self._claims)
