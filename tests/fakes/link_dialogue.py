"""Training side whose links are switched: all ranks pause, switch to the links that the list names, and continue.

It is as strict as the real ones: a list of ranks or a `continue` that arrives while training runs is a broken rule. Both
simulated peers inherit from this class.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from rekindle_wire import ATTEMPT, INFO
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub

if TYPE_CHECKING:
    from tests.fakes.peer import Script


class LinkDialogue:
    job_id: str
    address: str
    script: "Script"
    broken_rules: list[str]
    _report: Callable[[str, Callable[[Any], Awaitable[wire.Status]]], Awaitable[int]]
    _notify: Callable[[], Awaitable[None]]

    def __init__(self) -> None:
        self.on_backup: set[int] = set()
        """Ranks that use their backup link."""
        self.lists: list[wire.SwitchRankList] = []
        """Lists of ranks in the order in which they were received."""
        self.links_subscribed = asyncio.Event()
        self.paused_by = ""
        """Uuid of the current pause; empty: training runs."""

    # ---- what the test lets happen

    async def report_switched(self, *, result: bool = True, info: str = "") -> int:
        message = wire.SwitchResult(jobId=self.job_id, result=result)
        said = ((ATTEMPT, self.paused_by), (f"{INFO}", info.encode()))
        return await self._report("links", lambda stub: stub.ReplySwitchNicResult(message, metadata=said))

    async def report_continued(self, code: int = 0, info: str = "training goes on") -> int:
        uuid, self.paused_by = self.paused_by, "" if code == 0 else self.paused_by
        status = wire.Status(code=code, info=info)
        message = wire.RecoverStatusRequest(jobId=self.job_id, strategy="continue", status=status)
        return await self._report("status", lambda stub: stub.ReportRecoverStatus(message, metadata=((ATTEMPT, uuid),)))

    # ---- orders

    async def pause_training(self, signal: wire.ProcessManageSignal) -> None:
        self.paused_by = "" if self.script.pause_code else signal.uuid
        await self._notify()
        if not self.script.holds:
            return
        status = wire.Status(code=self.script.pause_code, info="after step 7" if self.paused_by else "it ends with this step")
        message = wire.StopCompleteRequest(jobId=self.job_id, status=status)
        await self._report("stop complete", lambda stub: stub.ReportStopComplete(message))

    async def continue_training(self) -> None:
        if not self.paused_by:
            self.broken_rules.append("continue, and training is not paused")
        elif self.script.continues:
            code = self.script.continue_codes.pop(0) if self.script.continue_codes else 0
            await self.report_continued(code)

    # ---- its own stream

    async def listen_for_links(self) -> None:
        """Subscribes to link switches, and reconnects until it is cancelled."""
        while True:
            try:
                async with grpc.aio.insecure_channel(self.address) as channel:
                    stream = RecoverStub(channel).SubscribeNotifySwitch(wire.ClientInfo(jobId=self.job_id, role="taskd"))
                    await stream.initial_metadata()
                    self.links_subscribed.set()
                    await self._notify()
                    async for ranks in stream:
                        await self._switch(ranks)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.CANCELLED:  # in place of the cancellation of this task
                    return
            self.links_subscribed.clear()
            await asyncio.sleep(0.05)

    async def _switch(self, ranks: wire.SwitchRankList) -> None:
        self.lists.append(ranks)
        await self._notify()
        if not self.paused_by:
            self.broken_rules.append("links are to be switched, and training is not paused")
        elif self.script.switches:
            result = self.script.switch_results.pop(0) if self.script.switch_results else True
            if result:
                for rank, backup in zip(ranks.rankID, ranks.op, strict=True):
                    (self.on_backup.add if backup else self.on_backup.discard)(int(rank))
            await self.report_switched(result=result, info="" if result else "rank 3: eth1 is down")
