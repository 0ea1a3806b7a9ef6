"""What the manager tells the control plane. Made by the procedures, delivered by `gateway.py` in the order of their making."""

import asyncio
import logging
import uuid
from collections.abc import Mapping

from rekindle_wire import PROTOCOL
from rekindle_wire.recover_pb2 import (
    FaultRank,
    ProcessFaultRequest,
    RecoverStatusRequest,
    RecoverStrategyRequest,
    Status,
    StopCompleteRequest,
)
from rekindle_wire.training_pb2 import ProgressReport

log = logging.getLogger(__name__)

MIGRATION, CONTINUE, EXIT, RETRY, RECOVER = "migration", "continue", "exit", "retry", "recover"
STOPPED = RECOVERED = 0
RETRY_FAILED, FAILED = 405, 406
MEMORY_FAULT, NORMAL_FAULT, NETWORK_FAULT = "0", "1", "2"

Report = RecoverStrategyRequest | RecoverStatusRequest | ProcessFaultRequest | StopCompleteRequest

Types = Mapping[int, str]
"""Of faults, by rank."""


class Reports:
    """One manager's life of them."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._incarnation = uuid.uuid4().hex
        self.waiting: asyncio.Queue[tuple[Report, str]] = asyncio.Queue()
        """With the attempt that each answers; empty: the contract alone says which."""
        self.progressed: asyncio.Future[ProgressReport] = asyncio.get_running_loop().create_future()
        self.progress_accepted = asyncio.Event()

    async def all_told(self) -> None:
        await self.waiting.join()
        if self.progressed.done():
            await self.progress_accepted.wait()

    def strategies(self, *offered: str, faults: Types | None = None) -> None:
        log.info("report: strategies", extra={"offered": ",".join(offered)})
        self._tell(RecoverStrategyRequest(jobId=self._job_id, strategies=offered, faultRanks=_fault_ranks(faults or {})))

    def stop_complete(self, code: int, info: str, faults: Types) -> None:
        log.info("report: training has stopped", extra={"code": code, "reason": info, "ranks": sorted(faults)})
        status = Status(code=code, info=info)
        self._tell(StopCompleteRequest(jobId=self._job_id, status=status, faultRanks=_fault_ranks(faults)))

    def status(self, code: int, info: str, strategy: str = MIGRATION, attempt: str = "") -> None:
        """How a strategy ended: `continue`, of a migration, when training goes on on the old pod, because the backup died.

        Without the `status` message the original control plane would crash.
        """
        log.info("report: status", extra={"code": code, "reason": info, "strategy": strategy})
        status = Status(code=code, info=info)
        self._tell(RecoverStatusRequest(jobId=self._job_id, status=status, strategy=strategy), attempt)

    def process_fault(self, faults: Types) -> None:
        log.info("report: process fault", extra={"ranks": sorted(faults)})
        self._tell(ProcessFaultRequest(jobId=self._job_id, faultRanks=_fault_ranks(faults)))

    def _tell(self, report: Report, attempt: str = "") -> None:
        self.waiting.put_nowait((report, attempt))

    def progress(self, step: int, steps_lost: int) -> None:
        """Training advances. Said once in a manager's life."""
        if not self.progressed.done():
            log.info("report: progress", extra={"step": step, "steps_lost": steps_lost})
            report = ProgressReport(
                job_id=self._job_id, incarnation=self._incarnation, step=step, steps_lost=steps_lost, protocol=PROTOCOL
            )
            self.progressed.set_result(report)


def _fault_ranks(faults: Types) -> list[FaultRank]:
    return [FaultRank(rankId=str(rank), faultType=kind) for rank, kind in sorted(faults.items())]
