"""Training sides written from `recover.proto` alone, which can be scripted: ours, and TaskD with MindIO.

They are as strict as the real ones. An order that is not awaited makes them leave, and so does one that comes too late. A
repeated order is swallowed by the rules of the real client. A report is sent on a new connection of its own, once unless the
script says otherwise, and a call that fails is given up within milliseconds. `MindioPeer` is more: it polls its orders and keeps
only the newest one, and a new manager never meets the ranks of the one before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import grpc

from rekindle.model.recovery import Progress
from rekindle_wire import PROTOCOL, training_pb2
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from rekindle_wire.training_pb2_grpc import ProgressStub
from tests.support.elsewhere import Elsewhere
from tests.support.fault_dialogue import FaultDialogue
from tests.support.link_dialogue import LinkDialogue
from tests.support.stress_dialogue import StressDialogue

LOOP = 0.1
"""Seconds of one turn of the manager's loop, which takes one order."""

PACE = 0.8
"""Seconds between two orders to a MindIO client, the first of which has no answer: it should be one second, less what a busy
machine takes to deliver."""

Call = Callable[[Any], Awaitable[wire.Status]]

TRIES = 4
"""How often the real client sends a report, within milliseconds, when the call itself fails."""


async def nothing_before(_: str) -> None:
    """Happens."""


@dataclass
class Script:
    """What the peer does differently from a healthy one."""

    pauses: bool = True
    """Reports the pause when the backup's processes have registered."""
    offers: tuple[str, ...] = ("migration",)
    resumes: bool = True
    """Reports a status after `migration`."""
    status: int = 0
    statuses: list[int] = field(default_factory=list)
    """Codes of its first statuses in a recovery of processes; then `status`."""
    before_status: Callable[[str], Awaitable[object]] = nothing_before
    """Called with the strategy when it is carried out, before its status."""
    went_on: str = "migration"
    """The strategy in its status; ours says `continue` when the backup died and training goes on where it was."""
    info: str = "scripted"
    """In its status behind a migration."""
    repeats: int = 1
    """How often each report is sent, each time on a new connection."""
    loses: set[str] = field(default_factory=set)
    """Kinds of reports that never leave: `stop complete`, `strategies`, `status`, `fault`."""
    stops: bool = True
    """Reports that training has stopped."""
    stop_code: int = 0
    answers_faults: bool = True
    """Reports what it offers when all faults are announced."""
    repairs: tuple[str, ...] = ("recover",)
    """What it offers for faults, beside `exit` and `dump`, and `retry` where that may help."""
    finds: tuple[int, ...] = ()
    """Ranks that it finds faulty between the stop and the announcement."""
    holds: bool = True
    """Reports that all ranks stand, when it is paused for an operation."""
    pause_code: int = 0
    switches: bool = True
    """Reports that links are switched."""
    switch_results: list[bool] = field(default_factory=list)
    """Of its first switches; then they succeed."""
    tests: bool = True
    """Reports what a stress test has found."""
    stress_codes: dict[tuple[int, int], str] = field(default_factory=dict)
    """By rank and operation, where they are not 0."""
    continues: bool = True
    """Reports that training goes on behind an operation."""
    continue_codes: list[int] = field(default_factory=list)
    """Of its first ones; then 0."""
    patience: float = 30.0
    """Seconds that it waits for an order after a report (MINDIO_WAIT_MINDX_TIME); then it leaves."""
    on_order: Callable[[str], object] = lambda order: None
    """Called with each order that is carried out, before it is."""


class Pods(Protocol):
    """What the training side's processes run in."""

    def leaves(self, pod_rank: int) -> None:
        """Its agent ends."""
        ...

    async def replaced(self, ranks: Collection[int]) -> None:
        """Returns when other pods than before run with these ranks."""
        ...


class ScriptedPeer(FaultDialogue, LinkDialogue, StressDialogue):
    """One manager of one job, of our own training side."""

    def __init__(self, address: str, job_id: str, script: Script | None = None) -> None:
        FaultDialogue.__init__(self)
        LinkDialogue.__init__(self)
        StressDialogue.__init__(self)
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
        self.broken_rules: list[str] = []
        """What a real client would not have borne, although it would not have left for it."""
        self.ended: list[str] = []
        """How streams ended: status code and details."""
        self.comes_back = True
        """Whether a stream that ended is opened again."""
        self.attached = asyncio.Event()
        self.changed = asyncio.Condition()
        self._arrived_at = float("-inf")
        self._carried: set[tuple[str, str]] = set()
        self._elsewhere: Elsewhere | None = None
        self._task: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._patience: asyncio.TimerHandle | None = None
        self._paused = False

    async def __aenter__(self) -> Self:
        await self.attach()
        return self

    async def with_links(self) -> Self:
        """Subscribes to link switches as well."""
        self._spawn(self.listen_for_links())
        await asyncio.wait_for(self.links_subscribed.wait(), 20)
        return self

    async def with_tests(self) -> Self:
        """Subscribes to stress tests as well."""
        self._spawn(self.listen_for_tests())
        await asyncio.wait_for(self.stress_subscribed.wait(), 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        self._calm()
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        if self._elsewhere:
            await self._elsewhere.stop()

    # ---- the script of the network

    async def attach(self) -> None:
        """Comes (back) and waits until its stream is open. A real one comes back after a second, and has read its last order."""
        self._arrived_at = float("-inf")
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

    async def restart_manager(self) -> None:
        """The manager is killed, and another process attaches, from another address."""
        await self.cut()
        self._elsewhere = Elsewhere(self.address)
        self.address = await self._elsewhere.start()
        self._forget()
        await self.attach()

    def _forget(self) -> None:
        """What the manager knew dies with it; the ranks stay as they are."""
        self._carried.clear()

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
        if not same:
            self._check_pace(gap, name_of(signal))
        self._hear(signal)

    def _check_pace(self, gap: float, order: str) -> None:
        """Ours reads orders as they come."""

    def _hear(self, signal: wire.ProcessManageSignal) -> None:
        """An order reaches who carries it out."""
        if not self.exited and not self._is_repetition(signal):
            name = name_of(signal)
            self.carried_out.append(name)
            self.script.on_order(name)
            self._spawn(self._carry_out(name, signal))

    def _is_repetition(self, signal: wire.ProcessManageSignal) -> bool:
        """Our manager carries out each order of an attempt once, in whatever order they come again."""
        order = (signal.uuid, name_of(signal))
        repeated = order in self._carried
        self._carried.add(order)
        return repeated

    # ---- what it does

    async def _carry_out(self, order: str, signal: wire.ProcessManageSignal) -> None:
        self._calm()
        if order == "hot switch":
            self._switching = True
            await self._prepare()
        elif order == "new pod running" and self._switching:
            await self._backup_registers()
        elif order == "stop switch":
            self._stop_switching()
        elif order == "migration":
            await self._migrate()
        elif order == "pause_train":
            await self.pause_training(signal)
        elif order == "continue":
            await self.continue_training()
        elif order not in ("new pod running", "pause_start_agent", "continue_start_agent"):
            await self.answer(order, signal)

    async def _prepare(self) -> None:
        """Ours waits for `new pod running`."""

    async def _backup_registers(self) -> None:
        if self.script.pauses:
            await self.pause()

    def _stop_switching(self) -> None:
        if self._paused or self._faulty:
            self._exit("stop switch after the pause" if self._paused else "stop switch after a fault")
        self._switching = False

    async def _migrate(self) -> None:
        if self.broken and self.may_follow:  # ours has dropped the switch for the fault
            await self.resume(406)
        elif not self._paused:
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
            jobId=self.job_id, strategy=self.script.went_on, status=wire.Status(code=code, info=self.script.info)
        )
        return await self._report("status", lambda stub: stub.ReportRecoverStatus(message))

    async def report_progress(self, progress: Progress) -> int:
        """The first step of a life, as our own manager tells it."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub: Any = ProgressStub(channel)
            message = training_pb2.ProgressReport(
                job_id=self.job_id,
                protocol=PROTOCOL,
                world_size=progress.ranks,
                **progress.model_dump(exclude={"session", "ranks"}),
            )
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


class MindioPeer(ScriptedPeer):
    """TaskD's manager and MindIO's controller, in one process."""

    may_follow = False

    pods: Pods | None = None
    """None: they stay as they are."""

    def __init__(self, address: str, job_id: str, script: Script | None, backup_runs: Callable[[], Awaitable[object]]) -> None:
        """Args:
        backup_runs: returns when a backup pod runs, whose processes register then without any order.
        """
        super().__init__(address, job_id, script)
        self._backup_runs = backup_runs
        self._left: set[int] = set()
        """Pod ranks whose agents were told to end in this recovery."""
        self._last_announced = ""
        self._slot: wire.ProcessManageSignal | None = None
        self._last_switch: tuple[str, ...] = ()
        self._last_strategy = ("", "")
        self._knows_ranks = self._answered = True

    def _forget(self) -> None:
        """Its new controller waits for ranks that register once in their lives: it knows none of them, for ever."""
        self._slot, self._last_switch, self._last_strategy = None, (), ("", "")
        self._knows_ranks = False

    def _check_pace(self, gap: float, order: str) -> None:
        if gap < PACE and not self._answered:
            self.broken_rules.append(f"{order} came {gap:.3f} s after an order that was not answered yet")
        self._answered = False

    def _hear(self, signal: wire.ProcessManageSignal) -> None:
        """One slot: the loop finds the newest order, and never hears of one that was overwritten."""
        if self._slot is None:
            self._spawn(self._next_turn())
        elif self._slot != signal:
            self.broken_rules.append(f"{name_of(self._slot)} was overwritten by {name_of(signal)}")
        self._slot = signal

    async def _next_turn(self) -> None:
        await asyncio.sleep(LOOP)
        signal, self._slot = self._slot, None
        if signal and self._knows_ranks:
            super()._hear(signal)
        await self._notify()

    def _is_repetition(self, signal: wire.ProcessManageSignal) -> bool:
        """TaskD's rules: its hot switch looks at signal and actions of the last order only, its recovery at uuid and strategy; of
        announcements there is one for each uuid."""
        if signal.signalType == "globalFault":
            before, self._last_announced = self._last_announced, signal.uuid
            self._last_switch = (signal.signalType, *signal.actions)
            return before == signal.uuid
        if signal.signalType == "changeStrategy":
            strategy = (signal.uuid, signal.changeStrategy)
            repeated, self._last_strategy, self._last_switch = strategy == self._last_strategy, strategy, ()
            return repeated
        switch = (signal.signalType, *signal.actions)
        repeated, self._last_switch = switch == self._last_switch, switch
        return repeated

    async def _prepare(self) -> None:
        self._spawn(self._when_the_backup_runs())

    async def _when_the_backup_runs(self) -> None:
        await self._backup_runs()
        if self._switching and self._knows_ranks:
            await self._backup_registers()

    async def answer(self, order: str, signal: wire.ProcessManageSignal) -> None:
        """Agents end that an order tells to; a repair waits for the ranks of the pods that come."""
        self.end_agents(signal)
        await super().answer(order, signal)

    def end_agents(self, signal: wire.ProcessManageSignal) -> None:
        """An exit for an agent that has left waits for the next one of its rank."""
        pods = {int(pod) for pod in signal.nodeRankIds} if _ends_agents(signal) else set()
        self.broken_rules += [f"pod rank {pod} was told to leave twice" for pod in sorted(pods & self._left)]
        for pod in sorted(pods - self._left):
            if self.pods:
                self.pods.leaves(pod)
        self._left |= pods

    async def ranks_come(self, signal: wire.ProcessManageSignal) -> None:
        if self.pods and signal.changeStrategy == "recover" and "fault_nodes_restart" not in signal.actions:
            await self.pods.replaced({int(fault.rankId) for fault in signal.faultRanks})

    def _goes_on(self) -> None:
        super()._goes_on()
        self._left.clear()

    async def _report(self, kind: str, call: Call) -> int:
        """A rank that the manager does not know is never heard of."""
        if not self._knows_ranks:
            return -1
        self._answered = True
        return await super()._report(kind, call)


def _ends_agents(signal: wire.ProcessManageSignal) -> bool:
    if "fault_nodes_restart" in signal.actions:
        return False
    return "fault_nodes_exit" in signal.actions or signal.changeStrategy in ("recover", "exit")


def name_of(signal: wire.ProcessManageSignal) -> str:
    """What people call an order."""
    return signal.changeStrategy or (signal.actions[0] if signal.actions else signal.signalType)
