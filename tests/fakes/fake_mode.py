"""A fictitious mode: its row and its procedure. docs/development.md lists what a real one needs besides.

It has the name of process rescheduling, as names are members of an enumeration.
"""

from typing import ClassVar

from temporalio import workflow

from rekindle.model.dialogue import ReportKind
from rekindle.model.fault import FaultKind
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Training, Verdict
from rekindle.policy.modes.mode_table import About, ModeRow
from workflows.mode import NOTHING, Ends
from workflows.non_interruptible import NonInterruptible

ROW = ModeRow(
    mode=Mode.PROCESS_RESCHEDULING,
    workflow="Nudge",
    procedure="tests.fakes.fake_mode",
    begins="the job is nudged",
    about=About.RANKS,
    serves=(FaultKind.NODE,),
    reasons_against=lambda state, _pod_rank: () if state.job.pods == 2 else ("only a job of two pods can be nudged",),
    limits=("repair",),
)


@workflow.defn(name=ROW.workflow, failure_exception_types=[Exception])
class Nudge(NonInterruptible):
    """Does nothing, and reports this. A procedure that returns a text has recovered the job."""

    MODE = ROW.mode
    EXPECTS: ClassVar[tuple[ReportKind, ...]] = ()

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    def recovered(self, reason: str) -> Verdict:
        return Verdict(mode=self.MODE, outcome=Outcome.RECOVERED, reason=reason, steps_lost=0)

    async def _procedure(self) -> str:
        async with self.phase(ROW.begins):
            raise Ends(Outcome.ESCALATE, "nudging did not help", training=Training.LOST)
