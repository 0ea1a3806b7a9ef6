"""A training side written from `recover.proto` alone: stands for TaskD and MindIO, and can be scripted.

It is as strict as the real ones: an order that is not awaited makes it exit, repeated orders are swallowed by the real clients' own
rules, and a report is sent once unless the script says otherwise.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub


@dataclass
class Script:
    """What the peer does differently from a healthy one."""

    pauses: bool = True
    """Reports the pause when the backup runs."""
    offers: tuple[str, ...] = ("migration",)
    resumes: bool = True
    """Reports a status after `migration`."""
    status: int = 0
    repeats: int = 1
    """How often each report is sent, each time on a new connection."""
    loses: set[str] = field(default_factory=set)
    """Kinds of reports that never leave: `strategies`, `status`."""
    before_pause: Callable[[], object] | None = None


class ScriptedPeer:
    """One manager of one job."""

    def __init__(self, address: str, job_id: str, script: Script | None = None) -> None:
        self.address, self.job_id = address, job_id
        self.script = script or Script()
        self.received: list[wire.ProcessManageSignal] = []
        self.carried_out: list[str] = []
        self.answers: list[int] = []
        self.keep_alives = 0
        self.exited = ""
        self.ended: list[str] = []
        """How streams ended: status code and details."""
        self.attached = asyncio.Event()
        self.changed = asyncio.Condition()
        self._executed: set[tuple[str, str, tuple[str, ...], str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._switching = False
        self._paused = False

    async def __aenter__(self) -> "ScriptedPeer":
        self.start()
        await asyncio.wait_for(self.attached.wait(), 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    def start(self) -> None:
        self._task = asyncio.create_task(self._live())

    async def cut(self) -> None:
        """Drops the stream and its connection; `start` comes back."""
        self.attached.clear()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that the peer received or did."""
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(condition)

    @property
    def orders(self) -> list[str]:
        """Names of the orders that arrived, repeated ones too."""
        return [name_of(order) for order in self.received]

    async def _live(self) -> None:
        while not self.exited:
            try:
                await self._subscribe()
            except grpc.aio.AioRpcError as error:
                self.ended.append(f"{error.code().name}: {error.details()}")
            await asyncio.sleep(0.1)

    async def _subscribe(self) -> None:
        me = wire.ClientInfo(jobId=self.job_id, role="taskd")
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = RecoverStub(channel)
            for call in (stub.Init, stub.Register):
                status = await call(me)
                if status.code:
                    return
            stream = stub.SubscribeProcessManageSignal(me)
            await stream.initial_metadata()
            self.attached.set()
            async for signal in stream:
                await self._take(signal)

    async def _take(self, signal: wire.ProcessManageSignal) -> None:
        if signal.signalType == "keep-alive":
            self.keep_alives += 1
            return
        self.received.append(signal)
        key = (signal.uuid, signal.signalType, tuple(signal.actions), signal.changeStrategy)
        if key not in self._executed:
            self._executed.add(key)
            self.carried_out.append(name_of(signal))
            asyncio.get_running_loop().create_task(self._carry_out(name_of(signal)))
        await self._notify()

    async def _carry_out(self, order: str) -> None:
        if order == "hot switch":
            self._switching = True
        elif order == "new pod running" and self._switching:
            await self._pause()
        elif order == "stop switch":
            if self._paused:
                await self._exit("stop switch after the pause")
            self._switching = False
        elif order == "migration":
            if not self._paused:
                await self._exit("migration without a pause")
            elif self.script.resumes:
                self._paused = self._switching = False
                await self.report_status(self.script.status)

    async def _pause(self) -> None:
        if self.script.before_pause:
            self.script.before_pause()
        if self.script.pauses:
            self._paused = True
            await self.report_strategies(self.script.offers)

    async def _exit(self, why: str) -> None:
        self.exited = why
        await self._notify()

    async def report_strategies(self, offers: tuple[str, ...]) -> None:
        message = wire.RecoverStrategyRequest(jobId=self.job_id, strategies=offers)
        await self._report("strategies", lambda stub: stub.ReportRecoverStrategy(message))

    async def report_status(self, code: int) -> None:
        message = wire.RecoverStatusRequest(
            jobId=self.job_id, strategy="migration", status=wire.Status(code=code, info="scripted")
        )
        await self._report("status", lambda stub: stub.ReportRecoverStatus(message))

    async def report_fault(self, *ranks: int) -> int:
        faults = [wire.FaultRank(rankId=str(rank), faultType="1") for rank in ranks]
        message = wire.ProcessFaultRequest(jobId=self.job_id, faultRanks=faults)
        return await self._report("fault", lambda stub: stub.ReportProcessFault(message))

    async def _report(self, kind: str, call: Callable[[RecoverStub], object]) -> int:
        """As the Go client: each report on a new connection, up to four times on gRPC errors; answers are noted and ignored."""
        if kind in self.script.loses:
            return -1
        code = -1
        for _ in range(self.script.repeats):
            for _ in range(4):
                async with grpc.aio.insecure_channel(self.address) as channel:
                    try:
                        answer = await call(RecoverStub(channel))  # type: ignore[misc]
                    except grpc.aio.AioRpcError:
                        continue
                code = answer.code
                self.answers.append(code)
                break
        await self._notify()
        return code

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def name_of(signal: wire.ProcessManageSignal) -> str:
    """What people call an order."""
    return signal.changeStrategy or (signal.actions[0] if signal.actions else signal.signalType)
