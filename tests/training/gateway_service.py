"""A real gateway on loopback that a test controls, and that stores the calls it receives. Not the product's gateway.

With `recovers` it answers a report of faults as the control plane does: training stops, the faulty ranks are announced, and the
strategy is ordered. A report of other faults, or a strategy that failed, begins another attempt.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc

from rekindle_wire import REPORT, SPOKEN
from rekindle_wire.recover_pb2 import FaultRank, ProcessManageSignal, Status, StressOpList, StressTestRankParams, SwitchRankList
from rekindle_wire.recover_pb2_grpc import RecoverServicer, add_RecoverServicer_to_server
from rekindle_wire.training_pb2 import ProgressReceipt, ProgressReport, TimeReport
from rekindle_wire.training_pb2_grpc import ProgressServicer, add_ProgressServicer_to_server

JOB = "job-of-a-test"
ANSWER_SECONDS = 60.0
ATTEMPTS = 3


class GatewayPeer(RecoverServicer, ProgressServicer):
    """Answers every call with code 0, unless `refuses` says otherwise for its name."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[tuple[str, Any]] = []
        """Every call in the order of arrival: its name and its message."""
        self.refuses: dict[str, int] = {}
        self.subscriptions = 0
        self.recovers: str = ""
        """The order that the gateway gives when faults are reported, `in place` or `retry`. The test gives the orders if it is
        empty."""
        self.attempts = 0
        self.faulty: dict[int, str] = {}
        """Ranks that were reported and are not recovered, with the types of their faults."""
        self._deciding: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.metadata: dict[str, list[dict[str, str]]] = {}
        self.spoken = ""
        """Protocol and release that the manager said last."""
        self.ids: list[str] = []
        """Ids of reports, in the order in which they came."""
        """Metadata with keys of ours, by the names of calls, in the order of arrival."""
        self._orders: asyncio.Queue[ProcessManageSignal | None] | None = None
        self._switches: asyncio.Queue[SwitchRankList] | None = None
        self._tests: asyncio.Queue[StressTestRankParams] | None = None
        self._server: grpc.aio.Server | None = None

    # The scene.

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)])
        add_RecoverServicer_to_server(self, self._server)
        add_ProgressServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Stops the gateway as if it was killed; `start` brings it back on the same port."""
        if self._deciding is not None:
            self._deciding.cancel()
        if self._server is not None:
            await self._server.stop(None)
            self._server, self._orders, self._switches, self._tests = None, None, None, None

    def cut(self) -> None:
        """Ends the stream of orders."""
        if self._orders is not None:
            self._orders.put_nowait(None)
            self._orders = None

    # The dialogue.

    async def order(
        self,
        kind: str,
        *actions: str,
        uuid: str = "attempt-1",
        ranks: Iterable[int | str] = (),
        strategy: str = "",
        pods: Iterable[int | str] = (),
        standbys: Mapping[str, Any] | None = None,
    ) -> None:
        await self.until(lambda: self._orders is not None)
        assert self._orders is not None
        faults = [FaultRank(rankId=str(rank), faultType="1") for rank in ranks]
        signal = ProcessManageSignal(
            uuid=uuid,
            jobId=JOB,
            signalType=kind,
            actions=actions,
            faultRanks=faults,
            changeStrategy=strategy,
            nodeRankIds=map(str, pods),
            extraParams=json.dumps({"standbys": standbys, "another key": 1}) if standbys else "",
        )
        self._orders.put_nowait(signal)

    async def hot_switch(self, *ranks: int, uuid: str = "attempt-1") -> None:
        await self.order("hot-switch", "hot switch", ranks=ranks, uuid=uuid)

    async def migrate(self, uuid: str = "attempt-1") -> None:
        await self.order("changeStrategy", "change_strategy", strategy="migration", uuid=uuid)

    # The orders of a fault recovery.

    async def stop_train(self, uuid: str = "attempt-1") -> None:
        await self.order("stopTrain", "stop_train", uuid=uuid)

    async def announce(self, *ranks: int | str, uuid: str = "attempt-1") -> None:
        await self.order("globalFault", "on_global_rank", uuid=uuid, ranks=ranks)

    async def retry(self, uuid: str = "attempt-1") -> None:
        await self.order("changeStrategy", "change_strategy", uuid=uuid, strategy="retry")

    async def in_place(self, *ranks: int | str, uuid: str = "attempt-1") -> None:
        await self.order("changeStrategy", "change_strategy", "fault_nodes_restart", uuid=uuid, ranks=ranks, strategy="recover")

    async def elsewhere(self, *pods: int | str, uuid: str = "attempt-1", standbys: Mapping[str, Any] | None = None) -> None:
        await self.order("changeStrategy", "change_strategy", uuid=uuid, pods=pods, strategy="recover", standbys=standbys)

    async def smaller(self, *pods: int | str, uuid: str = "attempt-1") -> None:
        await self.order("changeStrategy", "change_strategy", strategy="downgrade", uuid=uuid, pods=pods)

    async def larger(self, *pods: int | str, uuid: str = "attempt-9", standbys: Mapping[str, Any] | None = None) -> None:
        await self.order("changeStrategy", "change_strategy", strategy="upgrade", uuid=uuid, pods=pods, standbys=standbys)

    async def again(self, *pods: int | str, uuid: str = "attempt-1") -> None:
        await self.order("changeStrategy", "change_strategy", strategy="exit", uuid=uuid, pods=pods)

    async def dump(self, uuid: str = "attempt-1") -> None:
        await self.order("changeStrategy", "change_strategy", uuid=uuid, strategy="dump")

    # The orders of a maintenance.

    async def pause(self, uuid: str = "attempt-1") -> None:
        await self.order("stopTrain", "pause_train", uuid=uuid)

    async def go_on(self, uuid: str = "attempt-1") -> None:
        await self.order("changeStrategy", "change_strategy", uuid=uuid, strategy="continue")

    async def switch(self, links: Mapping[int, bool]) -> None:
        """Sends an order to switch links: `links` has for each rank whether it uses the second link of its pod."""
        await self.until(lambda: self._switches is not None)
        assert self._switches is not None
        self._switches.put_nowait(SwitchRankList(rankID=map(str, links), op=links.values(), jobId=JOB))

    async def stress(self, ops: Mapping[int | str, Iterable[int]]) -> None:
        """Sends an order for a stress test: `ops` has the checks of each rank."""
        params = {str(rank): StressOpList(ops=listed) for rank, listed in ops.items()}
        await self.until(lambda: self._tests is not None)
        assert self._tests is not None
        self._tests.put_nowait(StressTestRankParams(stressParam=params, jobId=JOB))

    async def tested(self, number: int = 1) -> dict[int, dict[str, tuple[str, str]]]:
        """Returns code and result line of each check of each rank."""
        told = (await self.report("ReplyStressTestResult", number)).stressResult
        return {
            int(rank): {name: (one.code, one.result) for name, one in of_rank.rankResult.items()}
            for rank, of_rank in told.items()
        }

    async def report(self, name: str, number: int = 1) -> Any:
        """Waits for the `number`-th call of that name, and returns its message."""
        await self.until(lambda: len(self.all(name)) >= number)
        return self.all(name)[number - 1]

    async def strategies(self) -> list[str]:
        return list((await self.report("ReportRecoverStrategy")).strategies)

    async def status(self, strategy: str = "migration") -> int:
        """Waits for the status of a strategy, and returns its code. The strategy `continue` means that training goes on on the
        old pod."""
        report = await self.report("ReportRecoverStatus")
        assert report.strategy == strategy
        assert report.HasField("status")
        return int(report.status.code)

    def all(self, name: str) -> list[Any]:
        return [message for heard, message in self.heard if heard == name]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            while not condition():
                await self._changed.wait()

    # The control plane.

    async def _decide(self) -> None:
        """Makes up to three attempts, one after the other, until nothing is faulty."""
        while self.faulty and self.attempts < ATTEMPTS:
            self.attempts += 1
            uuid, heard = f"attempt-of-the-peer-{self.attempts}", len(self.heard)
            await self.stop_train(uuid)
            await self._answer("ReportStopComplete", heard)
            await self.announce(*self.faulty, uuid=uuid)
            await self._answer("ReportRecoverStrategy", heard)
            announced = set(self.faulty)
            if self.recovers == "retry":
                await self.retry(uuid)
            else:
                await self.in_place(*announced, uuid=uuid)
            if (await self._answer("ReportRecoverStatus", heard)).status.code == 0:
                self.faulty = {rank: kind for rank, kind in self.faulty.items() if rank not in announced}

    async def _answer(self, name: str, behind: int) -> Any:
        """Waits for the first call of that name after so many other calls, and returns its message."""
        found: list[Any] = []

        def came() -> bool:
            found.extend(message for heard, message in self.heard[behind:] if heard == name)
            return bool(found)

        await self.until(came)
        return found[0]

    # The service.

    def _hear(self, name: str, message: Any) -> Status:
        self.heard.append((name, message))
        if self.recovers and name in ("ReportProcessFault", "ReportStopComplete"):
            self.faulty.update({int(fault.rankId): fault.faultType for fault in message.faultRanks})
            if self.faulty and (self._deciding is None or self._deciding.done()):
                self._deciding = asyncio.create_task(self._decide())
        self._change()
        return Status(code=self.refuses.get(name, 0), info="as the test wants it")

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Init(self, request: Any, context: Any) -> Status:
        self.spoken = dict(context.invocation_metadata()).get(SPOKEN, "")
        return self._hear("Init", request)

    async def Register(self, request: Any, context: Any) -> Status:
        return self._hear("Register", request)

    async def SubscribeProcessManageSignal(self, request: Any, context: Any) -> AsyncIterator[ProcessManageSignal]:
        self._hear("SubscribeProcessManageSignal", request)
        orders: asyncio.Queue[ProcessManageSignal | None] = asyncio.Queue()
        self._orders = orders
        self.subscriptions += 1
        self._change()
        yield ProcessManageSignal(jobId=JOB, signalType="keep-alive")
        while (signal := await orders.get()) is not None:
            yield signal

    async def SubscribeNotifySwitch(self, request: Any, context: Any) -> AsyncIterator[SwitchRankList]:
        switches: asyncio.Queue[SwitchRankList] = asyncio.Queue()
        self._switches = switches
        self._hear("SubscribeNotifySwitch", request)
        while True:
            yield await switches.get()

    async def ReplySwitchNicResult(self, request: Any, context: Any) -> Status:
        self._note("ReplySwitchNicResult", context)
        return self._hear("ReplySwitchNicResult", request)

    async def SubscribeNotifyExecStressTest(self, request: Any, context: Any) -> AsyncIterator[StressTestRankParams]:
        tests: asyncio.Queue[StressTestRankParams] = asyncio.Queue()
        self._tests = tests
        self._hear("SubscribeNotifyExecStressTest", request)
        while True:
            yield await tests.get()

    async def ReplyStressTestResult(self, request: Any, context: Any) -> Status:
        self._note("ReplyStressTestResult", context)
        return self._hear("ReplyStressTestResult", request)

    def _note(self, name: str, context: Any) -> None:
        """Keeps the metadata with keys of ours that comes with a message."""
        found = {
            key: value.decode() if isinstance(value, bytes) else value
            for key, value in context.invocation_metadata()
            if key.startswith("rekindle-")
        }
        self.ids.append(found.pop(REPORT))
        self.metadata.setdefault(name, []).append(found)

    async def ReportStopComplete(self, request: Any, context: Any) -> Status:
        return self._hear("ReportStopComplete", request)

    async def ReportRecoverStrategy(self, request: Any, context: Any) -> Status:
        return self._hear("ReportRecoverStrategy", request)

    async def ReportRecoverStatus(self, request: Any, context: Any) -> Status:
        self._note("ReportRecoverStatus", context)
        return self._hear("ReportRecoverStatus", request)

    async def ReportProcessFault(self, request: Any, context: Any) -> Status:
        return self._hear("ReportProcessFault", request)

    async def ReportProgress(self, request: ProgressReport, context: Any) -> ProgressReceipt:
        return ProgressReceipt(code=self._hear("ReportProgress", request).code)

    async def ReportTime(self, request: TimeReport, context: Any) -> ProgressReceipt:
        return ProgressReceipt(code=self._hear("ReportTime", request).code)
