"""Service `Recover` of the wire contract, and our `Progress`. Served by the gateway.

Application errors come back in `Status.code` with gRPC status OK, as the contract wants; only what a client should try again
is a gRPC error. The streams write through their context, which grpc.aio allows and the generated stubs do not know.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import grpc

from rekindle import __version__
from rekindle.errors import BadInput
from rekindle.ids import Updates
from rekindle.model.attachment import Progress
from rekindle.model.dialogue import Receipt, Report
from rekindle.model.fault import FaultReport
from rekindle.otlp import exporter
from rekindle.spans import Place, mode_place, within
from rekindle_wire import (
    ATTEMPT,
    INFO,
    JOB,
    REPORT,
    SPOKEN,
    TRACE,
    protocol_problem,
    recover_pb2_grpc,
    training_pb2,
    training_pb2_grpc,
)
from rekindle_wire import recover_pb2 as wire
from workers.gateway import messages
from workers.gateway.access import JOB_NOT_EXIST, OK, ORDER_MIX, POD_GROUP, UNREGISTERED, Context, Desk
from workers.gateway.attachments import Attachments
from workers.gateway.caller_auth import address_of
from workers.gateway.job_series import SERIES
from workers.gateway.job_workflows import Jobs
from workers.gateway.limits import Bucket
from workers.gateway.operations import Operations
from workers.gateway.registration_cache import Introductions
from workers.gateway.secondary_streams import Side
from workers.gateway.training_spans import Told, training_spans

logger = logging.getLogger("gateway")

LONGEST_PROTOCOL, LONGEST_RELEASE = 6, 40
"""Maximum lengths of what a manager says of its version."""

LONGEST_ID = 64
"""Longest id of a report, in characters."""

TIMES_AT_ONCE, TIMES_A_SECOND = 20, 0.1
"""Number of time reports that a job may send at once, and then each second. A run of a workflow takes some thousand updates,
which its incidents need."""

MOST_LIMITED = 10_000
"""Number of jobs for which that is counted."""


class RecoverService(recover_pb2_grpc.RecoverServicer):
    def __init__(
        self,
        jobs: Jobs,
        introductions: Introductions,
        attachments: Attachments,
        operations: Operations,
        desk: Desk,
    ) -> None:
        self._jobs, self._introductions, self._attachments = jobs, introductions, attachments
        self._operations, self._desk = operations, desk

    async def Init(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        """Answers `Init`. A manager that does not know its job's id receives it in the trailing metadata."""
        job_id = await self._desk.job_of(context, request.jobId)

        async def initialized() -> Receipt:
            _refuse_another_protocol(context)
            return await self._introductions.initialize(job_id)

        answer = await self._desk.answer(context, job_id, initialized, POD_GROUP)
        if job_id != request.jobId:
            context.set_trailing_metadata(((JOB, job_id),))
        return _status(answer)

    async def Register(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        job_id = request.jobId
        return _status(await self._desk.answer(context, job_id, lambda: self._introductions.register(job_id), JOB_NOT_EXIST))

    async def HealthCheck(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        """Answers any caller: the answer contains nothing about the job."""
        return wire.Status(code=OK, info="healthy")

    async def SubscribeProcessManageSignal(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        async with self._desk.subscription(context, request.jobId):
            contact = await self._introductions.subscriber(request.jobId)  # before it may end another's stream
            if contact.recovering:
                self._attachments.want(request.jobId)
            async with self._attachments.stream(request.jobId, address_of(context.peer())) as stream:
                logger.info("subscriber attached", extra={"job": stream.job_id, "role": request.role, "session": stream.session})
                await context.send_initial_metadata(())
                await stream.serve(_Writer(context))
                await context.abort(grpc.StatusCode.ABORTED, stream.ended)

    async def ReportStopComplete(self, request: wire.StopCompleteRequest, context: Context) -> wire.Status:
        return await self._report(context, request.jobId, lambda: messages.stop_complete(request))

    async def ReportRecoverStrategy(self, request: wire.RecoverStrategyRequest, context: Context) -> wire.Status:
        return await self._report(context, request.jobId, lambda: messages.strategies(request))

    async def ReportRecoverStatus(self, request: wire.RecoverStatusRequest, context: Context) -> wire.Status:
        attempt = _metadata(context, ATTEMPT)
        return await self._report(context, request.jobId, lambda: messages.status(request, attempt))

    async def _report(self, context: Context, job_id: str, read: Callable[[], Report]) -> wire.Status:
        async def stored() -> Receipt:
            report = read()
            stream = self._attachments.here(job_id)
            recovery, is_here = stream.recovery if stream else "", stream is not None
            if stream:
                stream.unanswered_since = None
            receipt = await self._jobs.report(job_id, report, recovery, _report_id(context), is_here=is_here)
            with within(_name_trace(context, recovery)):
                logger.info("report received", extra={"job": job_id, "kind": report.kind.value, "code": report.code})
            return receipt

        return _status(await self._desk.answer(context, job_id, stored, UNREGISTERED))

    async def ReportProcessFault(self, request: wire.ProcessFaultRequest, context: Context) -> wire.Status:
        async def stored() -> Receipt:
            stream = self._attachments.here(request.jobId)
            fault = messages.process_fault(request, stream.session if stream else "", datetime.now(UTC))
            attach = partial(self._attachments.tell, stream) if stream else None
            report = FaultReport(faults=(fault,), takes_order=stream is not None)
            receipt = await self._jobs.report_faults(request.jobId, report, attach, _report_id(context))
            logger.info("process faults received", extra={"job": request.jobId, "ranks": fault.ranks})
            if stream and receipt.order:
                _name_trace(context, receipt.recovery)
                stream.take_if_its_own(receipt.order, receipt.recovery)
            return Receipt(info="receive ReportProcessFault")

        return _status(await self._desk.answer(context, request.jobId, stored, UNREGISTERED))

    # ---- maintenance of links

    async def SwitchNicTrack(self, request: wire.SwitchNics, context: Context) -> wire.Status:
        return _status(await self._operations.switch_links(context, request.jobID, lambda: messages.node_links(request)))

    async def SubscribeSwitchNicSignal(self, request: wire.SwitchNicRequest, context: Context) -> None:  # type: ignore[override]
        words = await self._operations.switched(context, request.jobID)
        await context.write(wire.SwitchNicResponse(jobID=request.jobID, msg=words))

    async def SubscribeNotifySwitch(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        await self._operations.sides.hold(context, request.jobId, Side.LINKS)

    async def ReplySwitchNicResult(self, request: wire.SwitchResult, context: Context) -> wire.Status:
        attempt, info = _metadata(context, ATTEMPT), _metadata(context, INFO)
        return await self._report(context, request.jobId, lambda: messages.links_switched(request, attempt, info))

    # ---- stress tests

    async def StressTest(self, request: wire.StressTestParam, context: Context) -> wire.Status:
        return _status(await self._operations.test(context, request.jobID, lambda: messages.stress_request(request)))

    async def SubscribeStressTestResponse(self, request: wire.StressTestRequest, context: Context) -> None:  # type: ignore[override]
        words = await self._operations.tested(context, request.jobID)
        await context.write(wire.StressTestResponse(jobID=request.jobID, msg=words))

    async def ReplyStressTestResult(self, request: wire.StressTestResult, context: Context) -> wire.Status:
        attempt, info = _metadata(context, ATTEMPT), _metadata(context, INFO)
        return await self._report(context, request.jobId, lambda: messages.stress_results(request, attempt, info))

    async def SubscribeNotifyExecStressTest(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        await self._operations.sides.hold(context, request.jobId, Side.STRESS_TEST)


class ProgressService(training_pb2_grpc.ProgressServicer):
    def __init__(self, jobs: Jobs, introductions: Introductions, attachments: Attachments, desk: Desk) -> None:
        self._jobs, self._introductions, self._attachments, self._desk = jobs, introductions, attachments, desk
        self._told = Told()
        self._times: defaultdict[str, Bucket] = defaultdict(lambda: Bucket(TIMES_A_SECOND, TIMES_AT_ONCE))

    async def ReportProgress(self, request: training_pb2.ProgressReport, context: Context) -> training_pb2.ProgressReceipt:
        async def stored() -> Receipt:
            if problem := protocol_problem(request.protocol):
                raise BadInput(problem)
            if request.step < 1 or request.steps_lost < 0 or request.world_size < 0:
                raise BadInput("step: accepted are numbers from 1; steps_lost and world_size: from 0")
            stream = self._attachments.here(request.job_id)
            progress = Progress(
                incarnation=request.incarnation,
                step=request.step,
                steps_lost=request.steps_lost,
                session=stream.session if stream else "",
                ranks=request.world_size,
            )
            if exporter():  # asked before, as the first step may end the recovery
                _name_trace(context, (await self._jobs.status(request.job_id)).recovery, is_ours=True)
            receipt = await self._jobs.ask(request.job_id, Updates.PROGRESS, progress)
            self._introductions.progressed(request.job_id, progress)
            return receipt

        receipt = await self._desk.answer(context, request.job_id, stored, UNREGISTERED)
        return training_pb2.ProgressReceipt(code=receipt.code, info=receipt.info)

    async def ReportTime(self, request: training_pb2.TimeReport, context: Context) -> training_pb2.ProgressReceipt:
        async def stored() -> Receipt:
            if problem := protocol_problem(request.protocol):
                raise BadInput(problem)
            report = messages.time_report(request, time.time())
            if len(self._times) > MOST_LIMITED:
                self._times.clear()
            if not await self._times[request.job_id].take():
                return Receipt(
                    code=ORDER_MIX, info=f"{TIMES_AT_ONCE} reports at once, then {TIMES_A_SECOND:g} a second: try again"
                )
            receipt = await self._jobs.ask(request.job_id, Updates.TIME, report)
            if receipt.counted:
                SERIES.count(request.job_id, receipt.counted)
            return receipt

        receipt = await self._desk.answer(context, request.job_id, stored, UNREGISTERED)
        return training_pb2.ProgressReceipt(code=receipt.code, info=receipt.info)

    async def ReportSpans(self, request: training_pb2.SpansReport, context: Context) -> training_pb2.ProgressReceipt:
        async def exported() -> Receipt:
            if problem := protocol_problem(request.protocol):
                raise BadInput(problem)
            if (export := exporter()) is not None:
                status = await self._jobs.status(request.job_id)
                spans = training_spans(request, status.state)
                self._told.add(request)
                export.export(spans)
            return Receipt(info="receive ReportSpans")

        receipt = await self._desk.answer(context, request.job_id, exported, UNREGISTERED)
        return training_pb2.ProgressReceipt(code=receipt.code, info=receipt.info)


class _Writer:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def write(self, message: wire.ProcessManageSignal) -> None:
        await self._context.write(message)


def _status(receipt: Receipt) -> wire.Status:
    return wire.Status(code=receipt.code, info=receipt.info)


def _name_trace(context: Context, recovery: str, *, is_ours: bool = False) -> Place | None:
    """Returns the span of a recovery, and names it in the answer to our training side, which then sends its own spans.

    None: traces are off, or the recovery is unknown.

    Args:
        is_ours: True if only our training side makes this call. Otherwise it is known by the id of its report.
    """
    place = mode_place(recovery) if exporter() else None
    if place and (_report_id(context) or is_ours):
        context.set_trailing_metadata(((TRACE, place.traceparent),))
    return place


def _report_id(context: Context) -> str:
    """Returns the id that our training side gives a report; empty: other clients give none, and each call is a report."""
    said = _metadata(context, REPORT)
    return said if said.isalnum() and said.isascii() and len(said) <= LONGEST_ID else ""


def _refuse_another_protocol(context: Context) -> None:
    """Raises BadInput if the caller is a manager of ours that speaks another protocol. It attaches no stream then."""
    spoken, _, release = _metadata(context, SPOKEN).partition(" ")
    if spoken and (problem := protocol_problem(int(spoken) if spoken.isdecimal() and len(spoken) < LONGEST_PROTOCOL else 0)):
        raise BadInput(f"{problem} (the training side is of release {release[:LONGEST_RELEASE]}, the gateway of {__version__})")


def _metadata(context: Context, key: str) -> str:
    """Returns a metadata value that our training side sends beyond the contract; empty: none."""
    said = dict(context.invocation_metadata() or ()).get(key, "")
    return said.decode(errors="replace") if isinstance(said, bytes) else said
