"""Moves a pod off its sub-healthy node while training pauses for a moment. Child of `TrainingJob`, or a front of a client.

The nine steps: a sub-health is seen; policy decides; the training side prepares while the backup pod starts; it is scheduled; it
runs and its processes load; training pauses by itself; this is reported; the old pod is deleted; training resumes. The entity
does the first two. The last two are exchanged if the training side fences what it replaced (docs/decisions/0008). Each failure
rule downgrades the sub-health policy to `ignore`. A real fault is no failure: the mode that repairs it comes first
(docs/decisions/0021).
"""

from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityHandle

from rekindle.ids import Workflows
from rekindle.model.activities.pods import Backup, BackupRequest
from rekindle.model.attachment import Attachment
from rekindle.model.dialogue import Report, ReportKind
from rekindle.model.fault import Fault, FaultKind, FaultType
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.job import ManagerLost, SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Handled, PodRef, Switched
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.drain.drain_verdicts import BY_REQUEST, WENT_BACK
from rekindle.policy.modes import elastic, faulty_ranks
from rekindle.policy.placement import spares
from workflows import hand_over, steps
from workflows.asked import asked_whether_it_trains
from workflows.dialogue import AFTER_AN_OUTAGE, OVERDUE, cancel_and_forget
from workflows.front import front
from workflows.mode import CAUGHT, NOTHING, Ends, ModeWorkflow, seconds, shielded, unless_cancelled

T = TypeVar("T")
IGNORE = SubHealthStrategy.IGNORE

LOOK_AT_BACKUP = timedelta(minutes=1)
"""Pause between two looks at a backup pod that is loading."""


@workflow.defn(name=Workflows.HOT_SWITCH, failure_exception_types=[Exception])
class HotSwitch(ModeWorkflow):
    MODE = Mode.HOT_SWITCH
    EXPECTS = (ReportKind.STOP_COMPLETE, ReportKind.STRATEGIES, ReportKind.STATUS)

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)
        self.uuid = ""
        self.paused = self.stopped = False
        self.replacing = False  # the old pod ends because it is replaced
        self.backup: Backup | None = None
        self.vanished = ""  # why the backup pod does not run; empty: it does
        self.left_behind: tuple[PodRef, ...] = ()

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        if context is None:
            return await front(self.MODE, request)
        was_cancelled = False
        try:
            verdict = await self._procedure()
        except Ends as end:
            verdict = await shielded(self._undone(end))
        except CAUGHT as error:
            if not (workflow.is_failure_exception(error) or is_cancelled_exception(error)):
                raise
            cancelled = Ends(Outcome.CANCELLED, f"{BY_REQUEST}, before training paused")
            verdict = await shielded(self._undone(cancelled))
            if not is_cancelled_exception(error):
                raise
            was_cancelled = True
        await shielded(self.heard())
        await shielded(workflow.wait_condition(workflow.all_handlers_finished))
        return await self.close(verdict, cancelled=was_cancelled)

    # ---- the procedure

    async def _procedure(self) -> Verdict:
        self.uuid = self.new_attempt()
        try:
            backup = await self._until_training_pauses()
        except CAUGHT as error:
            if not (is_cancelled_exception(error) and self.backup and self._pause_is_reported()):
                raise
            backup = self.backup  # cancelled too late: training waits for its order
        self._accept_the_pause()
        return await shielded(self._take_over(backup))

    async def _until_training_pauses(self) -> Backup:
        async with self.phase("training side prepares"):
            await self._prepare()
        async with self.phase("backup pod is scheduled"):
            backup = await self._start_backup()
        async with self.phase("backup pod runs"):
            await self._backup_runs(backup)
        async with self.phase("backup loads, training pauses"):
            await self._training_pauses(backup)
        return backup

    async def _prepare(self) -> None:
        job = self.context.job
        ranks = job.layout.ranks_of(self.pod_rank)
        self.undo.append(("stop switch", self._stop_switch))
        if await self.order(orders.prepare_hot_switch(job.id, self.uuid, ranks), job.limits.absence, self._is_struck):
            return
        why = self.lost_manager or "the training side could not be reached"
        if not self.touched:
            self.undo.clear()
        if real_faults := self._real_faults():
            raise _fault_first(real_faults)
        if not self.touched:
            raise Ends(Outcome.REFUSED, f"{why}; nothing was touched")
        if self.lost_manager:
            raise self._left_alone(why)
        raise Ends(Outcome.IGNORED, f"{why}: its order may have been written all the same, and is taken back")

    async def _start_backup(self) -> Backup:
        """Creates the backup pod and waits until it has a node.

        If it is refused by the cluster, another job gets the spare, or it is not scheduled in time, there is no spare. The mode
        then ends as ignored, and training was not touched.
        """
        job, avoid = self.context.job, self.context.avoid_nodes
        # The order to stop is sent before the deletion, as the cluster may not answer for long. If the training side takes a
        # running backup for a rank, the deletion comes first.
        self.undo.insert(len(self.undo) if self.side.takes_backups else 0, ("delete the backup pod", self._delete_backup))
        suffix, wish = f"{self.context.incident:04d}", spares.wish(self.MODE, self.context, 1)
        request = BackupRequest(job_id=job.id, pod_rank=self.pod_rank, name_suffix=suffix, avoid_nodes=avoid, spare=wish)
        try:
            self.backup = backup = await unless_cancelled(steps.ensure_backup(request))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise Ends(Outcome.IGNORED, f"no spare: {hand_over.why_not_made(error)}", policy=IGNORE) from error
        limit = elastic.patience_for_leaving(self.context, self.pod_rank)
        until = workflow.now() + limit
        scheduled = await self._unless_in_vain(steps.await_scheduled(job.id, backup.backup, until))
        if held := hand_over.gated(scheduled, seconds(limit)):
            raise Ends(Outcome.IGNORED, held)  # it is unknown whether there is a spare
        if not scheduled.node:
            raise Ends(
                Outcome.IGNORED,
                f"no spare: the backup pod was not scheduled within {seconds(limit)}: "
                f"{hand_over.without_node(scheduled, backup.before)}",
                policy=IGNORE,
            )
        if wrong := hand_over.put_wrong(scheduled, (*avoid, backup.old.node)):
            raise Ends(Outcome.IGNORED, wrong, policy=IGNORE)
        self.backup = backup.model_copy(update={"backup": backup.backup.model_copy(update={"node": scheduled.node})})
        return self.backup

    async def _backup_runs(self, backup: Backup) -> None:
        job, until = self.context.job, workflow.now() + self.context.job.limits.backup_start
        started = await self._unless_in_vain(steps.await_running(job.id, (backup.backup,), until))
        self.failed_on += started.failed_on
        if started.waits:  # no process of it ever ran (for example, its image cannot be pulled): training was not touched
            raise Ends(Outcome.IGNORED, f"no spare: the backup pod does not start: {started.message}", policy=IGNORE)
        if not started.running:
            raise self._backup_failed(started.message)

    async def _training_pauses(self, backup: Backup) -> None:
        """Waits for the pause.

        The training side pauses by itself when the backup's processes have registered; the time limit includes their loading.
        """
        job, until = self.context.job, workflow.now() + self.context.job.limits.pause
        if self.side.hears_of_backups:
            standbys = {backup.backup.uid: self.pod_rank} if backup.standby else {}
            order = orders.with_standbys(orders.backup_running(job.id, self.uuid), standbys)
            await self.order(order, job.limits.order)  # a new pod causes the pause even without it
        await self._loads(backup, until)
        if workflow.now() - until > OVERDUE:
            await self.until(self._stops_loading, AFTER_AN_OUTAGE, "the limit passed in an outage")
        if self._backup_failure() and not self._real_faults():
            await self.until(self._pause_is_reported, job.limits.pause_crossing, "the pause may have crossed the backup's end")
        if not self._pause_is_reported():
            await self.comes_back(lambda: self._pause_is_reported() or self._is_in_vain())
        self._stop_if_in_vain()
        if not self._pause_is_reported():
            raise self._no_pause()

    def _no_pause(self) -> Ends:
        """Returns the end for training that does not pause.

        Backups fail or wait if their manager is gone and no other one replaces it. Nothing is wrong with them then, and training
        was not touched.
        """
        if not self.side.successor_continues and self.attachment is None:
            return self._left_alone("the manager is away, and was not started again: it reports no pause")
        if failure := self._backup_failure():
            return self._backup_failed(failure)
        return _escalate(f"pausing failed: no report of the pause within {seconds(self.context.job.limits.pause)}")

    async def _loads(self, backup: Backup, until: datetime) -> None:
        """Waits until training pauses, or can no longer pause.

        The backup pod is looked at regularly, as the deletion of a pod without rank is not reported. After an outage the report
        of the pause may be lost for good, and the training side gives up by itself. While the pods run, the backup is still
        loading.
        """
        known, may_lose = self.attachment, not self.side.repeats_reports
        while not self._stops_loading() and (left := until - workflow.now()) > timedelta(0):
            await self.until(
                lambda: self._stops_loading() or (may_lose and self._is_renewed(known)),  # noqa: B023
                min(left, LOOK_AT_BACKUP),
                "wait for the report of the pause",
            )
            if self._stops_loading():
                return
            if may_lose and self._is_renewed(known):
                known = self.attachment
                within = min(self.context.job.limits.pause_lost, until - workflow.now())
                in_time = await self.until(self._stops_loading, within, "the report of the pause may be lost")
                if not in_time and (gone := await self._not_running(backup.old, backup.backup)):
                    raise _escalate(f"pausing failed: its report was lost in an outage, and the training side gave up: {gone}")
            elif workflow.now() < until:
                self.vanished = await self._not_running(backup.backup)

    async def _not_running(self, *pods: PodRef) -> str:
        """Looks whether the pods run, and returns why one does not.

        Empty: all run, or the cluster did not answer, or the answer is no longer needed.
        """
        looking = steps.await_running(self.context.job.id, pods, workflow.now())
        await self.until(lambda: looking.done() or self._stops_loading(), None, "look at the pods")
        if not looking.done():
            cancel_and_forget(looking)
            return ""
        return "" if looking.exception() or (seen := looking.result()).running else seen.message

    def _is_renewed(self, before: Attachment | None) -> bool:
        """Returns whether another stream has replaced this one."""
        return self.attachment is not None and self.attachment != before

    def _stops_loading(self) -> bool:
        return self._pause_is_reported() or self._is_in_vain() or self._backup_failure() != ""

    def _accept_the_pause(self) -> None:
        """Accepts the report of the pause.

        From here on the training side waits for its order, and `stop switch` would make it exit.
        """
        report = self.next_report(ReportKind.STRATEGIES)
        assert report is not None
        self.paused = True
        if not set(report.strategies) - {"exit"}:
            raise _escalate(f"pausing failed: the training side offers {list(report.strategies) or 'nothing'}")

    def _pause_is_reported(self) -> bool:
        return self.has_report(ReportKind.STRATEGIES)

    async def _take_over(self, backup: Backup) -> Verdict:
        """Completes the switch after the report of the pause.

        It only goes forward from here, even if it was cancelled meanwhile.
        """
        self.replacing = True
        latest = workflow.now() + self.context.job.limits.migration_delivered
        if self.side.fences_old_processes:
            status, rescue = await self._resume_and_delete(backup, latest)
        else:
            status, rescue = await self._delete_and_resume(backup, latest)
        if rescue:
            await self.compensate()
            if orders.NO_ORDER in rescue:  # our own outage says nothing against the switch
                return self._ended(Ends(Outcome.IGNORED, f"training went on where it was: {rescue}", passing=True))
            return self._ended(Ends(Outcome.IGNORED, f"{WENT_BACK}: {rescue}", policy=IGNORE))
        self.undo.clear()
        async with self.phase("backup pod takes over the rank"):
            late, self.left_behind = await hand_over.promoted(self.context.job, backup.old, backup.backup)
        return self._recovered(backup, "; ".join(note for note in (status.info, late) if note))

    async def _delete_and_resume(self, backup: Backup, latest: datetime) -> tuple[Report, str]:
        """Deletes the old pod, then resumes training.

        Training must not meet the old processes again, so they are gone before it continues.
        """
        job = self.context.job
        if self.lost_manager:
            raise _escalate(f"resuming fails: {self.lost_manager}")
        async with self.phase("old pod is deleted"):
            try:
                swap = await steps.swap(job.id, backup.old, backup.backup)
            except ActivityError as error:
                raise _escalate(f"the old pod could not be deleted: {error.cause}") from error
            if swap.old_deleted and not await hand_over.is_gone(job, backup.old):
                raise _escalate(f"the old pod {backup.old.name} was not gone within {seconds(job.limits.old_pod_deleted)}")
        async with self.phase("training resumes"):
            return await self._training_resumes(latest), swap.message

    async def _resume_and_delete(self, backup: Backup, latest: datetime) -> tuple[Report, str]:
        """Resumes training, then deletes the old pod.

        The training side fences the old processes, and reports on which pod it continues. The old pod is kept as the rescue until
        the backup works.
        """
        async with self.phase("training resumes"):
            status = await self._training_resumes(latest)
        if status.strategy == orders.CONTINUE:
            return status, status.info
        async with self.phase("old pod is deleted"):
            try:
                swap = await steps.swap(self.context.job.id, backup.old, backup.backup)
            except ActivityError as error:
                workflow.logger.warning(
                    "replaced pod not deleted by the hot switch", extra={"pod": backup.old.name, "error": str(error.cause)}
                )
                return status, ""
        if not swap.old_deleted:
            raise await self._failure(f"the backup pod died when it had taken over: {swap.message}")
        return status, ""

    async def _training_resumes(self, latest: datetime) -> Report:
        job = self.context.job
        within = self.patience if self.side.waits_for_orders else latest - workflow.now()
        if not await self.order(orders.migrate(job.id, self.uuid), within):
            raise _escalate(f"resuming fails: {self.lost_manager or 'the order `migration` could not be delivered in time'}")
        report = await self._status()
        if report.code != 0:
            raise await self._failure(f"resuming fails: the training side reports {report.code} {report.info}".rstrip())
        return report

    async def _failure(self, reason: str) -> Ends:
        """Returns how the mode ends after a failure that follows the pause.

        A training side that reports its fault stands, and other modes repair what is faulty. If no rank is faulty it blames the
        network: then the switch itself failed.
        """
        if not self.side.reports_its_fault:
            return _escalate(reason)
        await self.until(self._is_struck, self.context.job.limits.pause_crossing, "a fault may be the reason")
        real_faults, job = self._real_faults(), self.context.job
        types = {one.type for fault in real_faults for one in faulty_ranks.ranks_of(job, fault)}
        if not real_faults:
            return _escalate(reason)
        if types == {FaultType.NETWORK}:
            return Ends(Outcome.ESCALATE, reason, policy=IGNORE)
        return _fault_first(real_faults, f": {reason}")

    async def _status(self) -> Report:
        """Returns the report of the resumption. After an outage it may be lost although training runs."""
        job = self.context.job
        deadline = workflow.now() + job.limits.resume
        reports_its_fault = self.side.reports_its_fault
        await self.until(
            lambda: self._resumption_is_decided() or self.may_be_lost() or (reports_its_fault and self._is_struck()),
            job.limits.resume,
            "wait for the report that training resumed",
        )
        renewed = self.may_be_lost()
        if renewed:
            within = min(job.limits.status_lost, deadline - workflow.now())
            await self.until(self._resumption_is_decided, within, "wait for a status that may be lost")
        await self.comes_back(self._resumption_is_decided)
        if reports_its_fault and self._is_struck():
            within = min(job.limits.order, deadline - workflow.now())
            await self.until(self._resumption_is_decided, within, "training may have resumed before the fault")
        if report := self.next_report(ReportKind.STATUS):
            return report
        if reports_its_fault and (real_faults := self._real_faults()):
            raise _fault_first(real_faults)
        if self.lost_manager:
            raise _escalate(f"resuming fails: {self.lost_manager}, which knows nothing of the switch")
        if self.may_be_lost():
            return await self._status_by_evidence()
        raise _escalate(f"resuming fails: no report that training resumed within {seconds(job.limits.resume)}")

    def _resumption_is_decided(self) -> bool:
        return self.has_report(ReportKind.STATUS) or bool(self.lost_manager)

    async def _status_by_evidence(self) -> Report:
        """Asks training whether it has resumed: it repeats a step then. If pods have failed, it is not asked."""
        if not await self._runs_on():
            raise _escalate("resuming fails: its report may have been lost in an outage, and the pods do not run on")
        try:
            info = await asked_whether_it_trains(self, lambda fault: fault in self.met or self._is_left_behind(fault))
        except Ends as end:
            raise _escalate(f"resuming fails: {end.reason}") from end
        return Report(kind=ReportKind.STATUS, info=info)

    async def _runs_on(self) -> bool:
        assert self.backup is not None
        started = await steps.await_running(self.context.job.id, (self.backup.backup,), workflow.now())
        return started.running and not self._real_faults()

    # ---- undo

    async def _undone(self, end: Ends) -> Verdict:
        await self.compensate()
        if self.stopped:
            self.inbox.clear()  # training no longer waits because of earlier reports
        return self._ended(end)

    async def _stop_switch(self) -> None:
        too_late = self._pause_is_reported() and not self.side.survives_stop
        if self.paused or too_late or self.lost_manager or self.felt_faults():
            return  # the training side has given up the switch by itself, or never knew of it
        self.take_back_orders()
        job = self.context.job
        within = (
            job.limits.pause_crossing if self.new_faults() else job.limits.order
        )  # if a restart follows, it must not be delayed
        self.stopped = await self.order(orders.stop_hot_switch(job.id, self.uuid), within) and self.side.survives_stop

    async def _delete_backup(self) -> None:
        self.left_behind = (self.backup.backup,) if self.backup else ()
        await steps.delete_backups(self.context.job.id)
        self.left_behind = ()

    # ---- helpers of the procedure

    @property
    def pod_rank(self) -> int:
        assert self.request.pod_rank is not None, "the TrainingJob validates it"
        return self.request.pod_rank

    async def _unless_in_vain(self, waiting: ActivityHandle[T]) -> T:
        """Returns the result of a wait, which ends early when the switch can no longer succeed."""
        await self.until(lambda: waiting.done() or self._is_in_vain(), None, "wait for the pod")
        if not waiting.done():
            cancel_and_forget(waiting)
            self._stop_if_in_vain()
        try:
            return await waiting
        except ActivityError as error:
            raise self._unanswered(str(error.cause)) from error

    def _real_faults(self) -> list[Fault]:
        """Returns the faults that interrupt the switch. The end of the pod that is being replaced is none."""
        return [fault for fault in self.new_faults() if not (self.replacing and self._is_left_behind(fault))]

    def _is_struck(self) -> bool:
        return bool(self._real_faults())

    def _is_left_behind(self, fault: Fault) -> bool:
        assert self.backup is not None
        return Switched(pod_rank=self.pod_rank, before=self.backup.old, after=self.backup.backup).left_behind(fault)

    def _is_in_vain(self) -> bool:
        return bool(self._real_faults() or self.lost_manager)

    def _stop_if_in_vain(self) -> None:
        """Raises Ends if the switch can no longer succeed: a real fault comes first, and a new manager may not know of the
        switch."""
        if real_faults := self._real_faults():
            raise _fault_first(real_faults)
        if self.lost_manager:
            raise self._left_alone(f"{self.lost_manager}, which knows nothing of the switch")

    def _left_alone(self, why: str) -> Ends:
        """Returns the end of a switch whose manager was lost before training paused.

        The owner's rule for lost managers applies, as at any other time.
        """
        if self.context.job.manager_lost is ManagerLost.RESTART:
            return Ends(Outcome.ESCALATE, why, training=Training.LOST)
        return Ends(Outcome.IGNORED, f"{why}; training goes on")

    def _backup_failure(self) -> str:
        uid = self.backup.backup.uid if self.backup else ""
        of_it = (fault for fault in self.faults if uid and uid in fault.pod_uids)
        failed = (
            fault for fault in of_it if fault.kind is not FaultKind.NODE
        )  # the node may come back, and training goes on meanwhile
        return next((fault.message or f"pod {fault.pod} failed" for fault in failed), self.vanished)

    def _backup_failed(self, why: str) -> Ends:
        """Returns the end of a switch whose backup failed.

        A failure rule applies, unless the node is only being drained: then training was not touched, and a backup on a drained
        node is followed by another. A training side that takes backups may already have taken this one for a rank.
        """
        reason = f"the backup pod failed to run: {why}"
        return (
            Ends(Outcome.IGNORED, reason, policy=IGNORE) if self._is_drain and not self.side.takes_backups else _escalate(reason)
        )

    def _unanswered(self, why: str) -> Ends:
        """Returns the end of a switch during which the cluster did not answer or refused us.

        It is unknown whether the backup failed, and training was not touched. A training side that takes backups may already have
        taken this one for a rank.
        """
        if self.side.takes_backups:
            return _escalate(f"the backup pod failed to run: {why}")
        reason = f"no spare: the cluster does not say whether the backup pod runs: {why}"
        return Ends(Outcome.REFUSED if self._is_drain else Outcome.IGNORED, reason, policy=IGNORE)

    @property
    def _is_drain(self) -> bool:
        about = [fault for fault in self.context.situation.faults if self.pod_rank in fault.pod_ranks]
        return bool(about) and all(fault.is_maintenance for fault in about)

    def _ended(self, end: Ends) -> Verdict:
        return Verdict(
            mode=self.MODE,
            outcome=end.outcome,
            reason=end.reason,
            steps_lost=0 if end.outcome is not Outcome.ESCALATE else None,
            training=end.training,
            passing=end.passing,
            policy_after=end.policy if self.context.policy is SubHealthStrategy.HOT_SWITCH else None,
            look_at=self._node_to_look_at(),
            left_behind=self.left_behind,
        )

    def _node_to_look_at(self) -> str:
        """Returns the node that the pod is to leave, if something is wrong with it; empty: the move was requested, or the node is
        being drained."""
        node = self.backup.old.node if self.backup else ""
        faults = [fault for fault in self.context.situation.faults if not fault.is_maintenance]
        return f"node {node}" if node and any(f.node == node or self.pod_rank in f.pod_ranks for f in faults) else ""

    def _recovered(self, backup: Backup, note: str) -> Verdict:
        moved = Switched(pod_rank=self.pod_rank, before=backup.old, after=backup.backup)
        reason = f"pod rank {self.pod_rank} moved from {backup.old.node} to {backup.backup.node}"
        return Verdict(
            mode=self.MODE,
            outcome=Outcome.RECOVERED,
            reason=f"{reason}; {note}" if note else reason,
            steps_lost=0,
            look_at=self._node_to_look_at(),
            switched=(moved,),
            left_behind=self.left_behind,
            handled=tuple(Handled.of(fault) for fault in self.faults if self._is_left_behind(fault)),
        )


def _fault_first(real_faults: list[Fault], note: str = "") -> Ends:
    """Returns the end of a switch that gives way to a real fault. This says nothing against switching, so the policy stays."""
    why = f"a real fault comes first: {real_faults[0].message or real_faults[0].kind}{note}"
    return Ends(Outcome.CANCELLED, why, training=Training.FAULTED)


def _escalate(reason: str) -> Ends:
    """Returns the end by one of the five failure rules: job rescheduling follows, and sub-health is ignored from now on."""
    return Ends(Outcome.ESCALATE, reason, training=Training.LOST, policy=IGNORE)
