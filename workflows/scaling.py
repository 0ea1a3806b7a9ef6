"""Changes the number of pods of a job that trains: some leave, or missing ones come back. Child of `TrainingJob`, or a front of a
client.

A person requests it, or the job's workflow does, to grow again or to leave a node that goes away. Training goes on until new pods
have loaded, and then pauses for a moment. What comes to no end is undone, and training goes on as before. A real fault comes
first.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from rekindle.ids import Workflows
from rekindle.model.activities.pods import BackupRequest, Replacement
from rekindle.model.activities.recreation import Held, Recreation
from rekindle.model.dialogue import FaultRank, Order, Report, ReportKind, Strategy
from rekindle.model.elastic import Resized
from rekindle.model.fault import Fault
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import cases, elastic
from workflows import steps
from workflows.dialogue import cancel_and_forget
from workflows.left_pods import deleted
from workflows.mode import CAUGHT, NOTHING, Ends, shielded
from workflows.new_pods import NewPods, PodFails
from workflows.opening import holders_now
from workflows.process_level import NEWS, answer


@workflow.defn(name=Workflows.SCALING, failure_exception_types=[Exception])
class Scaling(NewPods):
    MODE = Mode.SCALING
    WAITS = True
    resized: Resized | None = None
    _comes = False
    """True if pods come back, and False if they leave."""

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        async with self.phase("the size is decided"):
            leaving = self._wanted()
            coming = () if leaving else self._coming()
            self._comes = bool(coming)
            self._begin(coming)
        try:
            return await (self._smaller(leaving) if leaving else self._larger(coming))
        except PodFails as error:
            raise self.fails(f"{error}") from error
        except CAUGHT as error:
            if not isinstance(error, Ends):  # a cancellation, after which nobody would delete the pods
                await shielded(self.compensate())
            elif error.training is Training.FAULTED and not self.side.returns_at_once:
                self.again()  # the recovery of the fault is another attempt
            raise

    # ---- the size

    @property
    def _missing(self) -> tuple[int, ...]:
        return elastic.missing_of(self.context.small)

    def _wanted(self) -> tuple[int, ...]:
        """Returns the pod ranks that are to leave, the last ones first; empty: none is. Raises Ends if too few would be left."""
        job, wanted = self.context.job, self.request.replicas
        if wanted is None:
            leaving = () if self.request.pod_rank is None else job.layout.whole_replicas((self.request.pod_rank,))
        else:
            here = [rank for rank in range(job.pods) if rank not in self._missing]
            leaving = tuple(here[wanted * job.layout.pods_per_replica :])
        if leaving and (why := elastic.too_few(job, self.context.small, leaving)):
            raise Ends(Outcome.REFUSED, why)
        return leaving

    def _coming(self) -> tuple[int, ...]:
        more = (self.request.replicas or 0) - elastic.present(self.context.job, self.context.small)
        coming = self._missing[: max(0, more) * self.context.job.layout.pods_per_replica]
        if not coming:
            raise Ends(Outcome.REFUSED, f"the job has {elastic.present(self.context.job, self.context.small)} replicas already")
        return coming

    def _begin(self, coming: tuple[int, ...]) -> None:
        """Begins an attempt, or goes on with the one in which the pods have left, if the training side takes them back in it."""
        attempt, small = self.new_attempt(), self.context.small
        self.situation = self.situation.with_(attempt=attempt)
        if coming and small and small.attempt and self.side.returns_at_once:
            ranks = tuple(FaultRank(rank=rank) for rank in self.context.job.layout.ranks_of_all(coming))
            self.situation = self.situation.with_(
                attempt=small.attempt, announced=ranks, leaving=coming, offered=True, offers=(Strategy.DUMP,)
            )

    # ---- pods leave

    async def _smaller(self, pods: tuple[int, ...]) -> str:
        job = self.context.job
        async with self.phase("training goes on with fewer pods"):
            order = orders.change_strategy(job.id, self.situation.attempt, Strategy.DOWNGRADE, pods=pods)
            report = await self._answered(order, job.limits.scale_in, Outcome.REFUSED)
        self.resized = elastic.leave(pods, self.context.situation.faults, by_hand=bool(self.request.requested_by))
        async with self.phase("pods that have left are deleted"):
            note = await deleted(self, pods)
        return "; ".join(filter(None, (f"{elastic.named(pods)} left: {report.info}", note)))

    # ---- pods come back

    async def _larger(self, pods: tuple[int, ...]) -> str:
        job = self.context.job
        there = await self._there(pods)
        if new := tuple(rank for rank in pods if rank not in there)[: len(pods) - len(there)]:
            await self.new_pods(new)
        pods = tuple(sorted((*there, *new)))
        async with self.phase("training goes on with more pods"):
            if self.side.hears_of_backups:
                self.undo.append(("the return of pods is stopped", self._stop))
            order = self.order_to_take_over(Strategy.UPGRADE, pods)
            report = await self._answered(order, job.limits.scale_out, Outcome.IGNORED)
        self.resized = Resized(came=pods, by_hand=bool(self.request.requested_by))
        done = await self.handed_over(report)
        return done if new else f"pod ranks came back: {report.info}"

    async def _there(self, pods: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the pod ranks whose pods another component has created, when these have nodes.

        It creates all of them for a training side that needs that. Otherwise any missing replicas will do, as many as these. Only
        pods of these ranks are waited for if no replica has all of its pods.
        """
        small, layout = self.context.small, self.context.job.layout
        assert small is not None, "pods are missing"
        come = pods if self.side.controller_recreates else elastic.come(small, await holders_now(self))
        whole = layout.whole_among(come)
        come = whole or tuple(rank for rank in come if rank in pods)
        if not come:
            return ()
        enough = min(len(pods), len(come))
        held = tuple(
            Held(
                pod_rank=rank,
                holder=small.old.get(rank, ""),
                told=False,
                replica=layout.replica_of(rank) if whole else None,
            )
            for rank in come
        )
        async with self.phase("new pods start"):
            until = workflow.now() + self.context.job.limits.backup_scheduled
            making = steps.make_anew(self.context.job.id, held, self.context.lost_nodes, until, enough)
            await self.until(lambda: making.done() or self.why_stop() is not None, None, "wait for pods of others")
            if end := self.why_stop():
                cancel_and_forget(making)
                raise end
            came = await self._of_others(making, enough)
        return came

    async def _of_others(self, making: ActivityHandle[Recreation], enough: int) -> tuple[int, ...]:
        try:
            made = await making
        except ActivityError as error:  # training is untouched
            raise self.fails(f"no spare: the pods of others are not seen: {error.cause}") from error
        if len(made.came) < enough:
            raise self.fails(f"no spare: {made.missing}")
        self.moved = list(made.moved[:enough])
        return made.came[:enough]

    async def made(self, request: BackupRequest) -> Replacement:
        """Creates the pod of a missing rank, which has no holder."""
        return await steps.ensure_replacement(request)

    def time_for_spare(self, pods: tuple[int, ...]) -> timedelta:
        return self.context.job.limits.backup_scheduled

    def why_stop(self) -> Exception | None:
        """Returns the end of the mode if a real fault comes first, or nobody answers its orders."""
        return self._gives_way_to(self.new_faults()) or super().why_stop()

    async def _stop(self) -> None:
        """Stops the return of pods. Training goes on, and its side waits for them no more."""
        if self.unanswered_since is None or self.felt_faults() or self.lost_manager:
            return  # it has answered, or leaves the return for its fault
        # With the uuid of the attempt it would count as overtaken by the strategy.
        order = orders.stop_hot_switch(self.context.job.id, self.new_uuid())
        if await self.order(order, self.context.job.limits.order):
            await self.until(lambda: self.has_report(ReportKind.STATUS), NEWS, "the return of pods is stopped")

    # ---- answers

    async def _answered(self, order: Order, within: timedelta, otherwise: Outcome) -> Report:
        """Returns the answer to an order that was carried out.

        Raises:
            Ends: it was refused, and training goes on as before, or a fault comes first.
        """
        report = await self.carry_out(order, within)
        if not report.code:
            return report
        await self.until(lambda: bool(self.felt_faults()), NEWS, "a fault may be the reason")
        if end := self._fault_first():
            raise end
        if not self.side.scales_at_will:
            saves = Training.SAVES if self.side.still_saves(report.code) else Training.LOST
            raise Ends(Outcome.ESCALATE, f"training does not go on: {answer(report)}", training=saves)
        raise Ends(otherwise, f"training goes on as before: {report.info}")

    def _fault_first(self) -> Ends | None:
        return self._gives_way_to(self.felt_faults())

    @staticmethod
    def _gives_way_to(faults: list[Fault]) -> Ends | None:
        """Returns the end of a change because of faults; None: there are none."""
        if not faults:
            return None
        return Ends(Outcome.CANCELLED, f"a fault comes first: {cases.describe(faults[0])}", training=Training.FAULTED)

    def is_answered(self) -> bool:
        """Returns whether the order was answered, or can no longer be because a new pod died, or the training side leaves the
        return of pods for a fault. It makes the job smaller in spite of one, unless it refuses that."""
        return super().is_answered() or (self._comes and bool(self.felt_faults()))

    async def await_answer(self, within: timedelta, why: str) -> None:
        """Waits for the answer. That pods have come back may cross the report of a fault that has come just afterwards."""
        await super().await_answer(within, why)
        if self.felt_faults():
            await self.until(super().is_answered, NEWS, "the answer may cross the report of a fault")

    def no_answer(self, order: str, within: timedelta) -> Exception:
        return self._fault_first() or super().no_answer(order, within)

    # ---- ends

    def fails(self, reason: str, code: int = 0) -> Ends:
        """Returns the end of a change that was not made: training goes on as before."""
        return Ends(Outcome.IGNORED, reason)

    def ends_all(self, reason: str) -> Ends:
        """Returns the end of a change after which the state of training is unknown. Only a restart of the job is left."""
        return super().ends_all(reason) if self.touched else Ends(Outcome.REFUSED, f"{reason}; nothing was touched", passing=True)

    def ended(self, verdict: Verdict) -> Verdict:
        return super().ended(verdict).with_(resized=self.resized)
