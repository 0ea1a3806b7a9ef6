"""A training side written from `recover.proto` alone: stands for TaskD and MindIO, and can be scripted.

It is as strict as the real ones: an order that is not awaited makes it leave, and so does one that comes too late; repeated
orders are swallowed by the real clients' own rules; of two orders within one turn of the manager's loop the first would be lost;
a report is sent on a new connection of its own, once unless the script says otherwise.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from rekindle.model.recovery import Progress
from rekindle_wire import PROTOCOL, training_pb2
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from rekindle_wire.training_pb2_grpc import ProgressStub

LOOP = 0.1
"""Seconds of one turn of the manager's loop, which takes one order."""

Call = Callable[[Any], Awaitable[wire.Status]]

TRIES = 4
"""How often the real client sends a report, within milliseconds, when the call itself fails."""


@dataclass
class Script:
    """What the peer does differently from a healthy one."""

    pauses: bool = True
    """Reports the pause when the backup runs."""
    offers: tuple[str, ...] = ("migration",)
    resumes: bool = True
    """Reports a status after `migration`."""
    status: int = 0
    went_on: str = "migration"
    """The strategy in its status; ours says `continue` when the backup died and training goes on where it was."""
    repeats: int = 1
    """How often each report is sent, each time on a new connection."""
    loses: set[str] = field(default_factory=set)
    """Kinds of reports that never leave: `strategies`, `status`."""
    patience: float = 30.0
    """Seconds that it waits for an order after a report (MINDIO_WAIT_MINDX_TIME); then it leaves."""
    on_order: Callable[[str], object] = lambda order: None
    """Called with each order that is carried out, before it is."""
    before_pause: Callable[[], object] = lambda: None


class ScriptedPeer:
    """One manager of one job."""

    def __init__(self, address: str, job_id: str, script: Script | None = None) -> None:
        self.address, self.job_id = address, job_id
        self.script = script or Script()
        self.received: list[wire.ProcessManageSignal] = []
        self.gaps: list[float] = []
        """Seconds between orders as they arrived."""
        self.carried_out: list[str] = []
        self.answers: list[int] = []
        """Codes of the receipts of reports."""
        self.refusals: list[int] = []
        """Codes of Init and Register that were not 0."""
        self.keep_alives: list[str] = []
        """The uuids of keep-alives."""
        self.exited = ""
        self.ended: list[str] = []
        """How streams ended: status code and details."""
        self.comes_back = True
        """Whether a stream that ended is opened again."""
        self.attached = asyncio.Event()
        self.changed = asyncio.Condition()
        self._arrived_at = float("-inf")
        self._last_switch: tuple[str, ...] = ()
        self._last_strategy = ("", "")
        self._task: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._patience: asyncio.TimerHandle | None = None
        self._switching = self._paused = self._faulty = False

    async def __aenter__(self) -> Self:
        await self.attach()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        self._calm()
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    # ---- the script of the network

    async def attach(self) -> None:
        """Comes (back) and waits until its stream is open."""
        self.start()
        await asyncio.wait_for(self.attached.wait(), 20)

    def start(self) -> None:
        self._task = asyncio.create_task(self._live())

    async def cut(self) -> None:
        """Drops the stream and its connection; `attach` comes back."""
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

    # ---- the stream

    async def _live(self) -> None:
        while self.comes_back and not self.exited:
            try:
                await self._subscribe()
            except grpc.aio.AioRpcError as error:
                self.ended.append(f"{error.code().name}: {error.details()}")
            self.attached.clear()
            await self._notify()
            await asyncio.sleep(0.1)  # the real one comes back after a second

    async def _subscribe(self) -> None:
        me = wire.ClientInfo(jobId=self.job_id, role="taskd")
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = RecoverStub(channel)
            for call in (stub.Init, stub.Register):
                status = await call(me)
                if status.code:
                    self.refusals.append(status.code)
                    return
            stream = stub.SubscribeProcessManageSignal(me)
            await stream.initial_metadata()
            self.attached.set()
            await self._notify()
            async for signal in stream:
                await self._take(signal)

    async def _take(self, signal: wire.ProcessManageSignal) -> None:
        if signal.signalType == "keep-alive":
            self.keep_alives.append(signal.uuid)
        else:
            self._order(signal)
        await self._notify()

    def _order(self, signal: wire.ProcessManageSignal) -> None:
        now = asyncio.get_running_loop().time()
        gap, self._arrived_at = now - self._arrived_at, now
        same = bool(self.received) and self.received[-1] == signal
        self.received.append(signal)
        self.gaps.append(gap)
        if gap < LOOP / 2 and not same:
            self._exit(f"two orders within {gap:.3f} s: the first is lost")
        if not self.exited and not self._is_repetition(signal):
            name = name_of(signal)
            self.carried_out.append(name)
            self.script.on_order(name)
            self._spawn(self._carry_out(name))

    def _is_repetition(self, signal: wire.ProcessManageSignal) -> bool:
        """The real client's rules: its hot switch looks at signal and actions only, its recovery at uuid and strategy."""
        if signal.signalType == "changeStrategy":
            strategy = (signal.uuid, signal.changeStrategy)
            repeated, self._last_strategy = strategy == self._last_strategy, strategy
            return repeated
        switch = (signal.signalType, *signal.actions)
        repeated, self._last_switch = switch == self._last_switch, switch
        return repeated

    # ---- what it does

    async def _carry_out(self, order: str) -> None:
        self._calm()
        if order == "hot switch":
            self._switching = True
        elif order == "new pod running" and self._switching:
            self.script.before_pause()
            if self.script.pauses:
                await self.pause()
        elif order == "stop switch":
            self._stop_switching()
        elif order == "migration":
            await self._migrate()

    def _stop_switching(self) -> None:
        if self._paused or self._faulty:
            self._exit("stop switch after the pause" if self._paused else "stop switch after a fault")
        self._switching = False

    async def _migrate(self) -> None:
        if not self._paused:
            self._exit("migration without a pause: it would kill the next recovery")
        elif self.script.resumes:
            await self.resume(self.script.status)

    async def pause(self) -> None:
        """All of the backup's processes have registered: training pauses and offers what it could do."""
        self._paused = True
        self._patience = asyncio.get_running_loop().call_later(self.script.patience, self._exit, "no order after the pause")
        await self.report_strategies(self.script.offers)

    async def resume(self, status: int = 0) -> None:
        self._paused = self._switching = False
        await self.report_status(status)

    def _exit(self, why: str) -> None:
        """Leaves, as MindIO does: its processes end, and nothing is heard of it any more."""
        self.exited = self.exited or why
        self._calm()
        if self._task:
            self._task.cancel()
        self._spawn(self._notify())

    def _calm(self) -> None:
        if self._patience:
            self._patience.cancel()
            self._patience = None

    # ---- reports

    async def report_strategies(self, offers: tuple[str, ...]) -> int:
        message = wire.RecoverStrategyRequest(jobId=self.job_id, strategies=offers)
        return await self._report("strategies", lambda stub: stub.ReportRecoverStrategy(message))

    async def report_status(self, code: int) -> int:
        message = wire.RecoverStatusRequest(
            jobId=self.job_id, strategy=self.script.went_on, status=wire.Status(code=code, info="scripted")
        )
        return await self._report("status", lambda stub: stub.ReportRecoverStatus(message))

    async def report_fault(self, *ranks: int) -> int:
        """A fault of its processes; a hot switch that runs is dropped."""
        self._faulty, self._switching = True, False
        faults = [wire.FaultRank(rankId=str(rank), faultType="1") for rank in ranks]
        message = wire.ProcessFaultRequest(jobId=self.job_id, faultRanks=faults)
        return await self._report("fault", lambda stub: stub.ReportProcessFault(message))

    async def report_progress(self, progress: Progress) -> int:
        """The first step of a life, as our own manager tells it."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub: Any = ProgressStub(channel)
            message = training_pb2.ProgressReport(job_id=self.job_id, protocol=PROTOCOL, **progress.model_dump())
            return int((await stub.ReportProgress(message)).code)

    async def _report(self, kind: str, call: Call) -> int:
        """As the Go client: each report on a new connection, up to four times on gRPC errors; answers are noted and ignored."""
        if kind in self.script.loses:
            return -1
        code = -1
        for _ in range(self.script.repeats):
            code = await self._send(call)
        await self._notify()
        return code

    async def _send(self, call: Call) -> int:
        for _ in range(TRIES):
            async with grpc.aio.insecure_channel(self.address) as channel:
                try:
                    answer = await call(RecoverStub(channel))  # its asynchronous twin exists in the stubs only
                except grpc.aio.AioRpcError:
                    continue
            self.answers.append(answer.code)
            return answer.code
        return -1

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def name_of(signal: wire.ProcessManageSignal) -> str:
    """What people call an order."""
    return signal.changeStrategy or (signal.actions[0] if signal.actions else signal.signalType)
