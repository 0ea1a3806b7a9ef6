"""Training side whose devices are tested: it pauses, its ranks run the requested checks, and it continues on order.

It is as strict as the real ones: a list of checks that arrives while training runs is a broken rule. Both simulated peers inherit
from this class.
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

NAMES = {0: "aic", 1: "hccs", 2: "memory"}


class StressDialogue:
    job_id: str
    address: str
    script: "Script"
    broken_rules: list[str]
    paused_by: str
    _report: Callable[[str, Callable[[Any], Awaitable[wire.Status]]], Awaitable[int]]
    _notify: Callable[[], Awaitable[None]]

    def __init__(self) -> None:
        self.tests: list[wire.StressTestRankParams] = []
        """Lists of checks in the order in which they were received."""
        self.stress_subscribed = asyncio.Event()

    async def report_tested(self, ops: dict[int, tuple[int, ...]], info: str = "") -> int:
        """Reports the results of each rank, as the script says."""
        message = wire.StressTestResult(jobId=self.job_id)
        for rank, of_rank in ops.items():
            for op in of_rank:
                code = self.script.stress_codes.get((rank, op), "0")
                message.stressResult[str(rank)].rankResult[NAMES[op]].CopyFrom(
                    wire.StressTestOpResult(code=code, result=f"{NAMES[op]} of {rank}")
                )
        said = ((ATTEMPT, self.paused_by), (INFO, info.encode()))
        return await self._report("stress test", lambda stub: stub.ReplyStressTestResult(message, metadata=said))

    async def listen_for_tests(self) -> None:
        """Subscribes to stress tests, and reconnects until it is cancelled."""
        while True:
            try:
                async with grpc.aio.insecure_channel(self.address) as channel:
                    me = wire.ClientInfo(jobId=self.job_id, role="taskd")
                    stream = RecoverStub(channel).SubscribeNotifyExecStressTest(me)
                    await stream.initial_metadata()
                    self.stress_subscribed.set()
                    await self._notify()
                    async for asked in stream:
                        await self._test(asked)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.CANCELLED:  # in place of the cancellation of this task
                    return
            self.stress_subscribed.clear()
            await asyncio.sleep(0.05)

    async def _test(self, asked: wire.StressTestRankParams) -> None:
        self.tests.append(asked)
        await self._notify()
        if not self.paused_by:
            self.broken_rules.append("devices are to be tested, and training is not paused")
        elif self.script.tests:
            await self.report_tested({int(rank): tuple(listed.ops) for rank, listed in asked.stressParam.items()})
