"""Base class of operations on a job that trains: training pauses with its state, something is done, and training goes on.

A real fault meanwhile comes first: the operation ends, and the mode that repairs the fault follows.
"""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from rekindle.model.dialogue import Report, ReportKind
from rekindle.model.mode import Outcome
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import cases
from workflows.asked import LOST, asked_whether_it_trains
from workflows.mode import Ends, seconds
from workflows.non_interruptible import NonInterruptible

CANCELLED = "cancelled by request"


class Operation(NonInterruptible):
    uuid = ""
    """Uuid of the attempt that pauses training."""

    async def pause(self, timeout: int = 0) -> None:
        """Pauses all ranks after the same step.

        Args:
            timeout: seconds after which a paused training side may exit; 0: its own limit.

        Raises:
            Ends: the ranks do not pause.
        """
        job, self.uuid = self.context.job, self.new_attempt()
        if not await self.order(orders.pause_train(job.id, self.uuid, timeout), job.limits.order):
            why = self.lost_manager or "the training side could not be reached"
            if not self.touched:
                raise Ends(Outcome.REFUSED, f"{why}; nothing was touched", passing=True)
            if self.side.goes_on_by_itself and not self.lost_manager:
                raise Ends(Outcome.IGNORED, f"{why}: it may have paused, and then goes on by itself", passing=True)
            raise self.cannot_go_on(f"{why}, and may have an order to pause")
        await self._until_unless_lost(
            lambda: self.has_report(ReportKind.STOP_COMPLETE) or self.is_over(), job.limits.pause_train, "wait for the pause"
        )
        self.stop_for_a_fault()
        report = self.next_report(ReportKind.STOP_COMPLETE)
        if report is None and (said := self.said_instead()):
            raise self.cannot_go_on(said)
        if report is None:
            asked = await self._asked(f"no report of the pause within {seconds(job.limits.pause_train)}")
            raise Ends(Outcome.IGNORED, f"training could not be paused, and goes on: {asked}", passing=True)
        if report.code and not self.side.goes_on_by_itself:
            raise self.cannot_go_on(f"training could not be paused: {report.code} {report.info}".rstrip())
        if report.code:
            raise Ends(Outcome.IGNORED, f"training could not be paused, and goes on: {report.info}")
        self.asked.append(ReportKind.STATUS)  # a training side that is paused too long reports it

    async def go_on(self) -> str:
        """Orders training to continue, and returns what the training side reports when it does.

        Raises:
            Ends: training does not continue.
        """
        job = self.context.job
        if not await self.order(orders.continue_train(job.id, self.uuid), job.limits.absence):  # accepted at any time in a pause
            self.stop_for_a_fault()
            if self.side.goes_on_by_itself and not self.lost_manager:
                return "training goes on by itself: the order `continue` could not be delivered in time"
            raise self.cannot_go_on(self.lost_manager or "the order `continue` could not be delivered in time")
        await self._until_unless_lost(self.is_over, job.limits.continue_train, "wait until training goes on")
        if report := self.next_report(ReportKind.STATUS):
            if not report.code:
                return report.info
            await self.until(lambda: bool(self.felt_faults()), job.limits.pause_crossing, "a fault may be the reason")
            self.stop_for_a_fault()
            raise self.cannot_go_on(f"training did not go on: {report.code} {report.info}".rstrip())
        self.stop_for_a_fault()
        if self.lost_manager:
            raise self.cannot_go_on(self.lost_manager)
        return await self._asked(f"no report that training goes on within {seconds(job.limits.continue_train)}")

    async def _until_unless_lost(self, condition: Callable[[], bool], within: timedelta, why: str) -> None:
        """Waits for an answer.

        One that may be lost in an outage since the order is waited for only a short time.
        """
        until = workflow.now() + within
        await self.until(lambda: condition() or self.may_be_lost(), within, why)
        left = min(self.context.job.limits.status_lost, until - workflow.now())
        await self.until(condition, left, f"{why}: the report may be lost")
        await self.comes_back(condition)

    async def _asked(self, late: str) -> str:
        """Asks training whether it trains, as only a restart would be left otherwise.

        Args:
            late: says which report did not come in time.
        """
        why = LOST if self.may_be_lost() else late
        return await asked_whether_it_trains(self, lambda fault: fault in self.met, why)

    def is_over(self) -> bool:
        """Returns whether nothing more can be done in this pause."""
        return self.has_report(ReportKind.STATUS) or bool(self.felt_faults() or self.lost_manager)

    def said_instead(self) -> str:
        """Returns why no answer will come; empty: unknown."""
        if self.lost_manager:
            return self.lost_manager
        early = self.next_report(ReportKind.STATUS)
        return f"training does not wait any longer: {early.code} {early.info}".rstrip() if early else ""

    def stop_for_a_fault(self) -> None:
        """Raises Ends if there is a fault. Our training side has then given up the pause, and stands."""
        if faults := self.felt_faults():
            reason = f"a fault comes first: {cases.describe(faults[0])}"
            raise Ends(Outcome.CANCELLED, reason, training=Training.FAULTED)

    def stop_for_a_cancellation(self, *, done: bool) -> None:
        """Raises Ends if the operation was cancelled before it was done."""
        if self.has_been_cancelled() and not done:
            raise Ends(Outcome.CANCELLED, f"{CANCELLED}; training goes on as before")

    def stands(self, reason: str) -> Ends:
        """Returns the end of an operation that leaves training paused, if it is unknown whether training may continue.

        In a pause it accepts the order to stop, and then repeats its step with its state. Source: the states of its controller;
        the repetition was tried.
        """
        workflow.logger.warning("training left paused", extra={"reason": reason})
        return Ends(Outcome.ESCALATE, reason, training=Training.WHOLE)

    def cannot_go_on(self, reason: str) -> Ends:
        """Returns the end of an operation after which the state of training is unknown.

        Faults are then recovered by the next mode; if there are none, the job is restarted.
        """
        workflow.logger.warning("training not resumed", extra={"reason": reason})
        return Ends(Outcome.ESCALATE, reason)

    async def close(self, verdict: Verdict, *, cancelled: bool) -> Verdict:
        """Ends the workflow.

        A cancelled operation whose job's workflow was lost reports its result too, as no other workflow knows it.
        """
        return await super().close(verdict, cancelled=cancelled and not verdict.was_interrupted)

    def is_no_answer(self, report: Report) -> str:
        attempt = self.situation.attempt if self.is_asked else self.uuid
        if report.attempt and report.attempt != attempt:
            return "it answers an order of an earlier attempt"
        return super().is_no_answer(report)
