"""A fictitious mode: this file and its row are all that the control plane would need to try one more, besides a word in `Mode`.

It has the word of the online retry, as words are members of an enumeration.
"""

from temporalio import workflow

from rekindle.model.fault import FaultKind
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from rekindle.policy.modes.mode_table import About, ModeRow
from workflows.mode import NOTHING, Ends, ModeWorkflow

ROW = ModeRow(
    mode=Mode.ONLINE_RETRY,
    workflow="Nudge",
    procedure="tests.fakes.fake_mode",
    begins="the job is nudged",
    about=About.RANKS,
    serves=(FaultKind.PROCESS,),
    reasons_against=lambda state, _pod_rank: () if state.job.pods == 2 else ("only a job of two pods can be nudged",),
    limits=("retry",),
)


@workflow.defn(name=ROW.workflow, failure_exception_types=[Exception])
class Nudge(ModeWorkflow):
    """Does nothing, and says so."""

    MODE = ROW.mode
    EXPECTS = ()

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await self.conclude(request, self._procedure)

    async def _procedure(self) -> str:
        async with self.phase(ROW.begins):
            raise Ends(Outcome.ESCALATE, "nudging did not help")
