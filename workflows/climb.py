"""Runs the modes of one ladder as children of `TrainingJob`, one at a time, and passes on what concerns them."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ApplicationError, ChildWorkflowError, FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from rekindle.ids import Workflows, recovery_workflow
from rekindle.model.base import Value
from rekindle.model.limits import Limits
from rekindle.model.recovery import Mode, ModeInput, Outcome, RecoveryContext, Situation, Verdict
from rekindle.model.state import JobState
from rekindle.policy.incidents import Case
from rekindle.temporal import TASK_TIMEOUT, Attributes
from workflows import steps

WORKFLOWS: dict[Mode, str] = {Mode.HOT_SWITCH: Workflows.HOT_SWITCH, Mode.JOB_RESCHEDULING: Workflows.JOB_RESCHEDULING}

LIMITS_OF: dict[Mode, tuple[str, ...]] = {
    Mode.HOT_SWITCH: (
        "order",  # three orders at most are waited for at length
        "order",
        "order",
        "backup_scheduled",
        "backup_start",
        "pause",
        "old_pod_deleted",
        "migration_delivered",
        "resume",
        "old_pod_deleted",
    ),
    Mode.JOB_RESCHEDULING: ("pods_stopped", "pods_stopped", "pods_running", "restart"),
}

CONFLICT_PAUSE = timedelta(seconds=1)
"""Before a child is started again whose id is still held by the last one."""
CONFLICTS = 120


class Climb:
    """One incident's way down its ladder."""

    def __init__(self, case: Case, state: JobState) -> None:
        self.case = case
        self.mode: Mode | None = None
        self._number = state.incidents
        self._situation = Situation(faults=case.faults)
        self._incarnation = state.progress.incarnation if state.progress else ""
        self._news: list[tuple[str, Value]] = []
        self._cancelled = False
        self._is_running = False
        self._withdrawn = False
        """The front gave up the mode that runs. It holds for that mode only."""

    def describe(self) -> str:
        return f"{self.mode or 'an incident'}: {self.case.summary}"

    def tell(self, signal: str, payload: Value) -> None:
        """Notes what the running mode should hear; `run` passes it on."""
        self._news.append((signal, payload))

    def cancel(self) -> None:
        """The job ends: whatever runs is cancelled, and nothing comes after it."""
        self._cancelled = True

    def withdraw(self, front: str) -> None:
        """A front gave up its request: its own mode is cancelled, if it runs, and goes to its end where it must not stop
        half-way. A mode that had to come after it is not the front's any more."""
        request = self.case.request
        if request and request.front == front and self.mode is request.mode and self._is_running:
            self._withdrawn = True

    def next_mode(self, verdicts: list[Verdict]) -> Mode | None:
        """The next mode of the ladder; a verdict may name it. A real fault that ended a hot switch continues below it."""
        if not verdicts:
            return self.case.plan.modes[0]
        last = verdicts[-1]
        interrupted = last.outcome is Outcome.CANCELLED and last.next_mode is not None
        if self._cancelled or not (last.outcome is Outcome.ESCALATE or interrupted):
            return None
        left = [mode for mode in self.case.plan.modes if mode not in self._situation.tried]
        return last.next_mode if last.next_mode in left else next(iter(left), None)

    async def run(self, mode: Mode, state: JobState) -> Verdict:
        """Runs one mode to its verdict. A mode that fails, or outlives its deadline, is an `escalate` too."""
        self.mode = mode
        self._news.clear()
        self._is_running, self._withdrawn = True, False
        try:
            verdict = await self._verdict(await self._start(mode, state), state.job.limits)
        except ChildWorkflowError as error:
            verdict = Verdict(mode=mode, outcome=Outcome.ESCALATE, reason=f"the mode failed: {error.cause or error}")
        finally:
            self._is_running = False
        self._situation = self._situation.model_copy(update={"tried": (*self._situation.tried, mode), "unread": verdict.unread})
        return verdict

    async def _start(self, mode: Mode, state: JobState) -> ChildWorkflowHandle[object, Verdict]:
        job = state.job
        nodes = sorted({fault.node for fault in self.case.faults if fault.node})
        attributes: list[SearchAttributePair[Any]] = [
            SearchAttributePair(Attributes.JOB, job.name),
            SearchAttributePair(Attributes.MODE, mode.value),
            SearchAttributePair(Attributes.NODE, nodes),
            SearchAttributePair(Attributes.FAULT, self.case.summary[:200]),
        ]
        if self.case.faults:
            attributes.append(SearchAttributePair(Attributes.FAULT_AT, self.case.faults[0].seen_at))
        for _ in range(CONFLICTS):
            try:
                return await workflow.start_child_workflow(
                    WORKFLOWS[mode],
                    self._input(state),
                    id=recovery_workflow(job.id),
                    result_type=Verdict,
                    parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                    task_timeout=TASK_TIMEOUT,
                    search_attributes=TypedSearchAttributes(attributes),
                    static_summary=f"{mode} of {job.name}: {self.case.summary}"[:200],
                    static_details=self._details(mode, state),
                )
            except WorkflowAlreadyStartedError:
                await workflow.sleep(CONFLICT_PAUSE, summary="another recovery still holds the id")
        raise ApplicationError(f"workflow id {recovery_workflow(job.id)} is held by somebody else")

    def _input(self, state: JobState) -> ModeInput:
        known = (*state.faults, *(pod.fault for pod in state.sub_healthy))  # their nodes are avoided, if policy minds them
        faults = tuple(dict.fromkeys((*self.case.faults, *known)))
        context = RecoveryContext(
            job=state.job,
            incident=self._number,
            attachment=state.attachment,
            situation=self._situation.model_copy(update={"faults": faults}),
            incarnation=self._incarnation,
            policy=state.policy,
        )
        return ModeInput(job_id=state.job.id, pod_rank=self.case.pod_rank, context=context)

    def _details(self, mode: Mode, state: JobState) -> str:
        job = state.job
        faults = "\n".join(
            f"- {f.kind} {f.node} {f.pod} {f.code} {f.message} (seen by {f.source})" for f in self.case.faults[:20]
        )
        ladder = " -> ".join(f"**{m}**" if m is mode else m for m in self.case.plan.modes)
        limits = "\n".join(f"- {name}: {value.total_seconds():g} s" for name, value in job.limits)
        return (
            f"Incident {self._number} of job `{job.name}` ({job.id}), {job.pods} pods, {job.ranks} ranks, "
            f"training side {job.training_side}\n\n**Fault**\n\n{faults or '- none: requested'}\n\n"
            f"**Ladder** {ladder}\n\n**Limits**\n\n{limits}"
        )

    async def _verdict(self, child: ChildWorkflowHandle[object, Verdict], limits: Limits) -> Verdict:
        assert self.mode is not None
        until, patience = workflow.now() + deadline(self.mode, limits), limits.clean_up
        stopping = late = False
        while not child.done():
            try:
                await workflow.wait_condition(
                    lambda: child.done() or bool(self._news) or (self._is_to_stop() and not stopping),  # noqa: B023
                    timeout=max(until - workflow.now(), timedelta(0)),
                    timeout_summary=f"deadline of the {self.mode}",
                )
            except TimeoutError:
                if late:
                    await steps.terminate(child.id, f"did not end {patience} after its cancellation")
                    break
            if self._cancelled or until <= workflow.now():
                late, until = True, until if late else workflow.now() + patience
            if (late or self._is_to_stop()) and not stopping:
                stopping = True
                child.cancel()
            await self._pass_on(child)
        verdict = await child
        return self._too_late(verdict) if late and not self._cancelled else verdict

    def _is_to_stop(self) -> bool:
        return self._cancelled or self._withdrawn

    def _too_late(self, verdict: Verdict) -> Verdict:
        """A mode that had to be stopped leads to the next one, unless it came to its end after all."""
        if verdict.outcome is not Outcome.CANCELLED:
            return verdict
        reason = f"the {self.mode} outlived its deadline: {verdict.reason}"
        return verdict.model_copy(update={"outcome": Outcome.ESCALATE, "reason": reason})

    async def _pass_on(self, child: ChildWorkflowHandle[object, Verdict]) -> None:
        while self._news and not child.done():
            signal, payload = self._news.pop(0)
            try:
                await child.signal(signal, payload)
            except FailureError as error:
                workflow.logger.info("the mode has ended", extra={"signal": signal, "error": str(error)})


def deadline(mode: Mode, limits: Limits) -> timedelta:
    """When a mode that has not ended is ended: the sum of its limits, and time to clean up."""
    return sum((getattr(limits, name) for name in LIMITS_OF[mode]), limits.clean_up)
