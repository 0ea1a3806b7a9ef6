"""Starts other pods, on other nodes, that take over the ranks of faulty ones.

All other processes keep their memory, and provide the state.

Child of `TrainingJob`, or a front of a client. Training stands while the new pods start. They are backup pods like those of a hot
switch, and take over by the same hand-over. All faulty pods are replaced, including those that are lost meanwhile. Where
the job's controller recreates its pods, `workflows.recreated_pods` waits for that.
"""

from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityHandle

from rekindle.errors import NotFound
from rekindle.ids import Workflows
from rekindle.model.activities.pods import BackupRequest, Replacement
from rekindle.model.bounds import few
from rekindle.model.dialogue import Report, Strategy
from rekindle.model.fault import FaultKind
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode
from rekindle.model.situation import Handled, PodRef, Switched
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import faulty_ranks
from rekindle.policy.modes.mode_table import RESCHEDULING_TRIES
from rekindle.policy.placement import avoided_nodes
from workflows import hand_over, steps
from workflows.dialogue import cancel_and_forget
from workflows.mode import NOTHING, seconds
from workflows.process_level import answer
from workflows.recreated_pods import NOBODY, RecreatedPods

T = TypeVar("T")

EARLY = timedelta(seconds=1)
"""Margin before a wait's limit. A wait that ended earlier than this was not ended by its limit."""

LOOK_AT_PODS = timedelta(minutes=1)
"""Pause between two looks at new pods that are to take over."""


class _PodFails(Exception):
    """A new pod is not created, or failed; another one may succeed."""


@workflow.defn(name=Workflows.PROCESS_RESCHEDULING, failure_exception_types=[Exception])
class ProcessRescheduling(RecreatedPods):
    MODE = Mode.PROCESS_RESCHEDULING
    ASKS_FIRST = True

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)
        self.backups: dict[int, Replacement] = {}
        """Pods that are to take over, by pod rank."""
        self.leaves: dict[int | None, tuple[str, ...]] = {}
        """Node that a pod must leave, by pod rank, if the pod is still running. The node of a failed pod may be used again."""
        self.leaves_out: list[str] = []
        """Nodes on which a new pod failed."""
        self.vanished: list[str] = []
        """UIDs of new pods that were found not running."""
        self.moved: list[Switched] = []
        self.left_behind: tuple[PodRef, ...] = ()

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
            except _PodFails as failure:
                why: str | _PodFails = failure
                await self.compensate()
            else:
                if report and not report.code:
                    return await self._handed_over(report)
                why = f"the new pods could not take over: {answer(report)}" if report else "pods are lost again and again"
                if report and not await self.is_hit_again():
                    raise self.fails(why, report.code)
                if self._dead():
                    await self.compensate()
            if not tries_left:
                raise self.fails(f"{why}")
            self.again()

    # ---- new pods take over

    async def _replaced(self, pods: tuple[int, ...]) -> Report | None:
        """Returns the training side's answer when new pods of these pod ranks run; None: other ranks were lost meanwhile, and
        need new pods too."""
        async with self.phase("new pods start"):
            if not self.undo:
                self.undo.append(("delete the new pods", self._delete_backups))
            await self._start(pods)
        if self.is_hit:
            return None
        async with self.phase("new pods take over the ranks"):
            job, here = self.context.job, self.situation
            order = orders.change_strategy(job.id, here.attempt, Strategy.RECOVER, here.announced, pods)
            standbys = {one.backup.uid: pod_rank for pod_rank, one in sorted(self.backups.items()) if one.standby}
            order = orders.with_standbys(order, standbys)
            return await self.carry_out(order, job.limits.repair)

    async def _start(self, pods: tuple[int, ...]) -> None:
        """Creates all new pods before it waits for any of them."""
        limits, avoid = self.context.job.limits, self._nodes_to_avoid()
        for pod_rank in pods:
            self.backups[pod_rank] = await self._made(pod_rank, avoid)
        scheduled_by = workflow.now() + limits.replacement_scheduled
        for pod_rank in pods:
            self.backups[pod_rank] = await self._scheduled(pod_rank, avoid, scheduled_by)
        running_by = workflow.now() + limits.backup_start
        for pod_rank in pods:
            await self._runs(self.backups[pod_rank], running_by)

    async def _made(self, pod_rank: int, avoid: tuple[str, ...]) -> Replacement:
        suffix = f"{self.context.incident:04d}"
        request = BackupRequest(job_id=self.context.job.id, pod_rank=pod_rank, name_suffix=suffix, avoid_nodes=avoid)
        self.leaves.pop(pod_rank, None)
        try:
            if pod_rank in faulty_ranks.lost_pods(self.context.job, self.faults):
                return await steps.ensure_replacement(request)
            try:
                living = await steps.ensure_backup(request)
            except ActivityError as error:
                if not _is_gone(error):
                    raise
                return await steps.ensure_replacement(request)
            self.leaves[pod_rank] = (living.old.node,)
            return Replacement(old=living.old, backup=living.backup, standby=living.standby)
        except ActivityError as error:
            raise self.fails(f"no spare for pod rank {pod_rank}: {error.cause}") from error

    async def _scheduled(self, pod_rank: int, avoid: tuple[str, ...], until: datetime) -> Replacement:
        """Waits until a new pod has a node, and returns it with that node.

        Raises Ends if there is no spare node in time. The node of a pod that failed by itself may be used again.
        """
        backup = self.backups[pod_rank]
        found = await self._unless_in_vain(backup, steps.await_scheduled(self.context.job.id, backup.backup, until))
        if not found.node and workflow.now() < until - EARLY:
            raise _PodFails(f"the new pod {backup.backup.name} failed before it had a node: {found.message}")
        if not found.node:
            limit = seconds(self.context.job.limits.replacement_scheduled)
            if held := hand_over.gated(found, limit):
                raise self.fails(held)
            raise self.fails(f"no spare: {backup.backup.name} was not scheduled within {limit}: {found.message}")
        if wrong := hand_over.put_wrong(found, (*avoid, *self.leaves.get(backup.backup.rank, ()))):
            raise self.fails(wrong)
        return backup.model_copy(update={"backup": backup.backup.model_copy(update={"node": found.node})})

    async def _runs(self, backup: Replacement, until: datetime) -> None:
        found = await self._unless_in_vain(backup, steps.await_running(self.context.job.id, (backup.backup,), until))
        if not found.running:
            self.failed_on += found.failed_on
            self.leaves_out.append(backup.backup.node)
            raise _PodFails(f"the new pod {backup.backup.name} failed to run: {found.message}")

    async def _unless_in_vain(self, backup: Replacement, waiting: ActivityHandle[T]) -> T:
        await self.until(
            lambda: waiting.done() or bool(self.lost_manager) or self._is_on_a_lost_node(backup), None, "wait for the pod"
        )
        if not waiting.done():
            cancel_and_forget(waiting)
            if self.lost_manager:
                raise self.ends_all(self.lost_manager)
            self.leaves_out.append(backup.backup.node)
            raise _PodFails(f"the new pod {backup.backup.name} failed to run: its node is lost")
        try:
            return await waiting
        except ActivityError as error:
            raise _PodFails(f"the new pod {backup.backup.name} failed to run: {error.cause}") from error

    def _is_on_a_lost_node(self, backup: Replacement) -> bool:
        """Returns whether a new pod is on a lost node.

        The cluster shows it as starting until it is evicted, while training stands.
        """
        return any(backup.backup.uid in fault.pod_uids for fault in self.faults if fault.backup and fault.kind is FaultKind.NODE)

    @property
    def is_hit(self) -> bool:
        """True if unannounced ranks are faulty, or a new pod died. After the latter, another pod may succeed."""
        return super().is_hit or bool(self._dead())

    async def await_answer(self, within: timedelta, why: str) -> None:
        """Waits for the answer, and looks at the new pods meanwhile.

        The deletion of a new pod is not reported, as it holds no rank yet.
        """
        until = workflow.now() + within
        while not self.is_answered() and (left := until - workflow.now()) > timedelta(0):
            await self.until(self.is_answered, min(left, LOOK_AT_PODS), why)
            if not self.is_answered() and workflow.now() < until:
                await self._look()

    async def _look(self) -> None:
        """Looks which new pods do not run. A look that the cluster does not answer is ignored."""
        for backup in list(self.backups.values()):
            looking = steps.await_running(self.context.job.id, (backup.backup,), workflow.now())
            await self.until(lambda: looking.done() or self.is_answered(), None, "look at the new pods")  # noqa: B023
            if not looking.done():
                cancel_and_forget(looking)
            elif not looking.exception() and not looking.result().running:
                self.vanished.append(backup.backup.uid)

    def is_answered(self) -> bool:
        """Returns whether the order was answered, or can no longer be because a new pod died."""
        return super().is_answered() or bool(self._dead())

    def no_answer(self, order: str, within: timedelta) -> Exception:
        if dead := self._dead():
            self.leaves_out += [backup.backup.node for backup in dead]
            names = few([backup.backup.name for backup in dead])
            return _PodFails(f"new pods died before they had taken over: {names}")
        return super().no_answer(order, within)

    def _dead(self) -> list[Replacement]:
        over = {*self.vanished, *(uid for fault in self.faults if fault.backup for uid in fault.pod_uids)}
        return [backup for backup in self.backups.values() if backup.backup.uid in over]

    def _nodes_to_avoid(self) -> tuple[str, ...]:
        lost = (*self.context.lost_nodes, *avoided_nodes.lost(self.faults))
        return tuple(dict.fromkeys((*self.leaves_out, *self.context.avoid_nodes, *lost)))[: avoided_nodes.MOST_NODES]

    async def _delete_backups(self) -> None:
        self.left_behind = tuple(backup.backup for backup in self.backups.values())
        await steps.delete_backups(self.context.job.id)
        self.left_behind, self.backups = (), {}

    # ---- the hand-over, while training goes on

    async def _handed_over(self, report: Report) -> str:
        self.undo.clear()
        async with self.phase("old pods are deleted"):
            notes = [await self._hand_over(pod_rank, backup) for pod_rank, backup in sorted(self.backups.items())]
        where = few([f"{one.pod_rank} on {one.after.node}" for one in self.moved])
        return "; ".join((f"pod ranks recovered in other pods: {where}", report.info, *filter(None, notes)))

    async def _hand_over(self, pod_rank: int, backup: Replacement) -> str:
        """Deletes the old pod, if there is one, and makes the new one the pod of the rank."""
        job = self.context.job
        before = backup.old or PodRef(name="", uid=self._held_before(pod_rank), rank=pod_rank)
        self.moved.append(Switched(pod_rank=pod_rank, before=before, after=backup.backup))
        try:
            swap = await steps.swap(job.id, backup.old, backup.backup)
        except ActivityError as error:
            workflow.logger.warning(
                "replaced pod not deleted by the rescheduling", extra={"pod": before.name, "error": str(error.cause)}
            )
        else:
            if not swap.old_deleted:
                self.left_behind += (backup.backup,)
                return f"the new pod died when it had taken over: {swap.message}"  # that is a new fault
        note, left_behind = await hand_over.promoted(job, backup.old, backup.backup)
        self.left_behind += left_behind
        return note

    def _held_before(self, pod_rank: int) -> str:
        """Returns the UID of the last holder of a rank whose pod the cluster no longer shows; empty: unknown."""
        uid = self.context.holders[pod_rank] if self.context.holders else ""
        return "" if uid in NOBODY else uid

    def recovered(self, reason: str) -> Verdict:
        about = [fault for fault in self.faults if any(one.left_behind(fault) for one in self.moved)]
        verdict, left = super().recovered(reason), (Handled.of(fault) for fault in about)
        handled = tuple(dict.fromkeys((*verdict.handled, *left)))
        return verdict.with_(handled=handled, switched=tuple(self.moved), left_behind=self.left_behind)


def _is_gone(error: ActivityError) -> bool:
    """Returns whether the error says that the rank's pod is gone, which was not reported yet."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == NotFound.type
