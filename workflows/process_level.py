"""Base class of the modes that repair processes: the common opening, one order that says what is to be done, and its answer.

A mode that fails leads to the next of the ladder, which goes on where training stands.
"""

from datetime import datetime, timedelta

from temporalio import workflow

from rekindle.model.dialogue import Order, Report, ReportKind, Strategy
from rekindle.model.fault import TRAINING_SIDE, WATCHER, Fault, not_among
from rekindle.model.keys import RANK_TABLE_READY
from rekindle.model.mode import Outcome
from rekindle.model.situation import Handled
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes import faulty_ranks, recovery_opening
from workflows.asked import asked_whether_it_trains
from workflows.mode import Ends, seconds
from workflows.non_interruptible import NonInterruptible
from workflows.opening import open_recovery
from workflows.platform import asked_platform

NEWS = timedelta(seconds=1)
"""Time limit for the report of a second fault after a repair has failed.

The answer to the order comes directly, the fault through the job.
"""

CARRIED_OUT = timedelta(seconds=2)
"""Time limit for a repair whose order was sent with a receipt.

Afterwards the order is sent again; our manager carries out an order once.
"""


class ProcessLevel(NonInterruptible):
    """Mode that repairs processes. Its `carry_out` sends the order after the opening and returns the answer."""

    known: tuple[Fault, ...] = ()
    """Faults that stood when the last strategy was ordered."""

    ordered_at: datetime | None = None
    """Time at which the last strategy was sent; None: it is being sent."""

    mended: tuple[Handled, ...] = ()
    """Faults of other sources than the watcher and the training side that the last strategy repairs.

    Empty unless all of their ranks were announced.
    """

    ASKS_FIRST = False
    """True if so much time passes between the opening and the order that training must be known to stand, and to accept the
    order."""

    LOADS = True
    """False if nothing has to load before the answer to the order, so that a report that may be lost is waited for less long."""

    EXPECTS = (ReportKind.STOP_COMPLETE, ReportKind.STRATEGIES, ReportKind.STATUS)

    # ---- the procedure's parts

    async def open(self, strategy: Strategy) -> None:
        """Stops training, announces the faults, and waits until the training side offers this strategy.

        Training that already stands gets the order without an offer.

        Raises:
            Ends: it does not.
        """
        self.situation = recovery_opening.updated(self.context.job, self.situation, self.faults)
        if self.told_first:
            return
        if self.ASKS_FIRST or not recovery_opening.is_told_at_once(self.context.job, self.situation, strategy):
            await self._ask_for(strategy)
        else:
            self.situation = recovery_opening.unasked(self.context.job, self.situation, self.new_attempt(), strategy)

    async def _ask_for(self, strategy: Strategy) -> None:
        situation = await open_recovery(self, self.situation)
        if strategy not in (*situation.offers, Strategy.EXIT):  # which is always possible
            offered = ", ".join(situation.offers) or "nothing but to leave"
            raise Ends(Outcome.ESCALATE, f"the training side does not offer {strategy}, it offers {offered}")
        if strategy is Strategy.RECOVER and self.context.platform:
            await self._rank_table_is_ready()

    async def _rank_table_is_ready(self) -> None:
        """Waits until the platform has prepared the rank table for a recovery.

        Raises:
            Ends: it has not, or says that it cannot.
        """
        limit = self.context.job.limits.rank_table
        async with self.phase("platform prepares the rank table"):
            answer = await asked_platform(self, RANK_TABLE_READY, limit)
        if answer.value != "true":
            said = f"says {answer.value!r}" if answer.answered else f"has not said `true` within {seconds(limit)}"
            raise self.fails(f"the rank table is not ready: the platform {said} ({RANK_TABLE_READY})")

    async def carry_out(self, order: Order, within: timedelta) -> Report:
        """Sends the order and returns the training side's answer.

        Raises:
            Ends: there is none.
        """
        self.mended = self._told_by_others()
        await self._strategy(order)
        return await self.answered(order.name, within)

    async def answered(self, order: str, within: timedelta) -> Report:
        """Returns the training side's answer to an order that was sent. If it may be lost, training is asked.

        Raises:
            Ends: there is none.
        """
        await self.await_answer(within, f"wait for the report of {order}")
        await self.comes_back(self.is_answered)
        if self._reports_another_fault():
            await self.until(lambda: self.has_report(ReportKind.STATUS), NEWS, "the status may cross the report of a fault")
        if report := self._heard_status():
            return report
        if self._reports_another_fault():
            self.went_on_at = self.ordered_at
            return Report(kind=ReportKind.STATUS, info="its report was lost, and training went on: it reports another fault")
        if self.may_be_lost() and not self.is_answered():
            known = self.known
            info = await asked_whether_it_trains(self, lambda fault: not not_among((fault,), known))
            return Report(kind=ReportKind.STATUS, info=info)
        raise self.no_answer(order, within)

    async def _strategy(self, order: Order) -> None:
        if not self.told_first:
            ordered = (*self.situation.ordered, order.change_strategy)
            self.situation = self.situation.with_(ordered=ordered, answer_by=None)
        self.known, self.ordered_at = self.faults, None
        if not await self.order(order, self.patience):
            raise self.ends_all(self.lost_manager or f"the order `{order.name}` could not be delivered in time")
        self.situation = self.situation.with_(stopped=True)
        self.ordered_at = workflow.now()
        if self.told_first:
            await self._until_carried_out()

    async def _until_carried_out(self) -> None:
        """Waits for the answer to an order that was sent with a receipt.

        The gateway may have died with it, so the order is then sent again.
        """
        self.told_first = None
        if not await self.until(self.is_answered, CARRIED_OUT, "the order of the receipt is carried out"):
            self.delivered_on = None

    def _heard_status(self) -> Report | None:
        report = self.next_report(ReportKind.STATUS)
        if report and not report.code:
            self.went_on_at = self.answered_at
        return report

    def _reports_another_fault(self) -> bool:
        """Returns whether another fault was reported since the strategy was sent, which shows that training went on.

        Without an outage this is False: then its status arrives, even if the report of a fault is late.
        """
        since = self.ordered_at
        return self.may_be_lost() and any(
            fault.source == TRAINING_SIDE and fault.accepted_at is not None and since is not None and fault.accepted_at > since
            for fault in not_among(self.faults, self.known)
        )

    def _told_by_others(self) -> tuple[Handled, ...]:
        announced, job = {one.rank for one in self.situation.announced}, self.context.job
        told = [fault for fault in self.faults if fault.source not in (WATCHER, TRAINING_SIDE)]
        ranks = [(fault, {one.rank for one in faulty_ranks.ranks_of(job, fault)}) for fault in told]
        return tuple(Handled.of(fault) for fault, of in ranks if of and of <= announced)

    def is_no_answer(self, report: Report) -> str:
        """Returns why a report does not answer the last order; empty: it does.

        A status names its strategy; a late one of an earlier strategy must not be taken for that of this one.
        """
        if report.attempt and report.attempt != self.situation.attempt:
            return "it answers an order of an earlier attempt"
        last = next(reversed(self.situation.ordered), "")
        if report.kind is not ReportKind.STATUS or not report.strategy or report.strategy == last:
            return ""
        return f"nobody ordered {report.strategy}: the last strategy is {last or 'none yet'}"

    async def await_answer(self, within: timedelta, why: str) -> None:
        """Waits until the training side has answered, can no longer answer, or the time is over."""
        until = workflow.now() + within
        await self.until(lambda: self.is_answered() or (not self.LOADS and self.may_be_lost()), within, why)
        if not self.LOADS:
            left = min(self.context.job.limits.status_lost, until - workflow.now())
            await self.until(self.is_answered, left, f"{why}, which may be lost")

    def is_answered(self) -> bool:
        """Returns whether the order was answered, or can no longer be."""
        return self.has_report(ReportKind.STATUS) or bool(self.lost_manager) or self._reports_another_fault()

    def no_answer(self, order: str, within: timedelta) -> Exception:
        return self.ends_all(self.lost_manager or f"no report of {order} within {seconds(within)}")

    async def is_hit_again(self) -> bool:
        """Returns the same as `is_hit` after an answer, which may arrive before the report of the fault.

        Waits for that report up to `NEWS`.
        """
        return await self.until(lambda: self.is_hit, NEWS, "a second fault may have ended the repair")

    @property
    def is_hit(self) -> bool:
        """True if ranks are faulty that were not announced."""
        known = {one.rank for one in self.situation.announced}
        now = recovery_opening.updated(self.context.job, self.situation, self.faults)
        return any(one.rank not in known for one in now.faulty)

    def again(self) -> None:
        """Prepares to announce all faults again with a new uuid, including those that occurred meanwhile."""
        self.situation = recovery_opening.again(self.situation)

    # ---- ends

    def fails(self, reason: str, code: int = 0) -> Ends:
        """Returns the end of a mode after which the next one continues while training stands.

        That is possible if the training side accepts another strategy after this code, or if none was ordered yet: then the
        announcement and the offers are still valid.

        Args:
            code: of the training side's answer; 0: it gave none.
        """
        accepts_another = self.side.accepts_another(code)
        if not accepts_another and any(order.change_strategy for order in self.attempt):
            saves = code and self.side.still_saves(code)
            return Ends(Outcome.ESCALATE, reason, training=Training.SAVES) if saves else self.ends_all(reason)
        if accepts_another:
            self.again()
        return Ends(Outcome.ESCALATE, reason)

    def ends_all(self, reason: str) -> Ends:
        """Returns the end of a mode after which the state of training is unknown. Only a restart of the job is left."""
        return Ends(Outcome.ESCALATE, reason, training=Training.LOST)

    def recovered(self, reason: str) -> Verdict:
        """Returns the verdict of success.

        The faults that the training side had reported are over when it reports that it goes on.
        """
        return Verdict(
            mode=self.MODE,
            outcome=Outcome.RECOVERED,
            reason=reason,
            steps_lost=0,
            handled=self.mended,
        )


def answer(report: Report) -> str:
    """Describes the training side's report about a strategy that failed."""
    return f"the training side reports {report.code} {report.info}".rstrip()
