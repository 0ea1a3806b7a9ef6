"""The manager's way upwards: ClusterD's contract, spoken as TaskD speaks it, and our own Progress beside it. Run by `main`.

Nothing here gives up: Init, Register, Subscribe come back after every failure, and a report is repeated until it was answered.
"""

import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import grpc

from rekindle_training import wire
from rekindle_training.manager.reports import Report, Reports
from rekindle_wire import ATTEMPT
from rekindle_wire.recover_pb2 import (
    ClientInfo,
    ProcessManageSignal,
    RecoverStatusRequest,
    RecoverStrategyRequest,
    Status,
    StopCompleteRequest,
)
from rekindle_wire.recover_pb2_grpc import RecoverStub
from rekindle_wire.training_pb2_grpc import ProgressStub

if TYPE_CHECKING:
    from rekindle_wire.recover_pb2_grpc import RecoverAsyncStub
    from rekindle_wire.training_pb2_grpc import ProgressAsyncStub

log = logging.getLogger(__name__)

ROLE = "taskd"
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 1.0
CALL_SECONDS = 10.0
"""One call; a gateway may hold a report for some seconds while it stores it."""
INTRODUCTION_SECONDS = 60.0
"""Init and Register: a gateway that all jobs come back to at once serves them in turn, and who hangs up is the last again."""
REPORT_SECONDS = 900.0
"""How long a report is repeated; later than that the control plane has gone on without it. Source: its limits, of 15 minutes."""


Answer = TypeVar("Answer")


class NotAccepted(Exception):
    """Init or Register answered with a code; it may be another one in a moment, so it is tried again."""


class Gateway:
    """The connection to the control plane, as long as the manager lives."""

    def __init__(self, address: str, job_id: str, reports: Reports, obey: Callable[[ProcessManageSignal], None]) -> None:
        self._address = address
        self._client = ClientInfo(jobId=job_id, role=ROLE)
        self._reports = reports
        self._obey = obey

    async def run(self) -> None:
        async with grpc.aio.insecure_channel(self._address, options=list(wire.CLIENT)) as channel:
            recover: RecoverAsyncStub = RecoverStub(channel)
            progress: ProgressAsyncStub = ProgressStub(channel)
            await asyncio.gather(self._listen(recover), self._tell(recover), self._tell_progress(progress))

    async def _listen(self, stub: "RecoverAsyncStub") -> None:
        retry = FIRST_RETRY_SECONDS
        while True:
            try:
                await self._register(stub)
                async for signal in stub.SubscribeProcessManageSignal(self._client):
                    retry = FIRST_RETRY_SECONDS
                    self._obey(signal)
                log.info("the stream of orders ended, coming back")
            except (grpc.aio.AioRpcError, NotAccepted) as error:
                log.warning("not attached, coming back", extra={"gateway": self._address, "reason": _reason(error)})
            await asyncio.sleep(random.uniform(0, retry))  # all jobs of a gateway that died come back, and not in one moment
            retry = min(retry * 1.5, LAST_RETRY_SECONDS)

    async def _register(self, stub: "RecoverAsyncStub") -> None:
        for step, call in (("Init", stub.Init), ("Register", stub.Register)):
            status = await call(self._client, timeout=INTRODUCTION_SECONDS)
            if status.code:
                raise NotAccepted(f"{step} answered {status.code} {status.info}")

    async def _tell(self, stub: "RecoverAsyncStub") -> None:
        while True:
            report, attempt = await self._reports.waiting.get()
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    status = await _until_answered(functools.partial(_call, stub, report, attempt))
                log.info("report answered", extra={"code": status.code, "reason": status.info})
            except TimeoutError:
                log.warning("a report was never answered")
            self._reports.waiting.task_done()

    async def _tell_progress(self, stub: "ProgressAsyncStub") -> None:
        report = await self._reports.progressed
        while True:
            receipt = await _until_answered(lambda: stub.ReportProgress(report, timeout=CALL_SECONDS))
            if receipt.code == 0:
                self._reports.progress_accepted.set()
                return
            log.warning("progress is not accepted, telling again", extra={"code": receipt.code, "reason": receipt.info})
            await asyncio.sleep(LAST_RETRY_SECONDS)


def _call(stub: "RecoverAsyncStub", report: Report, attempt: str) -> Awaitable[Status]:
    if isinstance(report, RecoverStrategyRequest):
        return stub.ReportRecoverStrategy(report, timeout=CALL_SECONDS)
    if isinstance(report, RecoverStatusRequest):
        known = ((ATTEMPT, attempt),) if attempt.isascii() and attempt.isprintable() else ()
        return stub.ReportRecoverStatus(report, timeout=CALL_SECONDS, metadata=known)
    if isinstance(report, StopCompleteRequest):
        return stub.ReportStopComplete(report, timeout=CALL_SECONDS)
    return stub.ReportProcessFault(report, timeout=CALL_SECONDS)


async def _until_answered(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The same content on a fresh call, until an answer comes back: any, its code is for the caller."""
    retry = FIRST_RETRY_SECONDS
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            log.warning("not answered, asking again", extra={"reason": _reason(error)})
        await asyncio.sleep(retry)
        retry = min(retry * 1.5, LAST_RETRY_SECONDS)


def _reason(error: Exception) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
