"""What every mode shares: its handlers, its dialogue with the training side, its phases as people read them, and its undo.

A mode's workflow is a child of `TrainingJob` and derives from `ModeWorkflow`; the procedure itself is in the mode's own file.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import ClassVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityHandle

from rekindle.ids import ErrorTypes, Signals, Updates
from rekindle.model.fault import Fault
from rekindle.model.job import SubHealthStrategy
from rekindle.model.recovery import (
    Attachment,
    Mode,
    ModeInput,
    Order,
    Outcome,
    Phase,
    Progress,
    Receipt,
    RecoveryContext,
    Report,
    ReportKind,
    Verdict,
)
from rekindle.policy import orders
from rekindle.temporal import Attributes
from workflows import steps


class Ends(Exception):
    """A mode ends before its last step. Raised by the procedures, turned into a verdict by `ModeWorkflow.conclude`."""

    def __init__(
        self, outcome: Outcome, reason: str, *, next_mode: Mode | None = None, policy: SubHealthStrategy | None = None
    ) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.next_mode, self.policy = outcome, reason, next_mode, policy


class ModeWorkflow:
    """State and handlers of one recovery."""

    MODE: ClassVar[Mode]
    EXPECTS: ClassVar[tuple[ReportKind, ...]]
    """Kinds of reports that this mode waits for at some time."""

    def __init__(self, request: ModeInput) -> None:
        self.request = request
        context = request.context
        self.attachment: Attachment | None = context.attachment if context else None
        self.inbox: list[Report] = list(context.situation.unread) if context else []
        self.taken: list[Report] = []  # since the last order: an equal one is a repetition on a new connection
        self.last_order: Order | None = None
        self.failed_pods: dict[str, str] = {}
        self.real_faults: list[Fault] = []
        self.progress: Progress | None = None
        self.phases: list[Phase] = []
        self.current = ""
        self.undo: list[tuple[str, Callable[[], Awaitable[object]]]] = []
        self.front_verdict: Verdict | None = None

    @property
    def context(self) -> RecoveryContext:
        assert self.request.context is not None, "only the TrainingJob starts the real mode"
        return self.request.context

    # ---- handlers: they append, the procedure does the work

    @workflow.update(name=Updates.REPORT)
    def take_report(self, report: Report) -> Receipt:
        if report not in self.taken:
            self.taken.append(report)
            self.inbox.append(report)
        return Receipt(info=f"receive report of {report.kind}")

    @take_report.validator
    def _is_awaited(self, report: Report) -> None:
        if report.kind not in self.EXPECTS:
            raise ApplicationError(
                f"the running {self.MODE} waits for no report of {report.kind}", type=ErrorTypes.REPORT_UNEXPECTED
            )

    @workflow.signal(name=Signals.ATTACHED)
    def attached(self, attachment: Attachment) -> None:
        self.attachment = attachment

    @workflow.signal(name=Signals.POD_FAILED)
    def pod_failed(self, fault: Fault) -> None:
        self.failed_pods[fault.pod_uid] = fault.message or f"pod {fault.pod} failed"

    @workflow.signal(name=Signals.REAL_FAULT)
    def real_fault_seen(self, fault: Fault) -> None:
        self.real_faults.append(fault)

    @workflow.signal(name=Signals.PROGRESSED)
    def progressed(self, progress: Progress) -> None:
        self.progress = progress

    @workflow.signal(name=Signals.VERDICT)
    def verdict_of_the_real_mode(self, verdict: Verdict) -> None:
        self.front_verdict = verdict

    # ---- dialogue

    def new_attempt(self) -> str:
        return orders.attempt(workflow.time_ns(), workflow.random().getrandbits(128))

    async def order(self, order: Order, within: timedelta) -> bool:
        """Delivers an order wherever the job's stream is; False when it could not be delivered in time."""
        self.taken.clear()
        self.last_order = order
        return await self._deliver(order, workflow.now() + within)

    async def _deliver(self, order: Order, deadline: datetime) -> bool:
        while (left := deadline - workflow.now()) > timedelta(0):
            if not await self._attached_within(left):
                return False
            here = self.attachment
            assert here is not None
            delivery = steps.deliver(order, here.queue, deadline - workflow.now())
            await workflow.wait_condition(lambda: delivery.done() or self.attachment != here)  # noqa: B023
            if delivery.done() and await _succeeded(delivery):
                return True
            delivery.cancel()
        return False

    async def _attached_within(self, left: timedelta) -> bool:
        try:
            await workflow.wait_condition(
                lambda: self.attachment is not None, timeout=left, timeout_summary="wait until the stream is attached"
            )
        except TimeoutError:
            return False
        return True

    async def until(self, condition: Callable[[], bool], within: timedelta, why: str) -> bool:
        """Waits for a condition; False at the limit. A stream that comes back meanwhile gets the last order again, under the same
        uuid: it may have been lost, and inside its attempt the training side carries it out once."""
        deadline = workflow.now() + within
        while not condition():
            here = self.attachment
            left = deadline - workflow.now()
            if left <= timedelta(0):
                return False
            try:
                await workflow.wait_condition(
                    lambda: condition() or self.attachment != here,  # noqa: B023
                    timeout=left,
                    timeout_summary=why,
                )
            except TimeoutError:
                return condition()
            if not condition() and self.last_order and self.attachment is not None:
                await self._deliver(self.last_order, min(deadline, workflow.now() + self.context.job.limits.order))
        return True

    def next_report(self, kind: ReportKind) -> Report | None:
        """Takes the oldest unread report of a kind."""
        for report in self.inbox:
            if report.kind is kind:
                self.inbox.remove(report)
                return report
        return None

    def has_report(self, kind: ReportKind) -> bool:
        return any(report.kind is kind for report in self.inbox)

    # ---- phases, verdict, undo

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """One line of the procedure: shown while it runs, and with its seconds in the post-mortem."""
        began = workflow.now()
        self.current = name
        workflow.upsert_search_attributes([Attributes.PHASE.value_set(name)])
        self._show()
        note = "failed"
        try:
            yield
            note = ""
        finally:
            self.phases.append(Phase(name=name, seconds=(workflow.now() - began).total_seconds(), note=note))
            self.current = ""
            self._show()

    def _show(self) -> None:
        lines = [f"- [{'x' if not p.note else '!'}] {p.name}: {p.seconds:.3f} s" for p in self.phases]
        if self.current:
            lines.append(f"- [ ] **{self.current}** ...")
        workflow.set_current_details("\n".join(lines))

    async def compensate(self) -> None:
        """Runs the undo of every step that was begun, newest first; each tolerates that there is nothing to undo."""
        while self.undo:
            name, undo = self.undo.pop()
            try:
                await undo()
                self.phases.append(Phase(name=f"undo: {name}", seconds=0.0))
            except ActivityError as error:
                workflow.logger.warning("undo failed", extra={"undo": name, "error": str(error.cause)})
                self.phases.append(Phase(name=f"undo: {name}", seconds=0.0, note=f"failed: {error.cause}"))
        self._show()

    def conclude(self, verdict: Verdict) -> Verdict:
        """The verdict with what every mode adds, shown in the search attributes."""
        seconds = (workflow.now() - workflow.info().start_time).total_seconds()
        workflow.upsert_search_attributes([Attributes.VERDICT.value_set(verdict.outcome), Attributes.SECONDS.value_set(seconds)])
        return verdict.model_copy(update={"seconds": seconds, "phases": tuple(self.phases), "unread": tuple(self.inbox)})


async def _succeeded(delivery: ActivityHandle[None]) -> bool:
    try:
        await delivery
    except ActivityError:
        return False
    return True
