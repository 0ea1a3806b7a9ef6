"""Starts faulty processes again in their pods; they get their state from replicas. All other processes keep theirs.

Child of `TrainingJob`, or a front of a client. A second fault meanwhile is announced with the first, and both are repaired
together.
"""

from datetime import timedelta

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.bounds import numbered
from rekindle.model.dialogue import Report, Strategy
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import faulty_ranks, recovery_opening
from rekindle.policy.modes.mode_table import IN_PLACE_TRIES
from workflows.mode import NOTHING, Ends
from workflows.process_level import ProcessLevel, answer


@workflow.defn(name=Workflows.IN_PLACE, failure_exception_types=[Exception])
class InPlaceRecovery(ProcessLevel):
    MODE = Mode.IN_PLACE

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        tries_left = IN_PLACE_TRIES
        while True:
            await self.open(Strategy.RECOVER)
            self._pods_live()
            tries_left -= 1
            async with self.phase("faulty processes start again"):
                report = await self._repair()
                if not report.code:
                    ranks = numbered("rank", [one.rank for one in self.situation.announced])
                    return f"{ranks} recovered in place: {report.info}"
                if not (tries_left and self.side.accepts_another(report.code) and await self.is_hit_again()):
                    raise self.fails(f"not recovered in place: {answer(report)}", report.code)
            self.again()

    def _pods_live(self) -> None:
        """Raises Ends if a pod is lost: its ranks cannot be started again in it."""
        if lost := self._lost:
            raise self._fails_for(lost)

    @property
    def _lost(self) -> tuple[int, ...]:
        return faulty_ranks.lost_pods(self.context.job, self.faults)

    def _fails_for(self, lost: tuple[int, ...]) -> Ends:
        return self.fails(f"no pod is left of {numbered('pod rank', lost)}")

    def is_answered(self) -> bool:
        """Returns whether the order was answered, or can no longer be because a pod was lost meanwhile."""
        return super().is_answered() or bool(self._lost)

    def no_answer(self, order: str, within: timedelta) -> Exception:
        return self._fails_for(self._lost) if self._lost else super().no_answer(order, within)

    async def _repair(self) -> Report:
        job = self.context.job
        return await self.carry_out(recovery_opening.repair(job, self.situation, self.MODE), job.limits.repair)
