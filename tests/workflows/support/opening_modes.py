"""Modes that only open a fault recovery, under the names of real ones. Their verdicts carry what they learned."""

from typing import ClassVar

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.dialogue import ReportKind, Strategy
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Handled
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import recovery_opening
from workflows.mode import Ends, ModeWorkflow
from workflows.opening import open_recovery


class _Opens(ModeWorkflow):
    EXPECTS = (ReportKind.STOP_COMPLETE, ReportKind.STRATEGIES, ReportKind.STATUS)
    OUTCOME: ClassVar[Outcome]

    async def _open(self, context: RecoveryContext) -> Verdict:
        try:
            await open_recovery(self, context.situation)
            handled = tuple(Handled.of(fault) for fault in self.faults)
            goes_on = self.answered_at if self.OUTCOME is Outcome.RECOVERED else None
            verdict = Verdict(mode=self.MODE, outcome=self.OUTCOME, reason="opened", handled=handled, went_on_at=goes_on)
        except Ends as end:
            outcome = Outcome.ESCALATE if self.OUTCOME is Outcome.ESCALATE else Outcome.CANCELLED
            verdict = Verdict(mode=self.MODE, outcome=outcome, reason=end.reason, training=end.training)
        await self._stay()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return await self.close(verdict, cancelled=False)

    async def _stay(self) -> None:
        """Waits until the next mode may begin."""


class _OpensForReal(_Opens):
    """Mode for real faults."""

    OUTCOME = Outcome.RECOVERED


@workflow.defn(name=Workflows.JOB_RESCHEDULING, failure_exception_types=[Exception])
class Opens(_OpensForReal):
    """Last mode of the ladder."""

    MODE = Mode.JOB_RESCHEDULING

    @workflow.init
    def __init__(self, request: ModeRequest, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest, context: RecoveryContext | None = None) -> Verdict:
        return await self._open(self.context)


@workflow.defn(name=Workflows.ONLINE_RETRY, failure_exception_types=[Exception])
class OpensForRetry(_OpensForReal):
    """Mode for faults that can all be retried."""

    MODE = Mode.ONLINE_RETRY

    @workflow.init
    def __init__(self, request: ModeRequest, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest, context: RecoveryContext | None = None) -> Verdict:
        return await self._open(self.context)


@workflow.defn(name=Workflows.IN_PLACE, failure_exception_types=[Exception])
class OpensInPlace(_OpensForReal):
    """Mode for processes that can restart in their pods."""

    MODE = Mode.IN_PLACE

    @workflow.init
    def __init__(self, request: ModeRequest, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest, context: RecoveryContext | None = None) -> Verdict:
        return await self._open(self.context)


@workflow.defn(name=Workflows.HOT_SWITCH, failure_exception_types=[Exception])
class OpensFirst(_Opens):
    """Mode for a sub-health. It opens a recovery when a real fault is reported, and hands over to the next mode when the test
    signals it. If a retry is offered, it first orders one."""

    MODE = Mode.HOT_SWITCH
    OUTCOME = Outcome.ESCALATE

    @workflow.init
    def __init__(self, request: ModeRequest, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)
        self.handed_over = self.over = False

    @workflow.signal
    def hand_over(self) -> None:
        """Signals that the mode may hand over."""
        self.handed_over = True

    @workflow.run
    async def run(self, request: ModeRequest, context: RecoveryContext | None = None) -> Verdict:
        await workflow.wait_condition(lambda: bool(self.faults))
        return await self._open(self.context)

    @workflow.query
    def is_over(self) -> bool:
        """Returns whether the opening has ended."""
        return self.over

    async def _stay(self) -> None:
        self.over = True
        await workflow.wait_condition(lambda: self.handed_over)
        if Strategy.RETRY in self.situation.offers:
            await self._retry()

    async def _retry(self) -> None:
        here, limits = self.situation, self.context.job.limits
        await self.order(orders.change_strategy(self.context.job.id, here.attempt, Strategy.RETRY, here.faulty), limits.order)
        await self.until(lambda: self.has_report(ReportKind.STATUS), limits.resume, "wait for the status")
        self.next_report(ReportKind.STATUS)
        self.situation = recovery_opening.again(here).with_(ordered=(Strategy.RETRY,))
