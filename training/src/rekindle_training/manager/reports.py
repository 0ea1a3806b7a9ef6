"""Reports of the manager to the control plane. Created by the procedures.

Sent by `gateway.py` in the order of their creation; it writes the id of the job into each.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping

from rekindle_training.manager.spans import Spans
from rekindle_wire import ATTEMPT, INFO, PROTOCOL, REPORT
from rekindle_wire.recover_pb2 import (
    FaultRank,
    ProcessFaultRequest,
    RecoverStatusRequest,
    RecoverStrategyRequest,
    Status,
    StopCompleteRequest,
    StressTestOpResult,
    StressTestRankResult,
    StressTestResult,
    SwitchResult,
)
from rekindle_wire.training_pb2 import ProgressReport, TimeReport

log = logging.getLogger(__name__)

MIGRATION, CONTINUE, EXIT, RETRY, RECOVER, DUMP = "migration", "continue", "exit", "retry", "recover", "dump"
DOWNGRADE, UPGRADE = "downgrade", "upgrade"
"""Strategies by which training goes on with fewer ranks, and with more again."""
STOPPED = RECOVERED = 0
RETRY_FAILED, FAILED = 405, 406
MEMORY_FAULT, NORMAL_FAULT, NETWORK_FAULT = "0", "1", "2"

LONGEST_INFO = 2000
"""Maximum bytes of a description in metadata. gRPC accepts 8,192 bytes in all."""

Report = (
    RecoverStrategyRequest | RecoverStatusRequest | ProcessFaultRequest | StopCompleteRequest | SwitchResult | StressTestResult
)

Metadata = tuple[tuple[str, str | bytes], ...]
"""Metadata of a report: values for which the contract has no field."""

Types = Mapping[int, str]
"""Types of faults, by rank."""


class Reports:
    """Reports of one manager."""

    def __init__(self, spans: Spans | None = None) -> None:
        """Args:
        spans: what was done between the reports, for traces. None: nothing.
        """
        self.spans = spans or Spans()
        self._incarnation = uuid.uuid4().hex
        self.waiting: asyncio.Queue[tuple[Report, Metadata]] = asyncio.Queue()
        self.progressed: asyncio.Future[ProgressReport] = asyncio.get_running_loop().create_future()
        self.times: dict[float, TimeReport] = {}
        """Reports of stretches that were not received yet, the latest of each, by the beginning of the stretch."""
        self.timed = asyncio.Event()
        """Set while there are any."""
        self.times_told = asyncio.Event()
        self.progress_accepted = asyncio.Event()
        self.begun_again = asyncio.Event()
        """Set when all ranks began again together, so that there is another first step to report."""

    async def all_told(self) -> None:
        await self.waiting.join()
        if self.times:
            await self.times_told.wait()
        if self.progressed.done():
            await self.progress_accepted.wait()

    def strategies(self, *offered: str, faults: Types | None = None) -> None:
        log.info("strategies report sent", extra={"offered": ",".join(offered)})
        self._tell(RecoverStrategyRequest(strategies=offered, faultRanks=_fault_ranks(faults or {})))

    def stop_complete(self, code: int, info: str, faults: Types) -> None:
        log.info("stop report sent", extra={"code": code, "reason": info, "ranks": sorted(faults)})
        status = Status(code=code, info=info)
        self._tell(StopCompleteRequest(status=status, faultRanks=_fault_ranks(faults)))

    def status(self, code: int, info: str, strategy: str = MIGRATION, attempt: str = "") -> None:
        """Reports how a strategy ended.

        A migration is answered with `continue` if training goes on on the old pod because the backup died.

        Without the `status` message the original control plane would crash.
        """
        log.info("status report sent", extra={"code": code, "reason": info, "strategy": strategy})
        status = Status(code=code, info=info)
        self._tell(RecoverStatusRequest(status=status, strategy=strategy), _of_attempt(attempt))

    def links_switched(self, *, result: bool, info: str, attempt: str) -> None:
        """Reports a link switch. If the result is false, all ranks use the links that they had before."""
        log.info("link switch report sent", extra={"result": result, "reason": info})
        self._tell(SwitchResult(result=result), (*_of_attempt(attempt), _in_words(info)))

    def stress_tested(self, results: Mapping[int, Mapping[str, tuple[str, str]]], info: str, attempt: str) -> None:
        """Reports a stress test.

        Args:
            results: code and result line of each check, by rank and then by the check's name.
        """
        log.info("device test report sent", extra={"ranks": len(results), "result": info})
        told = {
            str(rank): StressTestRankResult(
                rankResult={name: StressTestOpResult(code=code, result=line) for name, (code, line) in of_rank.items()}
            )
            for rank, of_rank in results.items()
        }
        self._tell(StressTestResult(stressResult=told), (*_of_attempt(attempt), _in_words(info)))

    def process_fault(self, faults: Types) -> None:
        log.info("process fault report sent", extra={"ranks": sorted(faults)})
        self._tell(ProcessFaultRequest(faultRanks=_fault_ranks(faults)))

    def _tell(self, report: Report, metadata: Metadata = ()) -> None:
        self.waiting.put_nowait((report, ((REPORT, uuid.uuid4().hex), *metadata)))

    def begin_again(self, step: int, steps_lost: int, world_size: int) -> None:
        """Reports the first step of a further life, after that of an earlier one: all processes are other ones than before."""
        self._incarnation = uuid.uuid4().hex
        self.progressed = asyncio.get_running_loop().create_future()
        self.progress_accepted.clear()
        self.begun_again.set()
        self.progress(step, steps_lost, world_size)

    def time(self, report: TimeReport) -> None:
        """Reports for how long the job has trained. Nothing waits for it."""
        log.debug("time report sent", extra={"step": report.step, "began": report.now.began})
        self.times[report.now.began] = report
        self.times_told.clear()
        self.timed.set()

    def time_told(self, report: TimeReport) -> None:
        """Notes that a report was received. A later one of the same stretch is still to be sent."""
        if self.times.get(report.now.began) is report:
            del self.times[report.now.began]
        if not self.times:
            self.timed.clear()
            self.times_told.set()

    def progress(self, step: int, steps_lost: int, world_size: int) -> None:
        """Reports that training advances. Sent once in a life of the ranks."""
        if not self.progressed.done():
            log.info("progress report sent", extra={"step": step, "steps_lost": steps_lost})
            report = ProgressReport(
                incarnation=self._incarnation,
                step=step,
                steps_lost=steps_lost,
                protocol=PROTOCOL,
                world_size=world_size,
            )
            self.progressed.set_result(report)


def _of_attempt(attempt: str) -> Metadata:
    """Returns the metadata that names the attempt.

    Empty if there is none: then only the contract says to what this is the answer.
    """
    return ((ATTEMPT, attempt),) if attempt and attempt.isascii() and attempt.isprintable() else ()


def _in_words(info: str) -> tuple[str, bytes]:
    return INFO, info.encode()[:LONGEST_INFO].decode(errors="ignore").encode()


def _fault_ranks(faults: Types) -> list[FaultRank]:
    return [FaultRank(rankId=str(rank), faultType=kind) for rank, kind in sorted(faults.items())]
