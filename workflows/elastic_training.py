"""Lets training go on without faulty pods. The ranks that are left keep their memory, carry the shares of the others, and repeat
the step.

Child of `TrainingJob`, or a front of a client. The job is small from then on, and grows again by another mode. A second fault
meanwhile is announced with the first, and both pods leave.
"""

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.dialogue import Report, Strategy
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import elastic, faulty_ranks
from rekindle.policy.modes.mode_table import SCALE_IN_TRIES
from workflows.left_pods import deleted
from workflows.mode import NOTHING
from workflows.process_level import ProcessLevel, answer

CHOSEN = 201
"""Code of an answer that names the ranks that leave with the faulty ones. Another answer follows. Source: the wire contract."""


@workflow.defn(name=Workflows.ELASTIC_TRAINING, failure_exception_types=[Exception])
class ElasticTraining(ProcessLevel):
    MODE = Mode.ELASTIC_TRAINING
    LOADS = False
    left: tuple[int, ...] = ()
    """Pod ranks that have left. Empty: none has, yet."""

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        tries_left = SCALE_IN_TRIES
        while True:
            await self.open(Strategy.DOWNGRADE)
            pods = self._leaving()
            tries_left -= 1
            async with self.phase("training goes on with fewer pods"):
                pods, report = await self._without(pods)
            if not report.code:
                return await self._small(pods, report)
            if not (tries_left and self.side.accepts_another(report.code) and await self.is_hit_again()):
                raise self.fails(f"training cannot go on with fewer pods: {answer(report)}", report.code)
            self.again()

    def _leaving(self) -> tuple[int, ...]:
        """Returns the pod ranks of all replicas that leave; raises Ends if too few would be left by now."""
        pods = self.context.job.layout.whole_replicas(faulty_ranks.pods_of(self.context.job, self.situation.announced))
        if why := elastic.too_few(self.context.job, self.context.small, pods):
            raise self.fails(why)
        return pods

    async def _without(self, pods: tuple[int, ...]) -> tuple[tuple[int, ...], Report]:
        """Lets training go on without these pods. Returns all pods that leave, with the last answer."""
        job, here = self.context.job, self.situation
        order = orders.change_strategy(job.id, here.attempt, Strategy.DOWNGRADE, here.announced, pods)
        report = await self.carry_out(order, job.limits.scale_in)
        if report.code != CHOSEN:
            return pods, report
        return await self._with_chosen(pods, report)

    async def _with_chosen(self, pods: tuple[int, ...], report: Report) -> tuple[tuple[int, ...], Report]:
        """Lets further pods leave that the training side has chosen, so that whole replicas are left."""
        job, here = self.context.job, self.situation
        chosen = job.layout.pods_of(rank for rank in report.isolate_ranks if rank < job.ranks)
        pods = tuple(sorted({*pods, *chosen}))
        if why := elastic.too_few(job, self.context.small, pods):
            raise self.ends_all(f"the training side has chosen more pods to leave: {why}")
        told = tuple(rank for rank in chosen if rank not in here.leaving) if faulty_ranks.may_pods_fail(job) else ()
        self.situation = here.with_(leaving=tuple(sorted({*here.leaving, *told})))
        order = orders.further_pods_exit(job.id, here.attempt, told)
        if not await self.order(order, self.patience):
            raise self.ends_all(self.lost_manager or f"the order `{order.name}` could not be delivered in time")
        return pods, await self.answered(Strategy.DOWNGRADE, job.limits.scale_in)

    async def _small(self, pods: tuple[int, ...], report: Report) -> str:
        self.left, note = pods, ""
        if not self.side.controller_recreates:  # otherwise other components replace the pods
            async with self.phase("pods that have left are deleted"):
                note = await deleted(self, pods)
        return "; ".join(filter(None, (f"{elastic.named(pods)} left: {report.info}", note)))

    def ended(self, verdict: Verdict) -> Verdict:
        if not self.left:
            return verdict
        attempt = self.situation.attempt if self.side.returns_at_once else ""
        return verdict.with_(resized=elastic.leave(self.left, self.context.situation.faults, attempt=attempt))
