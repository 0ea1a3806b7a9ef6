"""Scripted training sides, written from `recover.proto` alone: ours, and TaskD with MindIO.

They are as strict as the real ones. They leave on an unexpected order, and on one that comes too late. Repeated orders are
ignored by the rules of the real client. A report is sent on its own new connection, once unless the script says otherwise, and a
failing call is given up within milliseconds. `MindioPeer` also polls its orders and keeps only the newest one, and its new
manager never meets the ranks of the one before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import grpc

from rekindle.model.attachment import Progress
from rekindle_wire import PROTOCOL, training_pb2
from rekindle_wire import recover_pb2 as wire
from rekindle_wire.recover_pb2_grpc import RecoverStub
from rekindle_wire.training_pb2_grpc import ProgressStub
from tests.fakes.fault_dialogue import ANNOUNCED, FaultDialogue
from tests.fakes.link_dialogue import LinkDialogue
from tests.fakes.stress_dialogue import StressDialogue
from tests.support.elsewhere import Elsewhere

LOOP = 0.1
"""Seconds of one turn of the manager's loop, which takes one order."""

PACE = 0.8
"""Least number of seconds between two orders to a MindIO client of which the first has no answer: nominally one second, minus the
time that a busy machine takes to deliver."""

Call = Callable[[Any], Awaitable[wire.Status]]

TRIES = 4
"""Number of times that the real client sends a report, within milliseconds, when the call itself fails."""


async def nothing_before(_: str) -> None:
    """Does nothing before the status."""


@dataclass
class Script:
    """Differences of the peer from a healthy one."""

    pauses: bool = True
    """True to report the pause when the backup's processes have registered."""
    offers: tuple[str, ...] = ("migration",)
    resumes: bool = True
    """True to report a status after `migration`."""
    status: int = 0
    statuses: list[int] = field(default_factory=list)
    """Codes of its first statuses in a recovery of processes; after them `status` counts."""
    before_status: Callable[[str], Awaitable[object]] = nothing_before
    """Function that is called with the strategy when it is carried out, before its status."""
    went_on: str = "migration"
    """Strategy in its status; ours reports `continue` when the backup died and training continues where it was."""
    info: str = "scripted"
    """Text in its status after a migration."""
    repeats: int = 1
    """Number of times that each report is sent, each on a new connection."""
    loses: set[str] = field(default_factory=set)
    """Kinds of reports that are never sent: `stop complete`, `strategies`, `status`, `fault`."""
    stops: bool = True
    """True to report that training has stopped."""
    stop_code: int = 0
    answers_faults: bool = True
    """True to report its offers when all faults are announced."""
    repairs: tuple[str, ...] = ("recover",)
    """Strategies that it offers for faults, in addition to `exit`, `dump`, and `retry` if that may help."""
    offers_dump: bool = True
    steps_lost: int | None = 0
    """Steps that it reports as lost when all ranks began again after `exit`. None: it reports nothing."""
    saves: bool = True
    """True to report a status after `dump`."""
    finds: tuple[int, ...] = ()
    """Ranks that it finds faulty between the stop and the announcement."""
    holds: bool = True
    """True to report that all ranks have paused for an operation."""
    pause_code: int = 0
    switches: bool = True
    """True to report that links are switched."""
    switch_results: list[bool] = field(default_factory=list)
    """Results of its first link switches; later ones succeed."""
    tests: bool = True
    """True to report the results of a stress test."""
    stress_codes: dict[tuple[int, int], str] = field(default_factory=dict)
    """Codes of checks that differ from 0, by rank and operation."""
    continues: bool = True
    """True to report that training continues after an operation."""
    continue_codes: list[int] = field(default_factory=list)
    """Codes of its first reports of that; later ones are 0."""
    isolates: tuple[int, ...] | None = ()
    """MindIO: ranks that it chooses to leave with the faulty ones. None: it goes on without a choice."""
    patience: float = 30.0
    """Seconds that it waits for an order after a report (MINDIO_WAIT_MINDX_TIME) before it leaves."""
    on_order: Callable[[str], object] = lambda order: None
    """Function that is called with each order before it is carried out."""


class Pods(Protocol):
    """Pods in which the training side's processes run."""

    def leaves(self, pod_rank: int) -> None:
        """Ends the agent of a pod."""
        ...

    async def replaced(self, ranks: Collection[int]) -> None:
        """Returns when other pods than before run with these ranks."""
        ...


class ScriptedPeer(FaultDialogue, LinkDialogue, StressDialogue):
    """Manager of one job, of our own training side."""

    def __init__(self, address: str, job_id: str, script: Script | None = None) -> None:
        FaultDialogue.__init__(self)
        LinkDialogue.__init__(self)
        StressDialogue.__init__(self)
        self.address, self.job_id = address, job_id
        self.script = script or Script()
        self.received: list[wire.ProcessManageSignal] = []
        self.gaps: list[float] = []
        """Seconds between the arrivals of orders."""
        self.carried_out: list[str] = []
        self.answers: list[int] = []
        """Codes of the receipts of reports."""
        self.refusals: list[int] = []
        """Codes of Init and Register that were not 0."""
        self.keep_alives: list[str] = []
        """Uuids of the keep-alives that arrived."""
        self.exited = ""
        self.broken_rules: list[str] = []
        """Violations that a real client would not tolerate, although it would not leave because of them."""
        self.ended: list[str] = []
        """Status codes and details with which streams ended."""
        self.comes_back = True
        """True if it reopens a stream that ended."""
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
        """Connects, and waits until its stream is open. A real client reconnects after a second, and has read its last order."""
        self._arrived_at = float("-inf")
        self.start()
        await asyncio.wait_for(self.attached.wait(), 20)

    def start(self) -> None:
        self._task = asyncio.create_task(self._live())

    async def cut(self) -> None:
        """Drops the stream and its connection; `attach` reconnects."""
        self.attached.clear()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def restart_manager(self) -> None:
        """Replaces the manager by another process, which attaches from another address."""
        await self.cut()
        self._elsewhere = Elsewhere(self.address)
        self.address = await self._elsewhere.start()
        self._forget()
        await self.attach()

    def _forget(self) -> None:
        """Discards the manager's knowledge; the ranks stay as they are."""
        self._carried.clear()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds, which is checked whenever the peer received or did something."""
        async with asyncio.timeout(60), self.changed:
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
            await asyncio.sleep(0.1)  # the real one reconnects after a second

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
        """Checks the time between two orders. Ours accepts any."""

    def _hear(self, signal: wire.ProcessManageSignal) -> None:
        """Carries out an order, unless it is a repetition."""
        if not self.exited and not self._is_repetition(signal):
            name = name_of(signal)
            self.carried_out.append(name)
            self.script.on_order(name)
            self._spawn(self._carry_out(name, signal))

    def _is_repetition(self, signal: wire.ProcessManageSignal) -> bool:
        """Returns whether an order is a repetition: our manager carries out each order of an attempt once."""
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
        """Prepares a hot switch. Ours waits for `new pod running`."""

    async def _backup_registers(self) -> None:
        if self.script.pauses:
            await self.pause()

    def _stop_switching(self) -> None:
        if self._paused or self._faulty:
            self._exit("stop switch after the pause" if self._paused else "stop switch after a fault")
        self._switching = False

    async def _migrate(self) -> None:
        if self.broken and self.may_follow:  # ours has dropped the switch because of the fault
            await self.resume(406)
        elif not self._paused:
            self._exit("migration without a pause: it would kill the next recovery")
        elif self.script.resumes:
            await self.resume(self.script.status)

    async def grow(self, signal: wire.ProcessManageSignal) -> None:
        """Takes missing ranks back while it trains, and says what came of it."""
        await self.script.before_status("upgrade")
        if not (self._faulty or self.script.resumes):
            return
        code = 406 if self._faulty else self.script.statuses.pop(0) if self.script.statuses else 0
        if code:
            self._cannot_grow()
        await self.report_repair("upgrade", code, signal.uuid)

    def _cannot_grow(self) -> None:
        """Goes on as before, as ours does."""

    async def pause(self) -> None:
        """Pauses training and reports the offers, as when all of the backup's processes have registered."""
        self._paused = True
        self._patience = asyncio.get_running_loop().call_later(self.script.patience, self._exit, "no order after the pause")
        await self.report_strategies(self.script.offers)

    async def resume(self, status: int = 0) -> None:
        self._paused = self._switching = False
        await self.report_status(status)

    def _exit(self, why: str) -> None:
        """Leaves, as MindIO does: its processes end, and it sends nothing more."""
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
        """Reports the first step of a life, as our own manager does."""
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
        """Sends a report as the Go client does: on a new connection, up to four times on gRPC errors. Answers are recorded."""
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
    """Pods of the job; None: pods are not simulated."""

    def __init__(self, address: str, job_id: str, script: Script | None, backup_runs: Callable[[], Awaitable[object]]) -> None:
        """Args:
        backup_runs: returns when a backup pod runs; its processes then register without an order.
        """
        super().__init__(address, job_id, script)
        self._backup_runs = backup_runs
        self._left: set[int] = set()
        """Pod ranks whose agents were ordered to exit in this recovery."""
        self._last_announced = ""
        self._slot: wire.ProcessManageSignal | None = None
        self._last_switch: tuple[str, ...] = ()
        self._last_strategy = ("", "")
        self._knows_ranks = self._answered = True
        self._downgrade: wire.ProcessManageSignal | None = None
        """Order to go on with fewer ranks, which waits for those that it has chosen to leave."""
        self._is_small = False

    def _forget(self) -> None:
        """Discards the manager's knowledge. The new controller never knows the ranks, which register only once in their lives."""
        self._slot, self._last_switch, self._last_strategy = None, (), ("", "")
        self._knows_ranks = False

    def _check_pace(self, gap: float, order: str) -> None:
        if gap < PACE and not self._answered:
            self.broken_rules.append(f"{order} came {gap:.3f} s after an order that was not answered yet")
        self._answered = False

    def _hear(self, signal: wire.ProcessManageSignal) -> None:
        """Puts an order into the only slot: the loop takes the newest order, and never sees one that was overwritten."""
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
        """Returns whether an order is a repetition by TaskD's rules.

        Its hot switch compares signal and actions of the last order only, its recovery uuid and strategy. There is one
        announcement for each uuid.
        """
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
        """Ends the agents that an order names, and answers it; a repair waits for the ranks of the new pods."""
        self.end_agents(signal)
        if order == "downgrade" and self.script.isolates is not None:
            self._downgrade = signal
            await self._report_chosen(self.script.isolates)
        elif order == "fault_nodes_exit":
            if self._downgrade is None:
                self._exit("fault_nodes_exit, and it has chosen no ranks")
                return
            await super().answer("downgrade", self._downgrade)
        else:
            await super().answer(order, signal)
        if order in ("downgrade", "fault_nodes_exit") and self.state == "trains":
            self._is_small = True

    async def _report_chosen(self, more: tuple[int, ...]) -> int:
        """Reports the ranks that leave: the faulty ones, and others that are useless without them."""
        ranks = [str(rank) for rank in sorted({*self.broken, *more})]
        message = wire.RecoverStatusRequest(
            jobId=self.job_id,
            strategy="downgrade",
            status=wire.Status(code=201, info="controller notify isolate ranks."),
            isolateRankIds=ranks,
        )
        return await self._report("status", lambda stub: stub.ReportRecoverStatus(message))

    def _learn(self, signal: wire.ProcessManageSignal) -> None:
        super()._learn(signal)
        if self._is_small:
            self._offered = ("exit", "dump")

    async def grow(self, signal: wire.ProcessManageSignal) -> None:
        """Waits for the ranks of the new pods, and goes on with them."""
        if self.pods:
            await self.pods.replaced({int(fault.rankId) for fault in signal.faultRanks})
        self._is_small = False
        await super().grow(signal)

    def _cannot_grow(self) -> None:
        """Stands, and accepts no other strategy than to save its state."""
        self.state = ANNOUNCED
        self._fails()

    def end_agents(self, signal: wire.ProcessManageSignal) -> None:
        """Ends the agents that an order names. Naming one twice is a broken rule: that would end the next agent of its rank."""
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
        """Sends a report, unless the manager does not know its ranks."""
        if not self._knows_ranks:
            return -1
        self._answered = True
        return await super()._report(kind, call)


def _ends_agents(signal: wire.ProcessManageSignal) -> bool:
    if "fault_nodes_restart" in signal.actions:
        return False
    return "fault_nodes_exit" in signal.actions or signal.changeStrategy in ("recover", "exit")


def name_of(signal: wire.ProcessManageSignal) -> str:
    """Returns the usual name of an order."""
    return signal.changeStrategy or (signal.actions[0] if signal.actions else signal.signalType)
