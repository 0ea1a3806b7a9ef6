"""Repeats the step after faults that may not recur: of on-chip memory, of the network. No process ends.

Child of `TrainingJob`, or a front of a client. Training stops, the faults are announced, the training side offers `retry` and
carries it out. It has recovered when one more step is completed.
"""

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.dialogue import Strategy
from rekindle.model.fault import FaultType
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import recovery_opening
from workflows.mode import NOTHING
from workflows.process_level import ProcessLevel, answer


@workflow.defn(name=Workflows.ONLINE_RETRY, failure_exception_types=[Exception])
class OnlineRetry(ProcessLevel):
    MODE = Mode.ONLINE_RETRY
    LOADS = False

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        await self.open(Strategy.RETRY)
        async with self.phase("the step is repeated"):
            await self._routes_settle()
            return await self._repeat()

    async def _routes_settle(self) -> None:
        of_network = any(one.type is FaultType.NETWORK for one in self.situation.announced)
        if of_network and (pause := self.side.routes_settle):
            await self.until(lambda: bool(self.lost_manager), pause, "routes settle")

    async def _repeat(self) -> str:
        job = self.context.job
        report = await self.carry_out(recovery_opening.repair(job, self.situation, self.MODE), job.limits.retry)
        if report.code:
            raise self.fails(f"the step could not be repeated: {answer(report)}", report.code)
        return f"the step was repeated, no process ended: {report.info}"
