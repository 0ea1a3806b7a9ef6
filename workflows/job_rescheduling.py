"""Last mode of the ladder: all pods of the job stop and start again on healthy nodes; training resumes from its last checkpoint.

It does not assume that any undo ran, as deleting all pods removes what any mode can have left. After the first deletion was
ordered it goes to its end, even if it is cancelled. No mode follows it, so it does not give up while the cluster does not answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import ClassVar, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from rekindle.errors import ClusterUnavailable, Refused, Withheld
from rekindle.ids import Workflows
from rekindle.model.activities.pods import PodCount, Restart, StartRequest
from rekindle.model.attachment import Progress
from rekindle.model.bounds import few
from rekindle.model.cluster import ClusterEvent, JobPhase
from rekindle.model.dialogue import ReportKind
from rekindle.model.fault import Fault, FaultKind
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.spares import SpareWish
from rekindle.model.verdict import Verdict
from rekindle.policy.placement import avoided_nodes, spares
from workflows import steps
from workflows.front import front
from workflows.mode import NOTHING, Ends, ModeWorkflow, seconds

T = TypeVar("T")

GRACE = timedelta(seconds=5)
"""Grace period for processes that are still writing a checkpoint. They are killed afterwards."""

AGAIN = "it is tried again from time to time"

LOOKS_AFTER = timedelta(minutes=1)
"""Pause between two looks at the pods while the first step is awaited. Pods may vanish without a report."""

FIRST_PAUSE = timedelta(seconds=0.2)
LONGEST_PAUSE = timedelta(minutes=1)
"""Range of the pause between two tries while the cluster answers a look at the job and nothing else."""


@workflow.defn(name=Workflows.JOB_RESCHEDULING, failure_exception_types=[Exception])
class JobRescheduling(ModeWorkflow):
    MODE = Mode.JOB_RESCHEDULING
    EXPECTS: ClassVar[tuple[ReportKind, ...]] = ()

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)
        self.restart = Restart(job_id=context.job.id if context else "", generation=workflow.info().run_id)
        self.ordered = False
        """True if the first deletion was ordered: pods are missing until all are started again."""
        self.unanswered = False
        """True while the cluster does not answer and is waited for."""
        self.restarted_at: datetime | None = None
        self.again = ""
        """Condition under which another restart may succeed; empty: none is known."""
        self.wish: SpareWish | None = None
        """Nodes that the new pods need, if other recoveries may need them too. None: unknown."""
        self.old_sessions: tuple[str, ...] = ()
        """Sessions of the training side before the restart. Messages from them say nothing about the new one."""

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        if context is None:
            return await front(self.MODE, request)
        work, was_cancelled = asyncio.create_task(self._ended()), False
        try:
            verdict = await asyncio.shield(work)
        except asyncio.CancelledError:
            was_cancelled = True
            verdict = await self._cancelled(work)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return await self.close(verdict, cancelled=was_cancelled)

    async def _ended(self) -> Verdict:
        try:
            return await self._procedure()
        except Ends as end:
            return self._verdict(end.outcome, end.reason, None)

    async def _cancelled(self, work: asyncio.Task[Verdict]) -> Verdict:
        """Handles a cancellation.

        A job with some pods deleted would stay so unnoticed, so it is restarted first, if it exists and its cluster answers.
        """
        if not self.ordered:
            return await self._stopped(work, Outcome.CANCELLED, "cancelled by request; the pods are as they are")
        phase = await self._phase_of_the_job()
        if phase is JobPhase.SUCCEEDED and self.old_pods_are_gone:
            return await self._stopped(work, Outcome.RECOVERED, "the job was started again and has trained to its end")
        if phase not in (None, JobPhase.SUCCEEDED):
            await workflow.wait_condition(lambda: work.done() or self.unanswered)
            if work.done():
                return work.result()
        return await self._stopped(work, Outcome.CANCELLED, "cancelled by request; the job's pods may be missing")

    @property
    def old_pods_are_gone(self) -> bool:
        return self.restarted_at is not None

    async def _phase_of_the_job(self) -> JobPhase | None:
        """Returns the phase of the job; None: there is no such job, or the cluster does not answer."""
        try:
            return (await steps.look_at_job(self.context.job.id)).phase
        except ActivityError:
            return None

    async def _stopped(self, work: asyncio.Task[Verdict], outcome: Outcome, reason: str) -> Verdict:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return self._verdict(outcome, reason, None)

    # ---- the procedure

    async def _procedure(self) -> Verdict:
        async with self.phase("all pods stop"):
            await self._stop()
        async with self.phase("pods start on healthy nodes"):
            await self._start()
        async with self.phase("training resumes from its last checkpoint"):
            seen = await self._resumes()
        lost = self.progress.steps_lost if self.progress else None
        return self._verdict(Outcome.RECOVERED, f"the job runs again, from its last checkpoint: {seen}", lost)

    async def _stop(self) -> None:
        left = await self._delete(GRACE)
        if left.count:
            left = await self._delete(timedelta(0))
        if left.count:
            self.again = f"the end of these pods: {left}"
            raise _give_up(f"pods do not end: {left}; {AGAIN}")
        self.progress, self.old_sessions = None, tuple(self.sessions)
        self.restarted_at = workflow.now()

    async def _delete(self, grace: timedelta) -> PodCount:
        """Deletes all pods; returns those that are not gone in time."""
        limits, restart = self.context.job.limits, self.restart
        lost = avoided_nodes.lost(self.faults) + self.context.lost_nodes
        self.ordered = True
        deleted = await self._answered(
            "the pods could not be stopped", lambda: steps.delete_pods(restart.job_id, grace, lost, limits.pods_deleted)
        )
        if not deleted.count:
            return deleted
        self.wish = self.wish or spares.wish_of_restart(self.context, deleted)
        youngest = {"youngest": deleted.youngest, "youngest_uids": deleted.youngest_uids}
        self.restart = restart = restart.model_copy(update=youngest)
        return await self._answered("the pods could not be stopped", lambda: steps.await_old_gone(restart, limits.pods_stopped))

    def _untouched(self, why: str) -> Ends:
        """Returns the end of a restart whose new pods would not be admitted.

        The running pods are kept. If training stands, a person has to look.
        """
        self.ordered, situation = False, self.context.situation
        stands = bool(situation.tried) or any(fault.kind is not FaultKind.SUB_HEALTH for fault in situation.faults)
        words = f"nothing was stopped: {why.removeprefix(f'{Refused.type}: ')}"
        return Ends(Outcome.GIVEN_UP if stands else Outcome.REFUSED, words)

    async def _start(self) -> None:
        """Starts all pods on healthy nodes; also on sub-healthy ones if the policy is `ignore`.

        Raises Ends if they do not run in time.
        """
        limits, restart, failed = self.context.job.limits, self.restart, "the pods could not be started"
        avoid = tuple(dict.fromkeys((*self.context.avoid_nodes, *avoided_nodes.lost(self.faults))))[: avoided_nodes.MOST_NODES]
        self.again = "that its pods can be made"
        made = await self._answered(f"{failed}; {AGAIN}", lambda: self._pods(avoid))
        self.again = ""
        started = await self._answered(failed, lambda: steps.await_new_running(restart, made.count, limits.pods_running))
        if not started.running:
            self.failed_on += started.failed_on
            self.again = "a node on which they start" if started.failed_on else "free nodes for its pods" if started.waits else ""
            raise _give_up(f"the pods do not run within {seconds(limits.pods_running)}: {started.message}")

    async def _pods(self, avoid: tuple[str, ...]) -> PodCount:
        """Creates the new pods.

        Another component, such as a quota, may refuse them now and admit them later, or another job gets a node that they need:
        the reason is shown, and the creation is retried.
        """
        restart, within = self.restart, self.context.job.limits.pods_created
        until, pause, phase, said = workflow.now() + within, FIRST_PAUSE, self.current, ""
        request = StartRequest(job_id=restart.job_id, generation=restart.generation, avoid_nodes=avoid, spare=self.wish)
        while True:
            try:
                return await steps.ensure_pods(request, within)
            except ActivityError as error:
                if not _is(error, Withheld.type) or workflow.now() + pause >= until:
                    raise
                words = f"{error.cause}".removeprefix(f"{Withheld.type}: ")
            self.current = f"{phase}: asked for again until {until:%H:%M:%S} UTC: {words}"
            self._show()
            if words != said:
                said = words
                await steps.record_event(restart.job_id, self._refused(words))
            await workflow.sleep(pause, summary="before the next try")
            pause = min(2 * pause, LONGEST_PAUSE)

    def _refused(self, words: str) -> ClusterEvent:
        job = self.context.job
        return ClusterEvent(name=job.name, kind=job.kind, reason="PodsRefused", message=words, type="Warning")

    async def _resumes(self) -> str:
        """Waits for the first step after the restart, and describes it."""
        job = self.context.job
        await self._until_unless_a_pod_is_lost(self._trains, job.limits.restart, "wait for the first completed step")
        if not self._trains():
            raise _give_up(f"no completed step within {seconds(job.limits.restart)}")
        if self.side.reports_its_steps:
            return "its first step is done"
        await self._until_unless_a_pod_is_lost(lambda: False, job.limits.pods_stay, "see that the pods stay")
        await self._look()
        seen = f"all {job.pods} pods run and stay, and its manager is attached"
        return f"restarted, not seen to train: {self.side.label} tells no step; {seen}"

    def _trains(self) -> bool:
        """Returns whether the job trains again.

        A new stream of the manager is sufficient if the training side does not report its first step.
        """
        if not self.side.reports_its_steps:
            return self.attachment is not None and self.attachment.session not in self.old_sessions
        return self.progress is not None and self._is_of_the_new_life(self.progress)

    def _is_of_the_new_life(self, progress: Progress) -> bool:
        """Returns whether the new pods made this progress. The stream of an old manager may become known only after the stop, and
        has then ended."""
        current = self.attachment.session if self.attachment else ""
        has_ended = progress.session in self.sessions and progress.session != current
        is_old = progress.incarnation == self.context.incarnation or progress.session in self.old_sessions
        return not (is_old or has_ended)

    async def _until_unless_a_pod_is_lost(self, condition: Callable[[], bool], within: timedelta, why: str) -> None:
        """Waits for a condition, unless a pod is lost.

        The report of a failed pod may be late and about an old pod, so the pods are looked at. A pod that vanishes is not
        reported, so they are also looked at regularly.
        """
        deadline, known = workflow.now() + within, self._pod_faults()
        while not condition() and (left := deadline - workflow.now()) > timedelta(0):
            await self.until(lambda: condition() or self._pod_faults() != known, min(left, LOOKS_AFTER), why)  # noqa: B023
            known = self._pod_faults()
            if not condition():
                await self._look()

    def _pod_faults(self) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind is FaultKind.POD and not fault.backup]

    async def _look(self) -> None:
        restart, count = self.restart, self.context.job.pods
        seen = await self._answered("the pods could not be looked at", lambda: steps.look_at_new_pods(restart, count))
        if not seen.running:
            raise _give_up(f"a pod was lost before the first completed step: {seen.message}")

    async def _answered(self, failed: str, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of a call when the cluster answers, however long it takes. A refusal ends the mode."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await call()
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                if _is(error, Refused.type):
                    raise self._untouched(f"{error.cause}") from error
                if not _is(error, ClusterUnavailable.type):
                    raise _give_up(f"{failed}: {error.cause}") from error
                await self._until_the_cluster_answers(f"{error.cause}", pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _until_the_cluster_answers(self, why: str, pause: timedelta) -> None:
        phase, self.unanswered = self.current, True
        self.current = f"{phase}: the cluster does not answer, it is tried again until it does ({why})"
        self._show()
        await workflow.sleep(pause, summary="before the next try")
        await steps.await_answer(self.context.job.id)
        self.current, self.unanswered = phase, False
        self._show()

    def _verdict(self, outcome: Outcome, reason: str, lost: int | None) -> Verdict:
        faulty = sorted({fault.node for fault in self.context.situation.faults if fault.node})
        recovered = outcome is Outcome.RECOVERED
        return Verdict(
            mode=self.MODE,
            outcome=outcome,
            reason=reason,
            steps_lost=lost,
            resumed_at=self.progress.step if recovered and self.progress else None,
            look_at=f"node {few(faulty)}" if faulty else "",
            restarted_at=self.restarted_at,
            again=self.again if outcome is Outcome.GIVEN_UP else "",
        )


def _is(error: ActivityError, kind: str) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == kind


def _give_up(reason: str) -> Ends:
    return Ends(Outcome.GIVEN_UP, reason)
