"""Tests the devices of nodes while training pauses. Child of `TrainingJob`, or a front of a client.

Training pauses at a step boundary, every rank on the named nodes runs its checks, and the results are judged. If no fault is
found, or something merely could not be tested, training goes on. A node with a fault is isolated, and its pods move to other
nodes: the ladder takes over. A real fault meanwhile comes first.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError

from rekindle.ids import Workflows
from rekindle.model.activities.targets import FindingsRequest, Found, TargetsRequest
from rekindle.model.dialogue import ReportKind
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.stress import RankOps, StressRequest, StressResults, Tested
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.dialogue import orders
from rekindle.policy.operations import device_checks
from workflows import steps
from workflows.mode import NOTHING, Ends, seconds
from workflows.operation import CANCELLED, Operation

PAUSE = 900
"""Seconds for which a paused training side waits. Source: ClusterD."""

SHOWN = 50
"""Maximum number of rows of the table on the page."""


@workflow.defn(name=Workflows.STRESS_TEST, failure_exception_types=[Exception])
class StressTest(Operation):
    MODE = Mode.STRESS_TEST
    EXPECTS = (ReportKind.STOP_COMPLETE, ReportKind.STRESS, ReportKind.STRATEGIES, ReportKind.STATUS)

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)
        self.targets: tuple[RankOps, ...] = ()
        self.found = Found()
        self.failed = ""
        """Failure, in the contract's words, for the requester if the test ends now without results."""

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        async with self.phase("ranks are found"):
            await self._find()
        self.failed = device_checks.PAUSE_FAILED
        async with self.phase("training pauses"):
            await self.pause(PAUSE)
        async with self.phase("devices are tested"):
            results, failure = await self._test()
        if results:
            async with self.phase("what was found is judged"):
                await self._judge(results)
        async with self.phase("training goes on"):
            info = await self._go_on()
        self.stop_for_a_cancellation(done=bool(results))
        if failure:
            raise Ends(Outcome.IGNORED, f"nothing was tested, training goes on as before: {failure}")
        return f"{device_checks.in_words(self.found.tested)}; {info}"

    async def _find(self) -> None:
        """Finds which ranks are on these nodes. Raises Ends if the job does not use a node, or an operation is unknown."""
        job, wanted = self.context.job, self.request.stress or StressRequest()
        request = TargetsRequest(job_id=job.id, stress=wanted, accepted=device_checks.accepted(job))
        try:
            answer = await steps.find_targets(request)
        except ActivityError as error:
            raise Ends(Outcome.REFUSED, f"the cluster does not say which ranks are where: {error.cause}", passing=True) from error
        if answer.problem:
            raise Ends(Outcome.REFUSED, answer.problem)
        self.targets = answer.asked

    # ---- the test

    async def _test(self) -> tuple[StressResults | None, str]:
        """Runs the test. Returns its results, or None and why there are none."""
        self.failed, limit = device_checks.NOT_SENT, self.context.job.limits.stress_test
        if failure := await self._failed_to_begin():
            return None, failure
        self.failed = device_checks.FAULT_RECEIVED
        await self.until(self.is_answered, limit, "wait for what the ranks find")
        self.stop_for_a_fault()
        if report := self.next_report(ReportKind.STRESS):
            if report.results and report.results.checks:
                return report.results, ""
            return None, self.untested(report.info or "the training side has no results")
        if self.has_been_cancelled():
            return None, CANCELLED
        said = self.said_instead()
        self.failed = self.failed if said else device_checks.NEVER_REPORTED
        return None, self.untested(said or f"no report of the test within {seconds(limit)}")

    async def _failed_to_begin(self) -> str:
        """Orders the test. Returns why no rank tests anything; empty: the order was sent."""
        job, limit = self.context.job, self.context.job.limits.order
        if self.has_been_cancelled():
            return CANCELLED
        if self.side.holds_agents:
            self.undo.append(("agents start processes again", self._release_agents))
            if not await self.order(orders.hold_agents(job.id, self.new_uuid()), limit):
                return self.untested(self.lost_manager or "its agents could not be told to wait")
        if not await self.order(orders.stress_test(job.id, self.uuid, self.targets), limit):
            self.stop_for_a_fault()
            return self.untested(self.lost_manager or "its ranks could not be told in time")
        return ""

    def is_answered(self) -> bool:
        return self.has_report(ReportKind.STRESS) or self.is_over() or self.has_been_cancelled()

    def untested(self, why: str) -> str:
        """Describes a test without results. Our training side stands, and its next answer says whether it can continue."""
        if not self.side.goes_on_by_itself:
            raise self.stands(f"nothing was tested, and training has stopped: {why}")
        return why

    # ---- what it found

    async def _judge(self, results: StressResults) -> None:
        """Judges the results. Raises Ends if training must not go on as it is; the next mode gets the faults."""
        job = self.context.job
        why = f"stress test of job {job.namespace}/{job.name}"
        request = FindingsRequest(job_id=job.id, asked=self.targets, results=results, why=why)
        try:
            self.found = await steps.judge(request)
        except ActivityError as error:
            suspects = device_checks.suspects(results)
            if suspects.ranks:
                self.found = Found(faults=(suspects,))
                words = f"{suspects.message}; no node was isolated, the cluster does not answer: {error.cause}"
                raise Ends(Outcome.ESCALATE, words, training=Training.SUSPECT) from error
            self.found = Found(
                tested=device_checks.tested(results, device_checks.by_rank(self.targets), device_checks.untold(results))
            )
        self.failed = ""
        if self.found.faults:
            raise self.cannot_go_on(device_checks.in_words(self.found.tested))

    async def _go_on(self) -> str:
        failed = self.failed
        self.failed = failed or device_checks.CONTINUE_FAILED
        if self.undo and not await self._release_agents():
            raise self.cannot_go_on(self.lost_manager or "its agents could not be told to go on")
        info = await self.go_on()
        self.failed = failed
        return info

    async def _release_agents(self) -> bool:
        """Orders agents to continue, regardless of the results, and returns whether the order was sent.

        Held agents would start no process of a recovery.
        """
        self.undo.clear()
        job = self.context.job
        written = await self.order(orders.release_agents(job.id, self.new_uuid()), job.limits.order)
        if not written:
            workflow.logger.warning("agents not released", extra={"job": job.id})
        return written

    def findings(self) -> list[str]:
        """Returns the table of results in Markdown; rows with findings come first."""
        rows = self.found.tested.rows[:SHOWN]
        head = ["", "| node | device | rank | check | code | measured |", "|---|---|---|---|---|---|"] if rows else []
        return [*head, *(f"| {r.node} | {r.device} | {r.rank} | {r.check} | {r.code} | {r.result} |" for r in rows)]

    # ---- ends

    def ended(self, verdict: Verdict) -> Verdict:
        """Adds the results of the test to the verdict, or why there are none. A test that never touched training adds nothing."""
        if verdict.outcome is Outcome.REFUSED or not self.targets:
            return verdict
        failed = self._why_failed()
        return verdict.with_(tested=Tested(failed=failed) if failed else self.found.tested, found=self.found.faults)

    def _why_failed(self) -> str:
        if not self.failed or not self.lost_manager:
            never_told, unheard = not self.delivered, not self.answers
            late = device_checks.NOT_PAUSED if never_told else device_checks.PAUSE_LATE if unheard else device_checks.PAUSE_FAILED
            return late if self.failed == device_checks.PAUSE_FAILED else self.failed
        return device_checks.NOT_READY

    def recovered(self, reason: str) -> Verdict:
        return Verdict(mode=self.MODE, outcome=Outcome.RECOVERED, reason=reason, steps_lost=0)
