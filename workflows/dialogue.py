"""Dialogue of one recovery with the job's training side: sends orders on its stream, and receives reports.

Base class of `ModeWorkflow`. It handles repeated, early, late and lost messages according to the behaviour of real clients.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import ClassVar, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from rekindle.ids import ErrorTypes, Signals, Updates
from rekindle.model.attachment import Attachment
from rekindle.model.dialogue import Heard, Order, Receipt, Report, ReportKind, Strategy
from rekindle.model.fault import ManagerGone
from rekindle.model.incident import RecoveryContext
from rekindle.model.mode import Mode
from rekindle.policy.dialogue import orders, reports
from rekindle.policy.dialogue.client_identity import Identity, identity
from rekindle.policy.training_sides.row import TrainingSideRow
from rekindle.policy.training_sides.table import side_of
from workflows import metrics, steps

T = TypeVar("T")

COUNTED = timedelta(seconds=15)
"""Maximum part of one wait that counts towards the time limit for our training side.

A longer wait was prolonged by an outage of ours.
"""

OVERDUE, AFTER_AN_OUTAGE = timedelta(seconds=10), timedelta(minutes=1)
"""Delay after which the end of a wait shows an outage of the control plane, and the time that clients then get to reconnect and
to repeat their messages."""


class Dialogue:
    """Orders, reports, and the stream that transports them."""

    MODE: ClassVar[Mode]
    EXPECTS: ClassVar[tuple[ReportKind, ...]]
    """Kinds of reports that this mode expects at some time."""

    def __init__(self, context: RecoveryContext | None) -> None:
        self._context = context
        self.attachment: Attachment | None = context.attachment if context else None
        self.inbox: list[Report] = list(context.situation.unread) if context else []
        self.taken: list[Heard] = list(context.situation.heard) if context else []  # the last reports, to recognize repetitions
        self.answers = 0  # number of accepted reports
        self.told_first = context.first_order if context else None
        """Order that was sent with the receipt of the faults, until it is known to be carried out."""
        first = reports.answer_to(self.told_first) if self.told_first else None
        self.asked: list[ReportKind] = [first] if first else []  # kinds of reports that answer the orders of the attempt
        self.attempt: list[Order] = []  # the orders of the open attempt, oldest first
        self.delivered = 0  # number of them that were written
        self.delivered_on: Attachment | None = None  # stream on which they were written
        self._has_ordered = False  # True if an order of this mode was written
        self.is_asked = False  # True while the training side is asked whether it trains
        self.ordered_on: Attachment | None = None
        """Stream on which the last order was first tried."""
        self.touched = self.told_first is not None  # an order may have reached the training side
        self.answered_at: datetime | None = None  # time of the last accepted report
        self.unanswered_since: datetime | None = None  # time of the last written order without an answer
        self.client = self.attachment.client if self.attachment else ""
        self.sessions = list(context.sessions) if context else []
        """Sessions of the training side so far."""
        self.lost_manager = ""  # why the manager counts as lost for good; empty: it does not

    @property
    def context(self) -> RecoveryContext:
        assert self._context is not None, "only the TrainingJob starts the real mode"
        return self._context

    # ---- messages of the training side and its stream

    @workflow.update(name=Updates.REPORT)
    def take_report(self, report: Report) -> Receipt:
        """Accepts a report.

        A report contains neither its order nor a sequence number: an unexpected one is from an earlier attempt, and a known one
        is a repetition.
        """
        update = workflow.current_update_info()
        assert update is not None
        heard = Heard(id=update.id, mark=reports.mark(report))
        if report.kind in self.asked and not reports.is_repeated(heard, self.taken):
            self.taken = [*self.taken, heard][-reports.KEPT :]
            self.answers += 1
            self.inbox.append(report)
            self.unanswered_since, self.answered_at = None, workflow.now()
        return Receipt(info=f"receive report of {report.kind}")

    @take_report.validator
    def _is_awaited(self, report: Report) -> None:
        if report.kind not in self.EXPECTS:
            raise ApplicationError(
                f"the running {self.MODE} waits for no report of {report.kind}", type=ErrorTypes.REPORT_UNEXPECTED
            )
        if problem := self.is_no_answer(report):
            raise ApplicationError(problem, type=ErrorTypes.REPORT_UNEXPECTED)

    def is_no_answer(self, report: Report) -> str:
        """Returns why a report cannot be the answer to the last order; empty: it can."""
        is_late = self.is_asked and report.kind is ReportKind.STATUS and report.strategy not in ("", Strategy.RETRY)
        return f"training was asked to repeat a step since {report.strategy} was ordered" if is_late else ""

    @workflow.signal(name=Signals.ATTACHED)
    def attached(self, attachment: Attachment) -> None:
        """Records the job's new stream.

        A stream of another process ends the attempt, unless the manager's successor continues what its predecessor did.
        """
        if self._context and not self.side.successor_continues and identity(self.client, attachment.client) is Identity.ANOTHER:
            self.lost_manager = f"another process is the job's manager ({attachment.client}, before {self.client})"
        self.client = attachment.client or self.client
        self.sessions.append(attachment.session)
        self.attachment = attachment

    @workflow.signal(name=Signals.DETACHED)
    def detached(self, attachment: Attachment) -> None:
        if self.attachment and self.attachment.session == attachment.session:
            self.attachment = None

    @workflow.signal(name=Signals.MANAGER_LOST)
    def manager_is_lost(self, gone: ManagerGone) -> None:
        """Records that the manager was lost, as the cluster shows another pod.

        The stream may still come from the same address and not show it.
        """
        self.lost_manager = self.lost_manager or gone.how

    # ---- orders

    def new_attempt(self) -> str:
        """Begins a new attempt and returns its uuid. Earlier reports answer no order of it."""
        self.take_back_orders()
        self.inbox.clear()
        self.asked.clear()
        self.taken = reports.of_an_earlier_attempt(self.taken)
        return self.new_uuid()

    @staticmethod
    def new_uuid() -> str:
        """Returns a new uuid for an order that belongs to no attempt."""
        return orders.attempt(workflow.time_ns(), workflow.random().getrandbits(128))

    def go_on_with(self, given: list[Order], told_on: str) -> None:
        """Takes over the orders of an attempt that an earlier mode began, all of which were sent on one stream.

        Args:
            told_on: session of that stream. On another stream a training side that keeps every order gets all of them again, and
                others only get later ones.
        """
        self.attempt = list(given)
        self.asked = [answer for order in given if (answer := reports.answer_to(order))]
        here = self.attachment
        if here and (here.session == told_on or not self.side.keeps_every_order):
            self.delivered, self.delivered_on = len(given), here

    @property
    def side(self) -> TrainingSideRow:
        """Facts about the job's training side."""
        return side_of(self.context.job)

    @property
    def patience(self) -> timedelta:
        """Time limit for sending an order for which the training side waits."""
        limits = self.context.job.limits
        return limits.absence if self.side.waits_for_orders else limits.order

    async def order(self, order: Order, within: timedelta, needless: Callable[[], bool] = lambda: False) -> bool:
        """Sends an order on the job's stream; False: it could not be sent in time.

        Args:
            needless: returns True when the order is not to be tried any longer.
        """
        if answer := reports.answer_to(order):
            self.asked.append(answer)
        self.attempt.append(order)
        self.ordered_on = here = self.attachment
        if here and self.told_first and (order.uuid, here.session) == (self.told_first.uuid, self.told_first.session):
            self.delivered, self.delivered_on = len(self.attempt), here
            written = True
        else:
            written = await self._deliver(within, needless)
            self.ordered_on = self.ordered_on or self.delivered_on
        if written and not self._has_ordered:
            self._has_ordered = True
            metrics.first_order(self.context.situation)
        return written

    def may_be_lost(self) -> bool:
        """Returns whether the report to the last order may be lost in an outage, as the training side does not repeat it.

        The time counts from the first try of the order, as a gateway may have written it and died before it confirmed this.
        """
        return not self.side.repeats_reports and self.attachment is not None and self.attachment != self.ordered_on

    def take_back_unwritten(self) -> None:
        """Drops the orders that no stream took in time, so that they are not sent any more and do not delay later orders."""
        del self.attempt[self.delivered :]

    def take_back_orders(self) -> None:
        """Drops all orders so far, so that no stream gets them again."""
        self.attempt.clear()
        self.delivered = 0

    async def comes_back(self, decided: Callable[[], bool]) -> None:
        """Waits for a client that is disconnected when its report is due, and will not repeat it.

        Training may run, and is asked afterwards.
        """
        if not self.side.repeats_reports and self.attachment is None:
            absence = self.context.job.limits.absence
            await self.until(lambda: self.attachment is not None or decided(), absence, "the client comes back, or has left")

    async def _deliver(self, left: timedelta, needless: Callable[[], bool]) -> bool:
        """Sends the orders of the attempt that the job's stream lacks, until the last one is sent.

        The limit of a training side that does not wait continues during an outage of ours.
        """
        waits = self.side.waits_for_orders

        def in_vain() -> bool:
            return bool(self.lost_manager) or needless()

        while (index := self._next_order()) is not None and not in_vain():
            here, pause, began = self.attachment, self._pace(), workflow.now()
            if left <= timedelta(0):
                return False
            now = min(left, COUNTED) if waits else left
            if here is None:
                await self._change_within(
                    now, lambda: self.attachment is not None or in_vain(), "wait until the stream is attached"
                )
            elif pause > timedelta(0):
                await self._change_within(
                    min(now, pause), lambda: self._pace() <= timedelta(0) or in_vain(), "the client keeps the newest order only"
                )
            elif await self._write(self.attempt[index], here, now, in_vain):
                self.delivered_on, self.delivered = here, index + 1
                if self.delivered == len(self.attempt):
                    return True
            took = workflow.now() - began
            left -= min(took, now) if waits else took
        return False

    def _next_order(self) -> int | None:
        """Returns the index of the next order that the stream lacks; None: it has all.

        A training side that carries out each order once gets all of them again. Another one would repeat an earlier order, so it
        gets only the last one.
        """
        written = self.delivered if self.delivered_on == self.attachment else 0
        if written == len(self.attempt):
            return None
        return written if self.side.keeps_every_order else len(self.attempt) - 1

    def _pace(self) -> timedelta:
        """Returns how long the next order has to wait, as the client may not have read the previous one."""
        if self.side.keeps_every_order or self.unanswered_since is None:
            return timedelta(0)
        return self.unanswered_since + self.side.pace - workflow.now()

    async def _write(self, order: Order, here: Attachment, within: timedelta, in_vain: Callable[[], bool]) -> bool:
        order = order.model_copy(update={"at_once": self.side.keeps_every_order, "session": here.session})
        delivery, answers, was_touched = steps.deliver(order, here.queue, within), self.answers, self.touched
        self.touched = True  # even if the delivery is not awaited any more, as the order may be carried out
        try:
            await workflow.wait_condition(lambda: delivery.done() or self.attachment != here or in_vain())
        except asyncio.CancelledError:
            cancel_and_forget(delivery)
            self.unanswered_since = workflow.now()
            raise
        written = False
        if not delivery.done():
            cancel_and_forget(delivery)
        elif (failure := delivery.exception()) is None:
            written = True
        else:
            self.touched = was_touched or not _never_began(failure)
        if self.touched and self.answers == answers:
            self.unanswered_since = workflow.now()
        return written

    async def heard(self) -> None:
        """Waits until the client has had time to read the last order, as the next mode may send one at once."""
        while (pause := self._pace()) > timedelta(0) and not self.lost_manager:
            await self._change_within(pause, lambda: self.unanswered_since is None, "the client reads the last order")

    @staticmethod
    async def _change_within(left: timedelta | None, condition: Callable[[], bool], why: str) -> None:
        try:
            await workflow.wait_condition(condition, timeout=left, timeout_summary=why)
        except TimeoutError:
            pass

    async def until(self, condition: Callable[[], bool], within: timedelta | None, why: str) -> bool:
        """Waits for a condition; False: the time limit was reached first.

        A stream that reconnects meanwhile gets the missing orders of the attempt again, with the same uuid: within its attempt
        the training side carries out an order once.

        Args:
            within: None, where the condition has its own limit and needs no timer.
        """
        deadline = workflow.now() + within if within is not None else None
        while not condition():
            left = deadline - workflow.now() if deadline else None
            if within is not None and left is not None and left <= timedelta(0):
                if left > -OVERDUE or within <= AFTER_AN_OUTAGE:
                    return False
                deadline, within = workflow.now() + AFTER_AN_OUTAGE, AFTER_AN_OUTAGE
                continue
            if self._stream_lacks_orders():
                here, patience = self.attachment, self.patience if left is None else min(left, self.patience)
                written = await self._deliver(patience, condition)
                if not (written or condition()) and here == self.attachment:
                    self.delivered_on, self.delivered = (
                        here,
                        len(self.attempt),
                    )  # counts as written, as it was tried until the limit
                continue
            await self._change_within(left, lambda: condition() or self._stream_lacks_orders(), why)
        return True

    def _stream_lacks_orders(self) -> bool:
        return self.attachment is not None and not self.lost_manager and self._next_order() is not None

    # ---- reports

    def next_report(self, kind: ReportKind) -> Report | None:
        """Removes and returns the oldest unread report of a kind; None: there is none."""
        for report in self.inbox:
            if report.kind is kind:
                self.inbox.remove(report)
                return report
        return None

    def has_report(self, kind: ReportKind) -> bool:
        return any(report.kind is kind for report in self.inbox)


def cancel_and_forget(work: asyncio.Task[T]) -> None:
    """Cancels work, such as an activity, whose result is not needed. Its error is consumed, which would otherwise be logged."""
    work.cancel()
    work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _never_began(error: BaseException) -> bool:
    """Returns whether no gateway started the activity that sends the order."""
    if not isinstance(error, ActivityError) or error.started_event_id:
        return False
    return isinstance(error.cause, ActivityTimeout) and error.cause.cause is None
