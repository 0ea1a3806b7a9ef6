"""A hot switch with a changed procedure: a history of the real one must not replay under it."""

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.activities.pods import Backup
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.verdict import Verdict
from workflows.hot_switch import HotSwitch
from workflows.mode import NOTHING


@workflow.defn(name=Workflows.HOT_SWITCH)
class HurriedHotSwitch(HotSwitch):
    """Does not wait until the backup pod runs.

    Its failure types are the SDK's own: under ours the replayer does not report a mismatch, it waits for ever.
    """

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await super().run(request, context)

    async def _backup_runs(self, backup: Backup) -> None:
        return


@workflow.defn(name=Workflows.HOT_SWITCH, failure_exception_types=[Exception])
class HurriedHotSwitchOfAWorker(HurriedHotSwitch):
    """The same as run by a worker: a mismatch with its history fails it."""

    @workflow.init
    def __init__(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest = NOTHING, context: RecoveryContext | None = None) -> Verdict:
        return await super().run(request, context)
