"""Base class of the modes that have other pods take over the ranks of faulty ones.

The new pods are backup pods like those of a hot switch, and take over by the same hand-over. Lost nodes are avoided.
"""

from datetime import datetime, timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityHandle

from rekindle.errors import NotFound
from rekindle.model.activities.pods import BackupRequest, Replacement
from rekindle.model.bounds import few
from rekindle.model.dialogue import Order, Report, Strategy
from rekindle.model.fault import EXPECTED_HOLDER, UNKNOWN_HOLDER, FaultKind
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.job import NoSpare
from rekindle.model.situation import Handled, PodRef, Switched
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import elastic, faulty_ranks
from rekindle.policy.modes.eligibility import MOST_REPLACED, too_many
from rekindle.policy.placement import avoided_nodes, spares
from workflows import hand_over, steps
from workflows.dialogue import cancel_and_forget
from workflows.mode import seconds
from workflows.process_level import ProcessLevel

T = TypeVar("T")

EARLY = timedelta(seconds=1)
"""Margin before a wait's limit. A wait that ended earlier than this was not ended by its limit."""

ASK_AGAIN = timedelta(seconds=5)
"""Pause before a spare node is asked for again that another job gets."""

LOOK_AT_PODS = timedelta(minutes=1)
"""Pause between two looks at new pods that are to take over."""

NOBODY = ("", UNKNOWN_HOLDER, EXPECTED_HOLDER)


class PodFails(Exception):
    """A new pod is not created, or failed; another one may succeed."""


class NewPods(ProcessLevel):
    """Mode whose new pods take the ranks of faulty ones."""

    WAITS = False
    """True if training goes on while new pods wait, so that a node that is lost now may still come back for them."""

    def __init__(self, request: ModeRequest, context: RecoveryContext | None) -> None:
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
        self.limit_for_spare = self.patience_for_spare = timedelta(0)
        """Time in which new pods have to get nodes, and what is left of it."""

    def pods_to_replace(self) -> tuple[int, ...]:
        """Returns the pod ranks of the announced faults; raises Ends if they are too many by now."""
        pods = faulty_ranks.pods_of(self.context.job, self.situation.announced)
        if len(pods) > MOST_REPLACED:
            raise self.fails(too_many(len(pods)))
        return pods

    def time_for_spare(self, pods: tuple[int, ...]) -> timedelta:
        """Returns the time in which new pods for these pod ranks have to get nodes."""
        context = self.context
        return elastic.patience_for_spare(context.job, context.small, pods, context.job.limits.replacement_scheduled)

    def why_stop(self) -> Exception | None:
        """Returns the end of the mode if it makes no sense any more to wait for new pods. None: it does."""
        return self.ends_all(self.lost_manager) if self.lost_manager else None

    # ---- new pods start

    async def new_pods(self, pods: tuple[int, ...]) -> None:
        """Starts new pods for these pod ranks.

        Raises:
            PodFails: one of them failed; another one may succeed.
            Ends: there is no spare node, or the cluster makes no pod.
        """
        async with self.phase("new pods start"):
            if not self.undo:
                self.undo.append(("delete the new pods", self._delete_backups))
            await self._start(pods)

    def order_to_take_over(self, strategy: Strategy, pods: tuple[int, ...]) -> Order:
        """Returns the order by which the new pods take over the ranks of these pods. Standbys learn their ranks from it."""
        job, here = self.context.job, self.situation
        order = orders.change_strategy(job.id, here.attempt, strategy, here.announced, pods)
        standbys = {one.backup.uid: pod_rank for pod_rank, one in sorted(self.backups.items()) if one.standby}
        return orders.with_standbys(order, standbys)

    async def _start(self, pods: tuple[int, ...]) -> None:
        """Creates all new pods before it waits for any of them."""
        limits, avoid = self.context.job.limits, self._nodes_to_avoid()
        self.limit_for_spare = self.patience_for_spare = self.time_for_spare(pods)
        wish = spares.wish(self.MODE, self.context, len(pods))
        for pod_rank in pods:
            request = BackupRequest(
                job_id=self.context.job.id,
                pod_rank=pod_rank,
                name_suffix=f"{self.context.incident:04d}",
                avoid_nodes=avoid,
                spare=wish,
                waits=self.WAITS,
            )
            self.backups[pod_rank] = await self._made_in_turn(request)
        scheduled_by = workflow.now() + self.patience_for_spare
        for pod_rank in pods:
            self.backups[pod_rank] = await self._scheduled(pod_rank, avoid, scheduled_by)
        running_by = workflow.now() + limits.backup_start
        for pod_rank in pods:
            await self._runs(self.backups[pod_rank], running_by)

    async def _made_in_turn(self, request: BackupRequest) -> Replacement:
        """Creates a new pod. If another job gets the spare node, waits for another one, if the job's owner wants that.

        Raises Ends if there is no spare node in time. Training stands meanwhile.
        """
        while True:
            try:
                return await self.made(request)
            except ActivityError as error:
                waits = hand_over.is_spare_taken(error) and self.context.job.no_spare is NoSpare.WAIT
                if not waits or self.patience_for_spare <= timedelta(0):
                    words = f"no spare for pod rank {request.pod_rank}: {hand_over.why_not_made(error)}"
                    raise self.fails(words) from error
            await self._wait_for_spare()

    async def _wait_for_spare(self) -> None:
        began = workflow.now()
        await self.until(
            lambda: self.why_stop() is not None, min(ASK_AGAIN, self.patience_for_spare), "another job gets the spare node"
        )
        self.patience_for_spare -= workflow.now() - began
        if end := self.why_stop():
            raise end

    async def made(self, request: BackupRequest) -> Replacement:
        pod_rank = request.pod_rank
        self.leaves.pop(pod_rank, None)
        if pod_rank in faulty_ranks.lost_pods(self.context.job, self.faults):
            return await steps.ensure_replacement(request)
        try:
            living = await steps.ensure_backup(request)
        except ActivityError as error:
            if not _is_gone(error):
                raise
            return await steps.ensure_replacement(request)
        self.leaves[pod_rank] = (living.old.node,)
        return Replacement(old=living.old, backup=living.backup, standby=living.standby, before=living.before)

    async def _scheduled(self, pod_rank: int, avoid: tuple[str, ...], until: datetime) -> Replacement:
        """Waits until a new pod has a node, and returns it with that node.

        Raises Ends if there is no spare node in time. The node of a pod that failed by itself may be used again.
        """
        backup = self.backups[pod_rank]
        found = await self._unless_in_vain(backup, steps.await_scheduled(self.context.job.id, backup.backup, until))
        if not found.node and workflow.now() < until - EARLY:
            raise PodFails(f"the new pod {backup.backup.name} failed before it had a node: {found.message}")
        if not found.node:
            limit = seconds(self.limit_for_spare)
            if held := hand_over.gated(found, limit):
                raise self.fails(held)
            words = hand_over.without_node(found, backup.before)
            raise self.fails(f"no spare: {backup.backup.name} was not scheduled within {limit}: {words}")
        if wrong := hand_over.put_wrong(found, (*avoid, *self.leaves.get(backup.backup.rank, ()))):
            raise self.fails(wrong)
        return backup.model_copy(update={"backup": backup.backup.model_copy(update={"node": found.node})})

    async def _runs(self, backup: Replacement, until: datetime) -> None:
        found = await self._unless_in_vain(backup, steps.await_running(self.context.job.id, (backup.backup,), until))
        if not found.running:
            self.failed_on += found.failed_on
            self.leaves_out.append(backup.backup.node)
            raise PodFails(f"the new pod {backup.backup.name} failed to run: {found.message}")

    async def _unless_in_vain(self, backup: Replacement, waiting: ActivityHandle[T]) -> T:
        await self.until(
            lambda: waiting.done() or self.why_stop() is not None or self._is_on_a_lost_node(backup), None, "wait for the pod"
        )
        if not waiting.done():
            cancel_and_forget(waiting)
            if end := self.why_stop():
                raise end
            self.leaves_out.append(backup.backup.node)
            raise PodFails(f"the new pod {backup.backup.name} failed to run: its node is lost")
        try:
            return await waiting
        except ActivityError as error:
            raise PodFails(f"the new pod {backup.backup.name} failed to run: {error.cause}") from error

    def _is_on_a_lost_node(self, backup: Replacement) -> bool:
        """Returns whether a new pod is on a lost node.

        The cluster shows it as starting until it is evicted, while training stands.
        """
        return any(backup.backup.uid in fault.pod_uids for fault in self.faults if fault.backup and fault.kind is FaultKind.NODE)

    @property
    def is_hit(self) -> bool:
        """True if unannounced ranks are faulty, or a new pod died. After the latter, another pod may succeed."""
        return super().is_hit or bool(self.dead())

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
        return super().is_answered() or bool(self.dead())

    def no_answer(self, order: str, within: timedelta) -> Exception:
        if dead := self.dead():
            self.leaves_out += [backup.backup.node for backup in dead]
            names = few([backup.backup.name for backup in dead])
            return PodFails(f"new pods died before they had taken over: {names}")
        return super().no_answer(order, within)

    def dead(self) -> list[Replacement]:
        """Returns the new pods that died."""
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

    async def handed_over(self, report: Report) -> str:
        """Makes the new pods those of their ranks, and describes what was done. One that an earlier try could not delete is not
        left behind if it takes over after all."""
        self.undo.clear()
        take_over = {backup.backup.uid for backup in self.backups.values()}
        self.left_behind = tuple(pod for pod in self.left_behind if pod.uid not in take_over)
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
        return verdict.with_(handled=handled, switched=tuple(self.moved[:MOST_REPLACED]))

    def ended(self, verdict: Verdict) -> Verdict:
        """Returns the verdict with the pods that could not be deleted, also if the mode came to no good end: no restart need
        follow that deletes them."""
        return super().ended(verdict).with_(left_behind=self.left_behind)


def _is_gone(error: ActivityError) -> bool:
    """Returns whether the error says that the rank's pod is gone, which was not reported yet."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == NotFound.type
