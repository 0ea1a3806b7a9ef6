"""Modes with bugs, under the names of real ones, for tests of how the entity handles them."""

import asyncio

from temporalio import workflow

from rekindle.ids import Workflows
from rekindle.model.incident import ModeRequest, RecoveryContext
from rekindle.model.mode import Mode, Outcome
from rekindle.model.verdict import Verdict
from workflows.mode import ModeWorkflow


class _Broken(ModeWorkflow):
    MODE = Mode.HOT_SWITCH
    EXPECTS = ()


@workflow.defn(name=Workflows.HOT_SWITCH, failure_exception_types=[Exception])
class BuggyHotSwitch(_Broken):
    """Raises in its first step."""

    @workflow.init
    def __init__(self, request: ModeRequest, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest, context: RecoveryContext | None = None) -> Verdict:
        raise KeyError("a bug")


@workflow.defn(name=Workflows.HOT_SWITCH, failure_exception_types=[Exception])
class SlowHotSwitch(_Broken):
    """Never ends by itself; ends when it is cancelled."""

    @workflow.init
    def __init__(self, request: ModeRequest, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest, context: RecoveryContext | None = None) -> Verdict:
        try:
            await workflow.wait_condition(lambda: False)
        except asyncio.CancelledError:
            pass
        return Verdict(mode=self.MODE, outcome=Outcome.CANCELLED, reason="cancelled")


@workflow.defn(name=Workflows.HOT_SWITCH, failure_exception_types=[Exception])
class DeafHotSwitch(_Broken):
    """Never ends, not even when it is cancelled."""

    @workflow.init
    def __init__(self, request: ModeRequest, context: RecoveryContext | None = None) -> None:
        super().__init__(request, context)

    @workflow.run
    async def run(self, request: ModeRequest, context: RecoveryContext | None = None) -> Verdict:
        try:
            await workflow.wait_condition(lambda: False)
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: False)
        raise AssertionError("unreachable")
