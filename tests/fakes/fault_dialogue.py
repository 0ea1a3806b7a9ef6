"""Training side in a fault recovery: it reports faulty ranks, stops, names them again, and offers strategies.

Like MindIO it leaves on an unexpected order. Ours carries out a strategy without an announcement, and says in its answer what it
cannot do. Both simulated peers inherit from this class.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from rekindle.model.attachment import Progress
from rekindle_wire import ATTEMPT
from rekindle_wire import recover_pb2 as wire

if TYPE_CHECKING:
    from tests.fakes.peer import Script

TRAINS, STOPPED, ANNOUNCED = "trains", "has stopped", "knows all faults"
RETRYABLE = ("0", "2")


class FaultDialogue:
    job_id: str
    script: "Script"
    _patience: asyncio.TimerHandle | None
    _report: Callable[[str, Callable[[Any], Awaitable[wire.Status]]], Awaitable[int]]
    _exit: Callable[[str], None]
    _notify: Callable[[], Awaitable[None]]
    grow: Callable[[Any], Awaitable[None]]
    report_progress: Callable[[Progress], Awaitable[int]]
    may_follow = True
    """True for our training side: it accepts another announcement after a failed repair whatever order follows, and a first
    one."""

    def __init__(self) -> None:
        self.state = TRAINS
        self.broken: dict[int, str] = {}
        """Faulty ranks, with the type of each fault."""
        self._offered: tuple[str, ...] = ()
        self._faulty = self._switching = False

    # ---- what the test lets happen

    async def report_fault(self, *ranks: int, kind: str = "1") -> int:
        """Reports a fault of its processes; a running hot switch is dropped."""
        self._faulty, self._switching = True, False
        self.broken.update(dict.fromkeys(ranks, kind))
        return await self._report_faults(ranks)

    async def report_stopped(self) -> None:
        self._wait("the report that training has stopped")
        status = wire.Status(code=self.script.stop_code, info="stop ok")
        message = wire.StopCompleteRequest(jobId=self.job_id, status=status, faultRanks=self._fault_ranks(self.broken))
        await self._report("stop complete", lambda stub: stub.ReportStopComplete(message))

    async def report_offers(self) -> None:
        self._wait("the report of what it offers")
        message = wire.RecoverStrategyRequest(
            jobId=self.job_id, strategies=self._offered, faultRanks=self._fault_ranks(self.broken)
        )
        await self._report("strategies", lambda stub: stub.ReportRecoverStrategy(message))

    # ---- orders

    async def answer(self, order: str, signal: wire.ProcessManageSignal) -> None:
        """Carries out an order of a fault recovery."""
        if order == "stop_train":
            await self._stop()
        elif order == "on_global_rank":
            await self._take_faults(signal)
        elif order == "upgrade":
            await self.grow(signal)
        else:
            await self._repair(order, signal)

    async def _stop(self) -> None:
        if self.state != TRAINS:
            self._exit(f"stop_train, and it {self.state}")
            return
        self.state = STOPPED
        await self._notify()
        if self.script.stops:
            await self.report_stopped()

    async def _take_faults(self, signal: wire.ProcessManageSignal) -> None:
        """Adopts the server's fault types, and reports the faults found meanwhile before it offers strategies."""
        if self.state != STOPPED and not (self.may_follow and self.state == ANNOUNCED):
            self._exit(f"on_global_rank, and it {self.state}")
            return
        self._learn(signal)
        await self._report_faults(self.broken)
        if self.script.answers_faults:
            await self.report_offers()

    def _learn(self, signal: wire.ProcessManageSignal) -> None:
        self.broken.update({int(fault.rankId): fault.faultType for fault in signal.faultRanks})
        self.broken.update(dict.fromkeys(self.script.finds, "1"))
        retries = all(kind in RETRYABLE for kind in self.broken.values())
        saves = ("dump",) if self.script.offers_dump else ()
        self._offered = ("exit", *saves, *(("retry",) if retries else ()), *self.script.repairs)
        self.state = ANNOUNCED

    def _accepts(self, strategy: str, signal: wire.ProcessManageSignal) -> bool:
        """Learns the faults of a strategy without an announcement, and returns whether ours can carry it out."""
        self._learn(signal)
        if strategy not in self._offered and not self.broken:  # training goes on as before
            self._goes_on()
        return strategy in self._offered

    async def _repair(self, strategy: str, signal: wire.ProcessManageSignal) -> None:
        if self.may_follow and self.state == TRAINS and not self._accepts(strategy, signal):
            await self.report_repair(strategy, 405 if strategy == "retry" else 406, signal.uuid)
            return
        if self.state != ANNOUNCED or strategy not in self._offered:
            self._exit(f"{strategy}, and it {self.state} and offered {self._offered}")
            return
        await self.ranks_come(signal)
        await self.script.before_status(strategy)
        if not (self.script.saves if strategy == "dump" else self.script.resumes):
            return
        code = self.script.statuses.pop(0) if self.script.statuses else self.script.status
        if code == 405:
            self.state = STOPPED
        elif code:
            self._fails()
        elif strategy == "dump":
            self._wait("the state was saved")
        else:
            self._goes_on()
            await self._first_step_again(strategy)
        await self.report_repair(strategy, code, signal.uuid)

    async def report_repair(self, strategy: str, code: int, attempt: str) -> int:
        """Reports the result of a repair. Ours names the order that it answers, for which the contract has no field."""
        says = ((ATTEMPT, attempt),) if self.may_follow else ()
        message = wire.RecoverStatusRequest(jobId=self.job_id, strategy=strategy, status=wire.Status(code=code, info="scripted"))
        return await self._report("status", lambda stub: stub.ReportRecoverStatus(message, metadata=says))

    async def ranks_come(self, signal: wire.ProcessManageSignal) -> None:
        """Waits for the replaced ranks. Ours receives the order only when they are there."""

    async def _first_step_again(self, strategy: str) -> None:
        """Reports the first step of other processes, as ours does after `exit`."""
        if strategy == "exit" and self.script.steps_lost is not None:
            await self.report_progress(Progress(incarnation="again", step=5, steps_lost=self.script.steps_lost))

    def _fails(self) -> None:
        """Restricts MindIO after a failed repair to a dump or its end."""
        if not self.may_follow:
            self._offered = ("exit", "dump")
            self._wait("a repair that failed")

    def _goes_on(self) -> None:
        self.state = TRAINS
        self.broken.clear()
        self._faulty = False

    # ---- inside

    def _wait(self, behind: str) -> None:
        self._patience = asyncio.get_running_loop().call_later(self.script.patience, self._exit, f"no order after {behind}")

    async def _report_faults(self, ranks: Iterable[int]) -> int:
        message = wire.ProcessFaultRequest(jobId=self.job_id, faultRanks=self._fault_ranks(ranks))
        return await self._report("fault", lambda stub: stub.ReportProcessFault(message))

    def _fault_ranks(self, ranks: Iterable[int]) -> list[wire.FaultRank]:
        return [wire.FaultRank(rankId=str(rank), faultType=self.broken[rank]) for rank in sorted(ranks)]
