"""Moves devices to their other link while training pauses. Child of `TrainingJob`, or a front of a client.

Training pauses at a step boundary, every named device is switched, all of them are waited for, and training goes on. If a
switch fails on one rank, a training side that goes on by itself undoes it, and continues on the previous links. With others it is
unknown which links the ranks use: they repeat their step if the owner allows that, and otherwise the ladder takes over. A real
fault meanwhile comes first.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.ids import Workflows
from rekindle.model.activities.targets import ResolveLinksRequest
from rekindle.model.dialogue import Report, ReportKind
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.links import RankLinks, describe
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.operations import links
from workflows import steps
from workflows.mode import NOTHING, Ends, seconds
from workflows.operation import CANCELLED, Operation


@workflow.defn(name=Workflows.LINK_SWITCH, failure_exception_types=[Exception])
class LinkSwitch(Operation):
    MODE = Mode.LINK_SWITCH
    EXPECTS = (ReportKind.STOP_COMPLETE, ReportKind.LINKS, ReportKind.STRATEGIES, ReportKind.STATUS)

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)
        self.move = RankLinks()
        self._is_moved = False

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        async with self.phase("devices are found"):
            await self._find()
        async with self.phase("training pauses"):
            await self.pause()
        async with self.phase("links are switched"):
            failure = await self._switch()
        async with self.phase("training goes on"):
            info = await self.go_on()
        self._hear()
        failure = "" if self._is_moved else failure
        self.stop_for_a_cancellation(done=failure != CANCELLED)
        if failure:
            raise Ends(Outcome.IGNORED, f"the links were not switched, training goes on as before: {failure}")
        return f"{describe(self.request.links)}: {info}"

    async def _find(self) -> None:
        """Finds which ranks have these devices, and in which pods. Raises Ends if the job does not have a device."""
        request = ResolveLinksRequest(job_id=self.context.job.id, links=self.request.links)
        try:
            targets = await steps.resolve_links(request)
        except ActivityError as error:
            raise Ends(Outcome.REFUSED, f"the cluster does not say who has these devices: {error.cause}", passing=True) from error
        self.move = links.ranks_of(targets.links)
        if problem := targets.problem or links.taken(self.context.links, self.move, self.context.front):
            raise Ends(Outcome.REFUSED, problem)

    async def _switch(self) -> str:
        """Switches the devices. Returns why none was switched; empty: all were."""
        limits = self.context.job.limits
        if self.has_been_cancelled():
            return CANCELLED
        if not await self.order(orders.switch_links(self.context.job.id, self.uuid, self.move), limits.order):
            self.stop_for_a_fault()
            if self.lost_manager:
                raise self.cannot_go_on(self.lost_manager)
            self.take_back_unwritten()
            return (
                "nobody heard which ranks are to be switched (is SubscribeNotifySwitch open at the gateway of the job's stream?)"
            )
        await self.until(self.is_answered, limits.link_switch, "wait until all devices are switched")
        report = self._hear()
        self.stop_for_a_fault()
        if report:
            return self.undone(report.info or "a device could not be switched") if report.code else ""
        return self.undone(self.said_instead() or f"no report of the switch within {seconds(limits.link_switch)}")

    def _hear(self) -> Report | None:
        """Takes the report of the switch.

        It may arrive when it is no longer awaited, if the receipt of the order was lost in an outage.
        """
        report = self.next_report(ReportKind.LINKS)
        self._is_moved |= report is not None and not report.code
        return report

    def is_answered(self) -> bool:
        return self.has_report(ReportKind.LINKS) or self.is_over()

    def undone(self, why: str) -> str:
        """Describes a failed switch.

        Our training side is on the previous links, and its next answer says whether it can continue.
        """
        if not self.side.goes_on_by_itself:
            raise self.stands(f"the links were not switched, and training has stopped: {why}")
        return why

    def recovered(self, reason: str) -> Verdict:
        return Verdict(mode=self.MODE, outcome=Outcome.RECOVERED, reason=reason, steps_lost=0)

    def ended(self, verdict: Verdict) -> Verdict:
        """Adds the moved links to the verdict, also if a fault kept training from going on afterwards: the surviving ranks stay
        on these links."""
        self._hear()
        return verdict.with_(moved_links=self.move, moved_by=self.context.front) if self._is_moved else verdict
