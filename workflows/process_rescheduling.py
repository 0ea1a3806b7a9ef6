"""Starts other pods, on other nodes, that take over the ranks of faulty ones.

All other processes keep their memory, and provide the state.

Child of `TrainingJob`, or a front of a client. Training stands while the new pods start. They are backup pods like those of a hot
switch, and take over by the same hand-over. All faulty pods are replaced, including those that are lost meanwhile. Where
the job's controller recreates its pods, `workflows.recreated_pods` waits for that.
"""

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.dialogue import Report, Strategy
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.mode_table import RESCHEDULING_TRIES
from workflows.mode import NOTHING
from workflows.new_pods import PodFails
from workflows.process_level import answer
from workflows.recreated_pods import RecreatedPods


@workflow.defn(name=Workflows.PROCESS_RESCHEDULING, failure_exception_types=[Exception])
class ProcessRescheduling(RecreatedPods):
    MODE = Mode.PROCESS_RESCHEDULING
    ASKS_FIRST = True

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        """Replaces the pods, unless the job's controller does so."""
        if self.side.controller_recreates:
            done = await self.replaced_by_others()
            self.moved = list(self.anew)
            return done
        return await self._by_our_hand()

    async def _by_our_hand(self) -> str:
        tries_left = RESCHEDULING_TRIES
        while True:
            await self.open(Strategy.RECOVER)
            tries_left -= 1
            try:
                report = await self._replaced(self.pods_to_replace())
            except PodFails as failure:
                why: str | PodFails = failure
                await self.compensate()
            else:
                if report and not report.code:
                    return await self.handed_over(report)
                why = f"the new pods could not take over: {answer(report)}" if report else "pods are lost again and again"
                if report and not await self.is_hit_again():
                    raise self.fails(why, report.code)
                if self.dead():
                    await self.compensate()
            if not tries_left:
                raise self.fails(f"{why}")
            self.again()

    # ---- new pods take over

    async def _replaced(self, pods: tuple[int, ...]) -> Report | None:
        """Returns the training side's answer when new pods of these pod ranks run; None: other ranks were lost meanwhile, and
        need new pods too."""
        await self.new_pods(pods)
        if self.is_hit:
            return None
        async with self.phase("new pods take over the ranks"):
            order = self.order_to_take_over(Strategy.RECOVER, pods)
            return await self.carry_out(order, self.context.job.limits.repair)
