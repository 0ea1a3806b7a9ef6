"""Opening of a fault recovery: training stops, the faults settle and are announced, and the training side offers strategies.

It happens once per incident, in the first mode that repairs processes: online retry, in-place recovery or
process rescheduling. Each of them begins with `open_recovery`; later modes skip the parts that are done. Hot switch and job
rescheduling do not need it.
"""

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.model.attachment import Attachment
from rekindle.model.dialogue import Order, Report, ReportKind
from rekindle.model.job import Job
from rekindle.model.keys import PLATFORM_RESULT
from rekindle.model.mode import Mode, Outcome
from rekindle.model.situation import Situation
from rekindle.model.verdict import Training
from rekindle.policy.dialogue import orders
from rekindle.policy.modes import faulty_ranks, recovery_opening
from workflows import steps
from workflows.dialogue import cancel_and_forget
from workflows.mode import Ends, ModeWorkflow, seconds
from workflows.platform import asked_platform


async def open_recovery(mode: ModeWorkflow, situation: Situation) -> Situation:
    """Completes the opening from where an earlier mode of the incident left it.

    Its results are stored in `mode.situation` at once, so that the verdict contains them also if the opening ends early.

    Raises:
        Ends: only a restart of the job is left: training does not stop, its manager or all pods are lost, or no answer comes.
    """
    mode.situation = situation
    here = _Opening(mode)
    here.go_on()
    if not here.situation.stopped:
        async with mode.phase("training stops"):
            await here.stop()
    if not here.situation.announced:
        async with mode.phase("faults settle and are announced"):
            await here.settle()
            await here.announce()
    if not here.situation.offered:
        async with mode.phase("training side says what it offers"):
            await here.hear_offers()
    return here.told()


class _Opening:
    def __init__(self, mode: ModeWorkflow) -> None:
        self.mode = mode
        self.job: Job = mode.context.job
        self.side = mode.side
        self.leave = recovery_opening.pods_leave(self.job, in_place=mode.MODE is Mode.IN_PLACE)
        self.ordered_on: Attachment | None = None
        """Stream on which the last order was first tried.

        A gateway may have written the order and died before it confirmed this.
        """

    @property
    def situation(self) -> Situation:
        return self.mode.situation

    def told(self, report: Report | None = None) -> Situation:
        """Updates the situation with the current faults, including those of the training side's report, and returns it."""
        here, named = self.mode.delivered_on, report.fault_ranks if report else ()
        situation = recovery_opening.updated(self.job, self.situation, self.mode.standing_faults(), named)
        self.mode.situation = situation.with_(told_on=here.session if here else situation.told_on)
        return self.mode.situation

    # ---- the procedure

    def go_on(self) -> None:
        """Takes over the orders that an earlier mode gave in this attempt.

        A stream that comes back needs them again, and their answers arrive here.
        """
        before, here = self.told(), self.mode.attachment
        self.ordered_on = here if here and here.session == before.told_on else None
        if not (before.attempt and before.stopped):
            return
        given = [orders.stop_train(self.job.id, before.attempt, before.faulty)]
        if before.announced:
            given.append(self._announcement(before.leaving))
        self.mode.go_on_with(given, before.told_on)

    async def stop(self) -> None:
        uuid = self.situation.attempt or self.mode.new_attempt()
        self.mode.situation = self.situation.with_(attempt=uuid)
        report = await self._ask(orders.stop_train(self.job.id, uuid, self.told().faulty), ReportKind.STOP_COMPLETE)
        if report and report.code:
            raise _restart(f"training cannot be stopped: the training side reports {report.code} {report.info}".rstrip())
        self._take(report)
        self.mode.situation = self.situation.with_(stopped=True)

    async def settle(self) -> None:
        """Waits for further faults, which are announced with the others."""
        wait = recovery_opening.settling(self.job, self.told())
        if wait > timedelta(0):
            await self.mode.until(lambda: bool(self.mode.lost_manager), wait, "faults settle")
        self._must_be_answered()

    async def announce(self) -> None:
        """Announces the faults, once per attempt. A later fault is sent with the strategy."""
        if not self.situation.attempt:
            self.mode.situation = self.situation.with_(attempt=self.mode.new_attempt())
        await self._confirm()
        retries = recovery_opening.may_retry(self.job, self.told())
        holders = () if retries or not self.leave else await holders_now(self.mode)
        situation = self.told()
        before = () if recovery_opening.may_retry(self.job, situation) else self.mode.context.holders
        named = recovery_opening.leaving(self.job, situation, before, holders)
        order = self._announcement(named)
        self.mode.situation = situation.with_(
            announced=recovery_opening.announcement(self.job, situation, leave=self.leave),
            leaving=tuple(sorted((*situation.leaving, *named))),
        )
        if not retries:
            self.mode.tell_announced(in_place=self.mode.MODE is Mode.IN_PLACE)
        await self._give(order)

    async def _confirm(self) -> None:
        """Has the platform confirm the faults, which may know others. It is asked once in an incident."""
        if not self.mode.context.platform or self.situation.confirmed:
            return
        self.mode.situation = self.told().with_(confirmed=True)
        async with self.mode.phase("platform confirms the faults"):
            within = self.job.limits.platform_result
            answer = await asked_platform(self.mode, PLATFORM_RESULT, within, self.situation.faulty)
        known = tuple(one for one in answer.faults if one.rank < self.job.ranks)
        self.mode.situation = recovery_opening.updated(self.job, self.situation, self.mode.standing_faults(), known)

    def _announcement(self, leaving: tuple[int, ...]) -> Order:
        situation = self.situation
        faults = situation.announced or recovery_opening.announcement(self.job, situation, leave=self.leave)
        if faulty_ranks.is_retryable(faults):
            return orders.retryable_fault(self.job.id, situation.attempt, faults)
        return orders.normal_fault(self.job.id, situation.attempt, faults, leaving)

    async def hear_offers(self) -> None:
        """Waits for the offered strategies.

        If the report names a fault that was not announced, it is recovered with the others.
        """
        report = await self._answer(ReportKind.STRATEGIES, self.job.limits.offers)
        self._take(report)
        offers = recovery_opening.offers(report.strategies) if report else recovery_opening.presumed(self.situation)
        self.mode.situation = self.situation.with_(offered=True, offers=offers, presumed=report is None)

    # ---- orders and their answers

    async def _ask(self, order: Order, kind: ReportKind) -> Report | None:
        await self._give(order)
        return await self._answer(kind, self.job.limits.stop)

    async def _give(self, order: Order) -> None:
        """Sends an order.

        The training side exits if it waits too long for one; after an outage it is unknown when its wait began.
        """
        self._must_be_answered()
        within, answer_by = self.mode.patience, self.situation.answer_by
        if answer_by:
            within = min(within, answer_by - workflow.now())
        first_tried_on = self.mode.attachment
        if not await self.mode.order(order, within):
            self._must_be_answered()
            raise _restart(f"the order `{order.name}` could not be delivered in time")
        self.ordered_on = first_tried_on or self.mode.delivered_on
        self.mode.situation = self.situation.with_(answer_by=None)

    async def _answer(self, kind: ReportKind, within: timedelta) -> Report | None:
        """Returns the report that answers the last order; None: it was lost in an outage.

        A client that does not repeat its report waits for the next order.
        """
        deadline, why = workflow.now() + within, f"wait for the report of {kind}"
        await self.mode.until(lambda: self._is_decided(kind) or self._is_cut(), within, why)
        if self._is_cut() and not self._is_decided(kind):
            left = min(self.job.limits.next_order, deadline - workflow.now())
            await self.mode.until(
                lambda: self._is_decided(kind) or self._is_renewed(), left, "the client comes back, or has left"
            )
        if self._is_renewed() and not self._is_decided(kind):
            left = min(self.job.limits.report_lost, deadline - workflow.now())
            await self.mode.until(lambda: self._is_decided(kind), left, f"the report of {kind} may be lost")
        if report := self.mode.next_report(kind):
            return report
        self._must_be_answered()
        if self._is_renewed():
            return None
        raise _restart(
            f"no report of {kind} within {seconds(within)}" if self.mode.attachment else "its stream does not come back"
        )

    def _is_decided(self, kind: ReportKind) -> bool:
        return self.mode.has_report(kind) or bool(self._no_answer())

    def _is_cut(self) -> bool:
        """Returns whether the stream was interrupted since the order, so that reports are lost."""
        return not self.side.repeats_reports and self.mode.attachment != self.ordered_on

    def _is_renewed(self) -> bool:
        return self._is_cut() and self.mode.attachment is not None

    def _no_answer(self) -> str:
        if faulty_ranks.is_nobody_left(self.job, self.mode.standing_faults(), self.mode.context.small):
            return "every pod is lost"
        return self.mode.lost_manager

    def _must_be_answered(self) -> None:
        if why := self._no_answer():
            raise _restart(why)

    def _take(self, report: Report | None) -> None:
        """Stores the faulty ranks that the training side named, and the time until which it waits."""
        if strange := [one.rank for one in (report.fault_ranks if report else ()) if one.rank >= self.job.ranks]:
            workflow.logger.warning("unknown ranks ignored", extra={"ranks": strange[:10]})
        self.mode.situation = self.told(report).with_(answer_by=self._patience() if report else None)

    def _patience(self) -> datetime | None:
        if self.side.waits_for_orders or self.mode.answered_at is None:
            return None
        return self.mode.answered_at + recovery_opening.patience(self.job, self.situation)


async def holders_now(mode: ModeWorkflow) -> tuple[str, ...]:
    """Returns the holder of each pod rank; empty: the cluster did not answer in time."""
    job = mode.context.job
    look = asyncio.create_task(steps.survey(job.id, ()))
    try:
        await mode.until(look.done, job.limits.look, "see which pods are there")
        return (await look).sighting.holders if look.done() else ()
    except ActivityError as error:
        workflow.logger.warning("job not observed before its processes end", extra={"error": str(error.cause)})
        return ()
    finally:
        cancel_and_forget(look)


def _restart(reason: str) -> Ends:
    """Returns the end of a mode whose attempt failed: the job is restarted from its last checkpoint."""
    return Ends(Outcome.ESCALATE, f"the recovery cannot be opened: {reason}", training=Training.LOST)
