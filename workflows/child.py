"""Mode as a child workflow of `TrainingJob`: it has a readable id, receives news, and is ended at its deadline."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from rekindle.ids import ErrorTypes, recovery_workflow
from rekindle.model import bounds
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.job import Job
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes.cases import Case
from rekindle.policy.modes.mode_table import About, row_of
from rekindle.temporal import TASK_TIMEOUT, Attributes
from workflows import steps, ui_text

CONFLICT_PAUSE = timedelta(seconds=1)
"""Pause before a child is started again whose id is still held by a recovery of an earlier workflow of the job, which is ending.
"""
CONFLICTS = 120


class Child:
    def __init__(self, mode: Mode, case: Case, incident: int, job: Job) -> None:
        self.mode, self.id = mode, recovery_workflow(job, incident, mode)
        self.told: Verdict | None = None
        """Verdict that a cancelled mode sent as a signal. A cancelled workflow has no result."""
        self.was_terminated = False
        """True if the mode was terminated from outside."""
        self._case, self._incident, self._job = case, incident, job
        self._row = row_of(mode)
        self._handle: ChildWorkflowHandle[object, Verdict] | None = None
        self._news: list[tuple[str, Any]] = []
        self._why_cancelled = ""
        self._late = False

    def tell(self, signal: str, payload: object) -> None:
        """Queues a signal for the mode; `run` sends it."""
        self._news.append((signal, payload))

    def cancel(self, why: str) -> None:
        self._why_cancelled = self._why_cancelled or why

    # ---- its start

    async def start(self, context: RecoveryContext) -> None:
        context = context.model_copy(update={"phase": self._row.first_phase(self._job)})
        for _ in range(CONFLICTS):
            try:
                self._handle = await workflow.start_child_workflow(
                    self._row.workflow,
                    args=[self._request(), context],
                    id=self.id,
                    result_type=Verdict,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    task_timeout=TASK_TIMEOUT,
                    search_attributes=self._attributes(),
                    static_summary=ui_text.recovery_summary(self.mode, self._job, self._case),
                    static_details=ui_text.recovery_details(self.mode, self._job, self._incident, self._case),
                )
                return
            except WorkflowAlreadyStartedError:
                await workflow.sleep(CONFLICT_PAUSE, summary="another recovery still holds the id")
        raise ApplicationError(f"workflow id {self.id} is held by somebody else")

    def _request(self) -> ModeRequest:
        """Returns the request for the mode. A mode that follows the requested one moves no links and tests nothing."""
        replicas = self._case.replicas if self._row.about is About.SIZE else None
        found = ModeRequest(mode=self.mode, pod_rank=self._case.pod_rank, replicas=replicas)
        asked = self._case.request
        if asked is None or asked.request.mode is not self.mode:
            return found
        wanted = asked.request
        known: dict[str, object] = {"links": wanted.links, "stress": wanted.stress, "replicas": wanted.replicas}
        if self._row.about is About.SIZE:  # a person has set the size, and the job keeps it
            known["requested_by"] = wanted.requested_by or "a client"
        return found.model_copy(update=known)

    def _attributes(self) -> TypedSearchAttributes:
        faults = self._case.faults
        attributes: list[SearchAttributePair[Any]] = [
            SearchAttributePair(Attributes.JOB, self._job.name),
            SearchAttributePair(Attributes.MODE, self.mode.value),
            SearchAttributePair(Attributes.PHASE, self._row.first_phase(self._job)),
            SearchAttributePair(Attributes.NODE, bounds.keywords(sorted({fault.node for fault in faults if fault.node}))),
            SearchAttributePair(Attributes.FAULT, bounds.keyword(self._case.summary)),
        ]
        if faults and (since := faults[0].accepted_at):
            attributes.append(SearchAttributePair(Attributes.FAULT_AT, since))
        return TypedSearchAttributes(attributes)

    # ---- its life

    async def verdict(self) -> Verdict:
        """Waits for the end of the mode and returns its verdict.

        A mode that fails, or exceeds its deadline, has the outcome `escalate`.
        """
        assert self._handle is not None, "it was started"
        try:
            return await self._watch(self._handle)
        except ChildWorkflowError as error:
            verdict = self._without_result(error)
        return await self._unless_it_waited(verdict) if self.was_terminated and self._row.about is About.SIZE else verdict

    async def _watch(self, child: ChildWorkflowHandle[object, Verdict]) -> Verdict:
        limit, patience = self._row.deadline(self._job.limits), self._job.limits.clean_up
        until = workflow.now() + limit if limit else None
        stopping = False
        while not child.done():
            try:
                await workflow.wait_condition(
                    lambda: child.done() or bool(self._news) or bool(self._why_cancelled and not stopping),  # noqa: B023
                    timeout=max(until - workflow.now(), timedelta(0)) if until else None,
                    timeout_summary=f"deadline of the {self.mode}",
                )
            except TimeoutError:
                if self._late:
                    await steps.terminate(child.id, f"did not end {patience} after its cancellation")
                    break
            if until and until <= workflow.now():
                until = until if self._late else workflow.now() + patience
                self._late = True
            if (self._late or self._why_cancelled) and not stopping:
                stopping = True
                child.cancel()
            await self._pass_on(child)
        return self._judged(await child)

    async def _pass_on(self, child: ChildWorkflowHandle[object, Verdict]) -> None:
        while self._news and not child.done():
            signal, payload = self._news.pop(0)
            try:
                await child.signal(signal, payload)
            except FailureError as error:
                workflow.logger.info("mode already ended", extra={"signal": signal, "error": str(error)})

    # ---- its end

    def _judged(self, verdict: Verdict) -> Verdict:
        """Returns the verdict of a mode that was stopped at its deadline: it leads to the next mode, unless the mode reached its
        end after all."""
        if not self._late or self._why_cancelled or verdict.outcome is not Outcome.CANCELLED:
            return verdict
        reason = f"the {self.mode} outlived its deadline: {verdict.reason}"
        if self._row.about is About.SIZE and not verdict.was_interrupted:  # training is untouched, so that nothing has to follow
            return verdict.with_(outcome=Outcome.IGNORED, reason=reason)
        return verdict.with_(outcome=Outcome.ESCALATE, reason=reason)

    async def _unless_it_waited(self, verdict: Verdict) -> Verdict:
        """Returns the verdict of a change of the size that was terminated from outside. If it had ordered nothing, training is
        as it was, and nothing has to follow."""
        try:
            end = await steps.await_recovery_end(self.id)
        except ActivityError:
            return verdict
        if not end.settled:
            return verdict
        reason = f"{verdict.reason}; it had ordered nothing, and training goes on as before"
        return verdict.with_(outcome=Outcome.IGNORED, reason=bounds.reason(reason), training=None)

    def _without_result(self, error: ChildWorkflowError) -> Verdict:
        """Returns the verdict of a child workflow without result.

        A recovery that gave up is a failed workflow with its verdict in the error; a cancelled one has sent its verdict as a
        signal. Any other one was cut off. If it hands ranks over, or pods leave, it is unknown which pods train, and a restart
        follows.
        """
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == ErrorTypes.GIVEN_UP:
            return Verdict.model_validate(cause.details[0])
        if isinstance(cause, CancelledError):
            why = self._why_cancelled or "cancelled"
            return self._judged(self.told or Verdict(mode=self.mode, outcome=Outcome.CANCELLED, reason=why))
        self.was_terminated = isinstance(cause, TerminatedError) and not self._late
        left = Training.LOST if self._row.hands_over or self._row.repeats else None
        return Verdict(mode=self.mode, outcome=Outcome.ESCALATE, reason=f"the mode failed: {cause or error}", training=left)
