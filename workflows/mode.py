"""What every mode shares: its handlers, its dialogue with the training side, its phases as people read them, and its undo.

A mode's workflow is a child of `TrainingJob` and derives from `ModeWorkflow`; the procedure itself is in the mode's own file.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import ClassVar, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout
from temporalio.workflow import ActivityHandle

from rekindle.ids import ErrorTypes, Signals, Updates
from rekindle.model import bounds
from rekindle.model.fault import Fault, FaultKind, FaultsNow, not_among
from rekindle.model.job import SubHealthStrategy, TrainingSide
from rekindle.model.recovery import (
    Attachment,
    Mode,
    ModeRequest,
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
from rekindle.policy.clients import Identity, identity
from rekindle.temporal import Attributes
from workflows import steps

T = TypeVar("T")

NOTHING = ModeRequest()
"""What a client asks for who starts a mode without an input: it is told that a job is missing, as for any other wrong input."""

CAUGHT = (Exception, asyncio.CancelledError)
"""What a procedure may catch and answer. Not `GeneratorExit`: a worker that stops drops its workflows, and what answers then runs
outside their loop, without clock and commands."""

UNDO_TRIES = 3
UNDO_PAUSE = timedelta(seconds=5)
"""Between two tries of an undo; each of them is repeated by the server while the cluster does not answer."""


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

    def __init__(self, request: ModeRequest, context: RecoveryContext | None) -> None:
        self.request, self._context = request, context
        self.attachment: Attachment | None = context.attachment if context else None
        self.inbox: list[Report] = list(context.situation.unread) if context else []
        self.taken: list[Report] = []  # since the last order: an equal one is a repetition on a new connection
        self.attempt: list[Order] = []  # the orders of the open attempt, oldest first
        self.delivered = 0  # so many of them were written
        self.delivered_on: Attachment | None = None  # on this stream
        self.touched = False  # an order may have reached the training side
        self.unanswered_since: datetime | None = None  # when an order was last written that has no answer
        self.client = self.attachment.client if self.attachment else ""
        self.sessions = list(context.sessions) if context else []
        """Of the training side, so far."""
        self.lost_manager = ""  # MindIO: another process answers as the manager, in words
        self.faults: tuple[Fault, ...] = _real(context.situation.faults) if context else ()  # what is broken now
        self.met = self.faults  # what was broken when it began
        self.progress: Progress | None = None
        self.phases: list[Phase] = []
        self.current = ""
        self.undo: list[tuple[str, Callable[[], Awaitable[object]]]] = []

    @property
    def context(self) -> RecoveryContext:
        assert self._context is not None, "only the TrainingJob starts the real mode"
        return self._context

    def new_faults(self) -> list[Fault]:
        """What has broken since the mode began; the end of a backup pod is the affair of who made it."""
        return [fault for fault in not_among(self.faults, self.met) if not fault.backup]

    # ---- handlers: they append, the procedure does the work

    @workflow.update(name=Updates.REPORT)
    def take_report(self, report: Report) -> Receipt:
        if report not in self.taken:
            self.taken.append(report)
            self.inbox.append(report)
            self.unanswered_since = None
        return Receipt(info=f"receive report of {report.kind}")

    @take_report.validator
    def _is_awaited(self, report: Report) -> None:
        if report.kind not in self.EXPECTS:
            raise ApplicationError(
                f"the running {self.MODE} waits for no report of {report.kind}", type=ErrorTypes.REPORT_UNEXPECTED
            )

    @workflow.signal(name=Signals.ATTACHED)
    def attached(self, attachment: Attachment) -> None:
        """With MindIO, nothing of an attempt holds in another process. Our own manager's successor goes on with it."""
        if self._speaks_mindio and identity(self.client, attachment.client) is Identity.ANOTHER:
            self.lost_manager = f"another process is the job's manager ({attachment.client}, before {self.client})"
        self.client = attachment.client or self.client
        self.sessions.append(attachment.session)
        self.attachment = attachment

    @workflow.signal(name=Signals.DETACHED)
    def detached(self, attachment: Attachment) -> None:
        if self.attachment and self.attachment.session == attachment.session:
            self.attachment = None

    @workflow.signal(name=Signals.FAULTS)
    def faults_now(self, now: FaultsNow) -> None:
        """All that is broken: what was known before and is not among it has healed."""
        self.faults = now.faults

    @workflow.signal(name=Signals.PROGRESSED)
    def progressed(self, progress: Progress) -> None:
        self.progress = progress

    # ---- dialogue

    def new_attempt(self) -> str:
        self.take_back_orders()
        return orders.attempt(workflow.time_ns(), workflow.random().getrandbits(128))

    @property
    def _speaks_mindio(self) -> bool:
        return self._context is not None and self.context.job.training_side is TrainingSide.MINDIO

    async def order(self, order: Order, within: timedelta) -> bool:
        """Delivers an order wherever the job's stream is; False when it could not be delivered in time."""
        self.taken.clear()
        self.attempt.append(order)
        return await self._deliver(workflow.now() + within, lambda: False)

    def take_back_orders(self) -> None:
        """No stream is told again what was ordered so far."""
        self.attempt.clear()
        self.delivered = 0

    async def _deliver(self, deadline: datetime, needless: Callable[[], bool]) -> bool:
        """Writes what the job's stream lacks of the open attempt, until its last order is written."""
        while (index := self._next_order()) is not None and not (needless() or self.lost_manager):
            here, left, pause = self.attachment, deadline - workflow.now(), self._pace()
            if left <= timedelta(0):
                return False
            if here is None:
                await self._change_within(
                    left, lambda: self.attachment is not None or needless(), "wait until the stream is attached"
                )
            elif pause > timedelta(0):
                await self._change_within(
                    min(left, pause), lambda: self._pace() <= timedelta(0) or needless(), "the client keeps the newest order only"
                )
            elif await self._write(self.attempt[index], here, left, needless):
                self.delivered_on, self.delivered = here, index + 1
                if self.delivered == len(self.attempt):
                    return True
        return False

    def _next_order(self) -> int | None:
        """The place of what the stream lacks of the open attempt. Ours is told all of it again, since its manager carries out an
        order once. MindIO only goes forward: it would carry out an earlier order a second time."""
        written = self.delivered if self.delivered_on == self.attachment else 0
        if written == len(self.attempt):
            return None
        return len(self.attempt) - 1 if self._speaks_mindio else written

    def _pace(self) -> timedelta:
        """How long the next order has to wait: a MindIO client may not have read the one before."""
        if not self._speaks_mindio or self.unanswered_since is None:
            return timedelta(0)
        return self.unanswered_since + orders.MINDIO_PACE - workflow.now()

    async def _write(self, order: Order, here: Attachment, within: timedelta, needless: Callable[[], bool]) -> bool:
        delivery, answers, was_touched = steps.deliver(order, here.queue, within), len(self.taken), self.touched
        self.touched = True  # also when nobody waits for the delivery any more: it may be carried out all the same
        try:
            await workflow.wait_condition(lambda: delivery.done() or self.attachment != here or needless())
        except asyncio.CancelledError:
            abandon(delivery)
            self.unanswered_since = workflow.now()
            raise
        written = False
        if not delivery.done():
            abandon(delivery)
        elif (failure := delivery.exception()) is None:
            written = True
        else:
            self.touched = was_touched or not _never_began(failure)
        if self.touched and len(self.taken) == answers:
            self.unanswered_since = workflow.now()
        return written

    async def heard(self) -> None:
        """Returns when the client has had the time to read the last order: the next mode may give one at once."""
        while (pause := self._pace()) > timedelta(0) and not self.lost_manager:
            await self._change_within(pause, lambda: self.unanswered_since is None, "the client reads the last order")

    @staticmethod
    async def _change_within(left: timedelta | None, condition: Callable[[], bool], why: str) -> None:
        try:
            await workflow.wait_condition(condition, timeout=left, timeout_summary=why)
        except TimeoutError:
            pass

    async def until(self, condition: Callable[[], bool], within: timedelta | None, why: str) -> bool:
        """Waits for a condition; False at the limit. A stream that comes back meanwhile gets again what it may lack of the open
        attempt, under the same uuid: inside its attempt the training side carries out an order once.

        Args:
            within: None, where the condition has a limit of its own and a timer would be needless.
        """
        deadline = workflow.now() + within if within is not None else None
        while not condition():
            left = deadline - workflow.now() if deadline else None
            if left is not None and left <= timedelta(0):
                return False
            if self._stream_lacks_orders():
                limit = self.context.job.limits.order
                here, patience = self.attachment, limit if left is None else min(left, limit)
                if not await self._deliver(workflow.now() + patience, condition) and here == self.attachment:
                    self.delivered_on, self.delivered = here, len(self.attempt)  # tried for as long as orders are tried
                continue
            await self._change_within(left, lambda: condition() or self._stream_lacks_orders(), why)
        return True

    def _stream_lacks_orders(self) -> bool:
        return self.attachment is not None and not self.lost_manager and self._next_order() is not None

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
        if workflow.info().typed_search_attributes.get(Attributes.PHASE) != name:  # the first one was given at the start
            workflow.upsert_search_attributes([Attributes.PHASE.value_set(name)])
        self._show()
        try:
            yield
        except CAUGHT as error:
            self._close_phase(name, began, "cancelled" if _is_cancelled(error) else "failed")
            raise
        self._close_phase(name, began, "")

    def _close_phase(self, name: str, began: datetime, note: str) -> None:
        self.phases.append(Phase(name=name, seconds=(workflow.now() - began).total_seconds(), note=note))
        self.current = ""
        self._show()

    def _show(self) -> None:
        lines = [f"- [{'x' if not p.note else '!'}] {p.name}: {p.seconds:.3f} s" for p in self.phases]
        if self.current:
            lines.append(f"- [ ] **{self.current}** ...")
        workflow.set_current_details(bounds.details("\n".join(lines)))

    async def compensate(self) -> None:
        """Runs the undo of every step that was begun, newest first; each tolerates that there is nothing to undo."""
        while self.undo:
            name, undo = self.undo.pop()
            failure = await self._undone_within(undo, UNDO_TRIES)
            self.phases.append(Phase(name=f"undo: {name}", seconds=0.0, note=failure and f"failed: {failure}"))
        self._show()

    async def _undone_within(self, undo: Callable[[], Awaitable[object]], tries: int) -> str:
        """Why it failed to the last; empty: it is undone. What stays behind would stay for ever: nobody comes after us."""
        while True:
            try:
                await undo()
                return ""
            except ActivityError as error:
                tries -= 1
                workflow.logger.warning("undo failed", extra={"error": str(error.cause), "tries_left": tries})
                if not tries:
                    return str(error.cause)
            await workflow.sleep(UNDO_PAUSE, summary="before the undo is tried again")

    async def close(self, verdict: Verdict, *, cancelled: bool) -> Verdict:
        """The end of the workflow, with what every mode adds to its verdict. A recovery that gave up is a failed workflow, one
        that was cancelled a cancelled one, so that a list of recoveries shows what needs a look. The `TrainingJob` gets the
        verdict all the same.

        Args:
            cancelled: the workflow was asked to cancel.
        """
        seconds = (workflow.now() - workflow.info().start_time).total_seconds()
        verdict = verdict.with_(seconds=seconds, phases=tuple(self.phases), unread=tuple(self.inbox))
        workflow.upsert_search_attributes([Attributes.VERDICT.value_set(verdict.outcome), Attributes.SECONDS.value_set(seconds)])
        if verdict.outcome is Outcome.GIVEN_UP:
            raise ApplicationError(verdict.reason, verdict, type=ErrorTypes.GIVEN_UP, non_retryable=True)
        if verdict.outcome is Outcome.CANCELLED and cancelled:
            await self._tell_parent(verdict)
            raise asyncio.CancelledError(verdict.reason)
        return verdict

    @staticmethod
    async def _tell_parent(verdict: Verdict) -> None:
        parent = workflow.info().parent
        assert parent is not None, "a front has no verdict of its own"
        try:
            await workflow.get_external_workflow_handle(parent.workflow_id).signal(Signals.VERDICT, verdict)
        except FailureError as error:
            workflow.logger.info("the job's workflow is gone", extra={"error": str(error)})


def _is_cancelled(error: BaseException) -> bool:
    return error.outcome is Outcome.CANCELLED if isinstance(error, Ends) else is_cancelled_exception(error)


def _real(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if fault.kind is not FaultKind.SUB_HEALTH)


async def to_its_end(work: Coroutine[object, object, T]) -> T:
    """Finishes what must not stop half-way: a cancellation is looked at when it is done."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task


def abandon(activity: ActivityHandle[T]) -> None:
    """Cancels what nobody waits for any more, and looks at its end: otherwise that is logged as an error."""
    activity.cancel()
    activity.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _never_began(error: BaseException) -> bool:
    """No gateway took the order, not even once."""
    if not isinstance(error, ActivityError) or error.started_event_id:
        return False
    return isinstance(error.cause, ActivityTimeout) and error.cause.cause is None
