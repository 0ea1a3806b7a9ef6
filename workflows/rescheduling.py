"""The last mode: all pods of the job stop and start again on healthy nodes; training resumes from its last checkpoint.

It assumes that no undo ran: deleting all pods sweeps what any mode can have left behind.
"""

from datetime import datetime, timedelta
from typing import ClassVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from rekindle.ids import Workflows
from rekindle.model.fault import FaultKind
from rekindle.model.job import SubHealthStrategy, TrainingSide
from rekindle.model.recovery import Mode, ModeInput, Outcome, PodRef, ReportKind, Verdict
from workflows import steps
from workflows.front import front
from workflows.mode import CAUGHT, Ends, ModeWorkflow

GRACE = timedelta(seconds=5)
"""For processes that still write a checkpoint; then they are killed."""


@workflow.defn(name=Workflows.JOB_RESCHEDULING, failure_exception_types=[Exception])
class JobRescheduling(ModeWorkflow):
    MODE = Mode.JOB_RESCHEDULING
    EXPECTS: ClassVar[tuple[ReportKind, ...]] = ()

    @workflow.init
    def __init__(self, request: ModeInput) -> None:
        super().__init__(request)
        self.removed: tuple[PodRef, ...] = ()
        self.restarted_at: datetime | None = None

    @workflow.run
    async def run(self, request: ModeInput) -> Verdict:
        if request.context is None:
            return await front(self)
        try:
            verdict = await self._procedure()
        except Ends as end:
            verdict = self._verdict(end.outcome, end.reason, None)
        except CAUGHT as error:
            if not is_cancelled_exception(error):
                raise
            verdict = self._verdict(Outcome.CANCELLED, "cancelled by request; the pods are as they are", None)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.conclude(verdict)

    async def _procedure(self) -> Verdict:
        async with self.phase("all pods stop"):
            await self._stop()
        async with self.phase("pods start on healthy nodes"):
            pods = await self._start()
        async with self.phase("training resumes from its last checkpoint"):
            await self._resumes(pods)
        lost = self.progress.steps_lost if self.progress else None
        return self._verdict(Outcome.RECOVERED, "the job runs again, from its last checkpoint", lost)

    async def _stop(self) -> None:
        job = self.context.job
        try:
            self.removed = await steps.delete_pods(job.id, GRACE)
            left = await self._left(self.removed, job.limits.pods_stopped)
            if left:
                await steps.delete_pods(job.id, timedelta(0))
                left = await self._left(self.removed, job.limits.pods_stopped)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise _give_up(f"the pods could not be stopped: {error.cause}") from error
        if left:
            raise _give_up(f"pods do not end: {', '.join(pod.name for pod in left)}")

    async def _left(self, pods: tuple[PodRef, ...], within: timedelta) -> tuple[PodRef, ...]:
        return await steps.await_gone(self.request.job_id, pods, workflow.now() + within) if pods else ()

    async def _start(self) -> tuple[PodRef, ...]:
        """On healthy nodes; on sub-healthy ones too, once the policy is `ignore`."""
        job = self.context.job
        self.restarted_at = workflow.now()
        avoid = self._bad_nodes()
        try:
            pods = await steps.ensure_pods(job.id, workflow.info().run_id, tuple(sorted(avoid)))
            started = await steps.await_running(job.id, pods, workflow.now() + job.limits.pods_running)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise _give_up(f"the pods could not be started: {error.cause}") from error
        if not started.running:
            raise _give_up(f"the pods do not run within {job.limits.pods_running.total_seconds():g} s: {started.message}")
        return pods

    def _bad_nodes(self) -> set[str]:
        faults = (*self.context.situation.faults, *self.real_faults)
        allowed = self.context.policy is SubHealthStrategy.IGNORE
        return {fault.node for fault in faults if not (allowed and fault.kind is FaultKind.SUB_HEALTH)} - {""}

    async def _resumes(self, pods: tuple[PodRef, ...]) -> None:
        job = self.context.job
        uids = {pod.uid for pod in pods}
        await self.until(
            lambda: self._trains() or not uids.isdisjoint(self.failed_pods),
            job.limits.restart,
            "wait for the first completed step",
        )
        if not self._trains():
            failed = "; ".join(words for uid, words in self.failed_pods.items() if uid in uids)
            raise _give_up(failed or f"no completed step within {job.limits.restart.total_seconds():g} s")

    def _trains(self) -> bool:
        """Our training side tells its first step; MindIO's says nothing, so a new stream of its manager has to do."""
        if self.context.job.training_side is TrainingSide.MINDIO:
            return self.attachment is not None and self.attachment != self.context.attachment
        return self.progress is not None and self.progress.incarnation != self.context.incarnation

    def _verdict(self, outcome: Outcome, reason: str, lost: int | None) -> Verdict:
        nodes = sorted({fault.node for fault in self.context.situation.faults if fault.node})
        return Verdict(
            mode=self.MODE,
            outcome=outcome,
            reason=reason,
            steps_lost=lost,
            look_at=", ".join(f"node {node}" for node in nodes),
            removed_pods=tuple(pod.uid for pod in self.removed),
            restarted_at=self.restarted_at,
        )


def _give_up(reason: str) -> Ends:
    return Ends(Outcome.GIVEN_UP, reason)
