"""Has the ranks that are left save the step at which training stands, before ranks begin again.

It recovers nothing: pod rescheduling or job rescheduling follows, and loses no step.

Child of `TrainingJob`, or a front of a client.
"""

from datetime import timedelta

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.dialogue import Strategy
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import faulty_ranks
from workflows.mode import NOTHING, Ends
from workflows.process_level import ProcessLevel, answer


@workflow.defn(name=Workflows.DYING_GASP, failure_exception_types=[Exception])
class DyingGasp(ProcessLevel):
    MODE = Mode.DYING_GASP
    ASKS_FIRST = True
    saved = False

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        """Raises Ends in any case: training stands, saved or not, and other processes begin again."""
        await self.open(Strategy.DUMP)
        job, situation = self.context.job, self.situation
        async with self.phase("ranks save their state"):
            pods = faulty_ranks.pods_of(job, situation.announced)
            order = orders.change_strategy(job.id, situation.attempt, Strategy.DUMP, situation.announced, pods)
            report = await self.carry_out(order, job.limits.dump)
        self.saved = not report.code
        raise Ends(Outcome.ESCALATE, report.info if self.saved else f"no state is saved: {answer(report)}")

    def ended(self, verdict: Verdict) -> Verdict:
        return verdict.with_(saved=self.saved)

    def is_answered(self) -> bool:
        """Returns whether the order was answered, or can no longer be because the last pod was lost meanwhile."""
        return super().is_answered() or self._is_nobody_left

    def no_answer(self, order: str, within: timedelta) -> Exception:
        return self.ends_all("every pod is lost") if self._is_nobody_left else super().no_answer(order, within)

    def may_be_lost(self) -> bool:
        """Returns False: a training side whose report was lost is not asked whether it trains, as it stands or has left."""
        return False

    @property
    def _is_nobody_left(self) -> bool:
        return faulty_ranks.is_nobody_left(self.context.job, self.faults, self.context.small)
