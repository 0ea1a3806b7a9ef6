"""Replaces the faulty pods only; the processes of all other pods start again in their pods, from the newest checkpoint.

It needs no process that has the state, only the launchers of the pods that are left. A dying gasp comes before it where training
stands. Child of `TrainingJob`, or a front of a client. A failure leads to the restart of the whole job.
"""

from datetime import timedelta

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.attachment import Progress
from rekindle.model.dialogue import Strategy
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.mode_table import RESCHEDULING_TRIES
from workflows.mode import NOTHING, Ends
from workflows.new_pods import NewPods, PodFails
from workflows.process_level import answer

FIRST_STEP = timedelta(seconds=5)
"""Time between the report that training goes on and the report of the first step, which has the number of lost steps."""


@workflow.defn(name=Workflows.POD_RESCHEDULING, failure_exception_types=[Exception])
class PodRescheduling(NewPods):
    MODE = Mode.POD_RESCHEDULING
    ASKS_FIRST = True

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)
        self.ordered = False
        """True if the processes that are left were ordered to start again. From then on there is one try."""

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        pods = await self._new_pods_run()
        self.ordered = True
        try:
            async with self.phase("all ranks begin again"):
                report = await self.carry_out(self.order_to_take_over(Strategy.EXIT, pods), self.context.job.limits.restart)
        except PodFails as failure:
            raise self.fails(f"{failure}") from failure
        if report.code:
            raise self.fails(f"the ranks could not begin again: {answer(report)}", report.code)
        await self.until(lambda: self._first_step is not None, FIRST_STEP, "the report of the first step")
        return await self.handed_over(report)

    async def _new_pods_run(self) -> tuple[int, ...]:
        """Returns the pod ranks of all faulty pods when a new pod of each of them runs."""
        why = ""
        for _ in range(RESCHEDULING_TRIES):
            await self.open(Strategy.EXIT)
            pods, why = self.pods_to_replace(), "pods are lost again and again"
            try:
                await self.new_pods(pods)
            except PodFails as failure:
                why = f"{failure}"
                await self.compensate()
            else:
                if not self.is_hit:
                    return pods
                if self.dead():
                    await self.compensate()
            self.again()
        raise self.fails(why)

    # ---- the answer

    @property
    def _first_step(self) -> Progress | None:
        """First step of the new processes. None: it was not reported yet."""
        seen = self.progress
        return None if seen is None or seen.incarnation == self.context.incarnation else seen

    def is_answered(self) -> bool:
        """Returns whether the order was answered, or can no longer be because another pod was lost meanwhile."""
        return super().is_answered() or (self.ordered and self.is_hit)

    def no_answer(self, order: str, within: timedelta) -> Exception:
        if self.is_hit and not self.dead():
            return self.fails("another pod was lost before all ranks had begun again")
        return super().no_answer(order, within)

    def fails(self, reason: str, code: int = 0) -> Ends:
        """Returns the end after which only a restart of the whole job is left, as no cheaper mode was possible before."""
        return self.ends_all(reason)

    def recovered(self, reason: str) -> Verdict:
        seen = self._first_step
        found = {"steps_lost": seen.steps_lost, "resumed_at": seen.step} if seen else {"steps_lost": None}
        return super().recovered(reason).model_copy(update=found)
