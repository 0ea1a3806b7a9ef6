"""Connection of the manager to the control plane: ClusterD's contract as TaskD uses it, and our own Progress. Run by `main`.

It never gives up: Init, Register and Subscribe are repeated after every failure, and a report is repeated until it is answered.
"""

import asyncio
import functools
import logging
import random
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from rekindle_training import names, wire
from rekindle_training.manager.identity import Identity
from rekindle_training.manager.reports import Metadata, Report, Reports
from rekindle_wire import JOB, PROTOCOL, SPOKEN, TRACE
from rekindle_wire.recover_pb2 import (
    ProcessFaultRequest,
    ProcessManageSignal,
    RecoverStatusRequest,
    RecoverStrategyRequest,
    Status,
    StopCompleteRequest,
    StressTestResult,
    SwitchResult,
)
from rekindle_wire.recover_pb2_grpc import RecoverStub
from rekindle_wire.training_pb2 import ProgressReceipt, ProgressReport, SpansReport, TimeReport
from rekindle_wire.training_pb2_grpc import ProgressStub

if TYPE_CHECKING:
    from rekindle_wire.recover_pb2_grpc import RecoverAsyncStub
    from rekindle_wire.training_pb2_grpc import ProgressAsyncStub

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 1.0
SLOWEST_RETRY_SECONDS = 60.0
"""Most seconds between two tries to report times, for which nothing waits."""
INVALID_PARAMETER = 409
"""Code of a report that is never taken. Source: the wire contract."""
NOT_SERVED_SECONDS = 30.0
"""Seconds after which a gateway that does not know a stream may have been replaced by one that does."""
CALL_SECONDS = 10.0
"""Seconds for one call. A gateway may hold a report for some seconds while it stores it."""
INTRODUCTION_SECONDS = 60.0
"""Seconds for Init and Register.

A gateway to which all jobs come back at once serves them in turn, and a call that is cancelled starts at the end again.
"""
REPORT_SECONDS = 900.0
"""Seconds for which a report is repeated.

After that the control plane has gone on without it. Source: its limits, of 15 minutes.
"""

CALLS: Mapping[type[Report], str] = {
    ProcessFaultRequest: "ReportProcessFault",
    StopCompleteRequest: "ReportStopComplete",
    RecoverStrategyRequest: "ReportRecoverStrategy",
    RecoverStatusRequest: "ReportRecoverStatus",
    SwitchResult: "ReplySwitchNicResult",
    StressTestResult: "ReplyStressTestResult",
}

Answer = TypeVar("Answer")
Order = TypeVar("Order")


class NotAccepted(Exception):
    """Init or Register was answered with an error code. It is retried, because the code may be another one soon."""


class Gateway:
    """Connection to the control plane, for the whole life of the manager."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        reports: Reports,
        obey: Callable[[ProcessManageSignal], None],
        notices: Mapping[str, Callable[[Any], None]],
    ) -> None:
        """Args:
        obey: called with each order of the main stream.
        notices: functions for the orders of the other streams, by the names of their calls.
        """
        self._address, self._identity = address, identity
        self._reports = reports
        self._obey, self._notices = obey, notices
        self._registered = asyncio.Event()
        self._traced: asyncio.Queue[str] = asyncio.Queue()
        """Spans that answers have named. Empty: training began outside of a recovery."""

    async def run(self) -> None:
        async with grpc.aio.insecure_channel(self._address, options=list(wire.CLIENT)) as channel:
            recover: RecoverAsyncStub = RecoverStub(channel)
            progress: ProgressAsyncStub = ProgressStub(channel)
            main = self._listen("orders", lambda: self._orders(recover), self._obey, LAST_RETRY_SECONDS)
            others = [self._listen_behind_main(recover, call, obey) for call, obey in self._notices.items()]
            told = (self._tell(recover), self._tell_progress(progress), self._tell_times(progress), self._tell_spans(progress))
            await asyncio.gather(main, *others, *told)

    async def _listen(
        self, what: str, stream: Callable[[], AsyncIterable[Order]], obey: Callable[[Order], None], not_served: float
    ) -> None:
        """Receives the orders of a stream, and reconnects whenever the stream ends.

        Args:
            not_served: seconds to wait before a retry if the gateway does not know this stream.
        """
        retry = FIRST_RETRY_SECONDS
        while True:
            try:
                async for order in stream():
                    retry = FIRST_RETRY_SECONDS
                    obey(order)
                log.info("stream ended, reconnecting", extra={"stream": what})
            except (grpc.aio.AioRpcError, NotAccepted) as error:
                log.warning(
                    "stream rejected, reconnecting", extra={"stream": what, "gateway": self._address, "reason": _reason(error)}
                )
                if _is_not_served(error):
                    await asyncio.sleep(not_served)
            await asyncio.sleep(random.uniform(0, retry))  # all jobs of a gateway that died come back, and not in one moment
            retry = min(retry * 1.5, LAST_RETRY_SECONDS)

    async def _orders(self, stub: "RecoverAsyncStub") -> AsyncIterable[ProcessManageSignal]:
        await self._register(stub)
        self._registered.set()
        async for signal in stub.SubscribeProcessManageSignal(self._identity.client, metadata=self._identity.metadata()):
            yield signal

    async def _listen_behind_main(self, stub: "RecoverAsyncStub", call: str, obey: Callable[[Any], None]) -> None:
        """Receives the orders of a stream other than the main one. A gateway accepts it only after Register."""
        await self._registered.wait()
        await self._listen(
            call, lambda: getattr(stub, call)(self._identity.client, metadata=self._identity.metadata()), obey, NOT_SERVED_SECONDS
        )

    async def _register(self, stub: "RecoverAsyncStub") -> None:
        told = (*self._identity.metadata(), (SPOKEN, f"{PROTOCOL} {_release()}"))
        init = stub.Init(self._identity.stranger, timeout=INTRODUCTION_SECONDS, metadata=told)
        _check("Init", await init)
        self._identity.learn(str(dict(await init.trailing_metadata() or ()).get(JOB, "")))
        if not self._identity.job_id:
            raise NotAccepted(f"Init named no job: this gateway is an older one, set {names.JOB_ID}")
        register = stub.Register(self._identity.client, timeout=INTRODUCTION_SECONDS, metadata=self._identity.metadata())
        _check("Register", await register)

    async def _tell(self, stub: "RecoverAsyncStub") -> None:
        await self._identity.known.wait()
        while True:
            report, metadata = await self._reports.waiting.get()
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    status, trace = await _until_answered(functools.partial(self._report, stub, report, metadata))
                if trace:
                    self._traced.put_nowait(trace)
                log.info("report answered", extra={"code": status.code, "reason": status.info})
            except TimeoutError:
                log.warning("report dropped, never answered")
            self._reports.waiting.task_done()

    async def _tell_progress(self, stub: "ProgressAsyncStub") -> None:
        """Reports the first step of each life of the ranks under this manager. Never returns."""
        await self._identity.known.wait()
        while True:
            report = await self._reports.progressed
            self._reports.begun_again.clear()
            await self._tell_first_step(stub, report)
            await self._reports.begun_again.wait()

    async def _tell_first_step(self, stub: "ProgressAsyncStub", report: ProgressReport) -> None:
        while not self._reports.begun_again.is_set():
            receipt, trace = await _until_answered(functools.partial(self._report_progress, stub, report))
            if receipt.code == 0:
                self._traced.put_nowait(trace)
                self._reports.progress_accepted.set()
                return
            log.warning("progress rejected, retrying", extra={"code": receipt.code, "reason": receipt.info})
            await asyncio.sleep(LAST_RETRY_SECONDS)

    async def _tell_times(self, stub: "ProgressAsyncStub") -> None:
        """Reports for how long the job trains, the oldest stretch first. Never returns.

        A report that can never be taken is dropped: later ones wait for it. A gateway of an earlier version takes none.
        """
        await self._identity.known.wait()
        wait = LAST_RETRY_SECONDS
        while True:
            await self._reports.timed.wait()
            report = self._reports.times[min(self._reports.times)]
            try:
                receipt = await self._report_time(stub, report)
                is_over = receipt.code in (0, INVALID_PARAMETER)
                if receipt.code == INVALID_PARAMETER:
                    log.warning("time report refused", extra={"reason": receipt.info})
            except grpc.aio.AioRpcError as error:
                is_over = _is_not_served(error)
            if is_over:
                self._reports.time_told(report)
                wait = LAST_RETRY_SECONDS
            else:
                await asyncio.sleep(wait)
                wait = min(2 * wait, SLOWEST_RETRY_SECONDS)  # a job whose workflow does not know the report takes none for long

    async def _tell_spans(self, stub: "ProgressAsyncStub") -> None:
        """Sends what was recorded for traces, behind each answer that names one. Never returns. Nothing waits for it."""
        while True:
            trace, intervals = await self._traced.get(), self._reports.spans.take()
            if trace and intervals:
                report = SpansReport(job_id=self._identity.job_id, trace=trace, intervals=intervals, protocol=PROTOCOL)
                try:
                    await stub.ReportSpans(report, timeout=CALL_SECONDS, metadata=self._identity.metadata())
                except grpc.aio.AioRpcError as error:
                    log.info("spans dropped", extra={"reason": _reason(error)})

    async def _report(self, stub: "RecoverAsyncStub", report: Report, metadata: Metadata) -> tuple[Status, str]:
        report.jobId = self._identity.job_id
        send, told = getattr(stub, CALLS[type(report)]), (*metadata, *self._identity.metadata())
        call = send(report, timeout=CALL_SECONDS, metadata=told, wait_for_ready=True)
        return await call, await _trace(call)

    def _report_time(self, stub: "ProgressAsyncStub", report: TimeReport) -> Awaitable[ProgressReceipt]:
        report.job_id = self._identity.job_id
        return stub.ReportTime(report, timeout=CALL_SECONDS, metadata=self._identity.metadata())

    async def _report_progress(self, stub: "ProgressAsyncStub", report: ProgressReport) -> tuple[ProgressReceipt, str]:
        report.job_id = self._identity.job_id
        call = stub.ReportProgress(report, timeout=CALL_SECONDS, metadata=self._identity.metadata(), wait_for_ready=True)
        return await call, await _trace(call)


async def _trace(call: "grpc.aio.UnaryUnaryCall[Any, Any]") -> str:
    """Returns the span that the answer names for what was done; empty: the gateway exports no traces, or knows none."""
    return str(dict(await call.trailing_metadata() or ()).get(TRACE, ""))


def _release() -> str:
    try:
        return version("rekindle-recovery-training")
    except PackageNotFoundError:  # its files were copied into an image
        return "unknown"


def _check(step: str, status: Status) -> None:
    if status.code:
        raise NotAccepted(f"{step} answered {status.code} {status.info}")


async def _until_answered(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeats a call with the same content until an answer arrives. The caller handles the answer's code.

    Where the gateway is away, the call waits for the connection, so that a recovery does not wait for the end of a pause.
    """
    retry = FIRST_RETRY_SECONDS
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            log.warning("call unanswered, retrying", extra={"reason": _reason(error)})
        await asyncio.sleep(retry)
        retry = min(retry * 1.5, LAST_RETRY_SECONDS)


def _reason(error: Exception) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _is_not_served(error: Exception) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED
