"""Service `Recover` of the wire contract, and our `Progress`. Served by the gateway.

Application errors come back in `Status.code` with gRPC status OK, as the contract wants; only what a client should try again
is a gRPC error. The streams write through their context, which grpc.aio allows and the generated stubs do not know.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import grpc

from rekindle.errors import BadInput, Refused, Unavailable
from rekindle.ids import ErrorTypes, Updates
from rekindle.model.recovery import Attachment, Progress, Receipt, Report
from rekindle_wire import protocol_problem, recover_pb2_grpc, training_pb2, training_pb2_grpc
from rekindle_wire import recover_pb2 as wire
from workers.gateway import messages
from workers.gateway.senders import Senders
from workers.gateway.streams import Stream, Streams
from workers.gateway.temporal import Jobs, Rejected

OK = 0
UNREGISTERED = 400
ORDER_MIX = 401
JOB_NOT_EXIST = 402
PROCESS_RECOVER_OFF = 403
UNINITIALIZED = 408
INVALID_PARAMETER = 409
OM_IS_RUNNING = 411
OUT_OF_MAX_JOBS = 500
POD_GROUP = 502

CODES = {
    ErrorTypes.JOB_UNKNOWN: UNREGISTERED,
    ErrorTypes.NOT_REGISTERED: UNREGISTERED,
    ErrorTypes.NOT_INITIALIZED: UNINITIALIZED,
    ErrorTypes.RECOVERY_OFF: PROCESS_RECOVER_OFF,
    ErrorTypes.REPORT_UNEXPECTED: ORDER_MIX,
    ErrorTypes.BETWEEN_MODES: ORDER_MIX,
    ErrorTypes.REQUEST_INVALID: INVALID_PARAMETER,
}

Context = grpc.aio.ServicerContext[object, object]
logger = logging.getLogger("gateway")


class Desk:
    """What all methods do alike: only a pod of the job is listened to, and what is wrong becomes the contract's code."""

    def __init__(self, senders: Senders | None) -> None:
        self._senders = senders

    async def admit(self, context: Context, job_id: str) -> None:
        """Returns when the caller may speak for the job.

        A stranger gets a gRPC error and no code: managers in Go ignore the code of a report, 403 ends the older Python client,
        and any other would be untrue. It may be a pod of the job all the same, whose address the cluster does not know yet; its
        client comes back after a gRPC error, as it does when a gateway is away.

        Raises:
            BadInput: no job has such an id.
        """
        messages.job_id(job_id)
        if self._senders is None:
            return
        try:
            await self._senders.check(job_id, context.peer())
        except Refused as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def answer(self, context: Context, job_id: str, work: Callable[[], Awaitable[Receipt]], unknown: int) -> Receipt:
        """The receipt of some work, or the contract's code for what is wrong. `unknown`: the code for a job that nobody knows."""
        try:
            await self.admit(context, job_id)
            return await work()
        except BadInput as error:
            return Receipt(code=INVALID_PARAMETER, info=str(error))
        except Rejected as error:
            code = unknown if error.kind == ErrorTypes.JOB_UNKNOWN else CODES.get(error.kind, ORDER_MIX)
            return Receipt(code=code, info=str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise


class RecoverService(recover_pb2_grpc.RecoverServicer):
    def __init__(self, jobs: Jobs, streams: Streams, queue: str, desk: Desk) -> None:
        self._jobs, self._streams, self._queue, self._desk = jobs, streams, queue, desk

    async def Init(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        receipt = await self._desk.answer(
            context, request.jobId, lambda: self._jobs.ask(request.jobId, Updates.INITIALIZE), POD_GROUP
        )
        return _status(receipt)

    async def Register(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        receipt = await self._desk.answer(
            context, request.jobId, lambda: self._jobs.ask(request.jobId, Updates.REGISTER_CLIENT), JOB_NOT_EXIST
        )
        return _status(receipt)

    async def HealthCheck(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        """For everybody: it says nothing of the job."""
        return wire.Status(code=OK, info="healthy")

    async def SubscribeProcessManageSignal(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        job_id = request.jobId
        session = uuid.uuid4().hex
        try:
            await self._desk.admit(context, job_id)  # before anything else: a stranger must not end the stream of another
        except BadInput as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        stream = self._streams.open(job_id, session)
        if stream is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the gateway holds as many streams as it may")
        refused = False
        try:
            attachment = Attachment(queue=self._queue, session=session, since=datetime.now(UTC))
            receipt = await self._desk.answer(
                context, job_id, lambda: self._jobs.ask(job_id, Updates.ATTACH, attachment), UNREGISTERED
            )
            refused = receipt.code != OK
            if refused:
                await context.abort(grpc.StatusCode.UNKNOWN, receipt.info)
            logger.info("attached", extra={"job": job_id, "role": request.role, "session": session})
            await context.send_initial_metadata(())
            await stream.serve(_Writer(context))
            await context.abort(grpc.StatusCode.ABORTED, stream.ended)
        finally:
            self._streams.close(stream)
            if not refused:
                await self._detach(stream)

    async def _detach(self, stream: Stream) -> None:
        logger.info("detached", extra={"job": stream.job_id, "session": stream.session, "reason": stream.ended})
        try:
            await self._jobs.ask(stream.job_id, Updates.DETACH, stream.session)
        except (Rejected, Unavailable) as error:
            logger.info("not told", extra={"job": stream.job_id, "error": str(error)})

    async def ReportStopComplete(self, request: wire.StopCompleteRequest, context: Context) -> wire.Status:
        return await self._report(context, request.jobId, lambda: messages.stop_complete(request))

    async def ReportRecoverStrategy(self, request: wire.RecoverStrategyRequest, context: Context) -> wire.Status:
        return await self._report(context, request.jobId, lambda: messages.strategies(request))

    async def ReportRecoverStatus(self, request: wire.RecoverStatusRequest, context: Context) -> wire.Status:
        return await self._report(context, request.jobId, lambda: messages.status(request))

    async def _report(self, context: Context, job_id: str, read: Callable[[], Report]) -> wire.Status:
        async def stored() -> Receipt:
            report = read()
            receipt = await self._jobs.report(job_id, report)
            logger.info("report", extra={"job": job_id, "kind": report.kind, "code": report.code})
            return receipt

        return _status(await self._desk.answer(context, job_id, stored, UNREGISTERED))

    async def ReportProcessFault(self, request: wire.ProcessFaultRequest, context: Context) -> wire.Status:
        async def stored() -> Receipt:
            fault = messages.process_fault(request, f"process/{uuid.uuid4().hex}", datetime.now(UTC))
            await self._jobs.ask(request.jobId, Updates.FAULT, fault)
            logger.info("process fault", extra={"job": request.jobId, "ranks": fault.ranks})
            return Receipt(info="receive ReportProcessFault")

        return _status(await self._desk.answer(context, request.jobId, stored, UNREGISTERED))

    # ---- maintenance of links and stress tests: not possible now, whoever asks

    async def SwitchNicTrack(self, request: wire.SwitchNics, context: Context) -> wire.Status:
        return _not_possible_now("link switching")

    async def ReplySwitchNicResult(self, request: wire.SwitchResult, context: Context) -> wire.Status:
        return _not_possible_now("link switching")

    async def StressTest(self, request: wire.StressTestParam, context: Context) -> wire.Status:
        return _not_possible_now("the stress test")

    async def ReplyStressTestResult(self, request: wire.StressTestResult, context: Context) -> wire.Status:
        return _not_possible_now("the stress test")

    async def SubscribeSwitchNicSignal(self, request: wire.SwitchNicRequest, context: Context) -> None:  # type: ignore[override]
        await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={request.jobID} is not swtiching nic")

    async def SubscribeStressTestResponse(self, request: wire.StressTestRequest, context: Context) -> None:  # type: ignore[override]
        await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={request.jobID} is not stress testing")

    async def SubscribeNotifySwitch(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={request.jobId}: link switching is not possible now")

    async def SubscribeNotifyExecStressTest(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={request.jobId}: the stress test is not possible now")


class ProgressService(training_pb2_grpc.ProgressServicer):
    def __init__(self, jobs: Jobs, desk: Desk) -> None:
        self._jobs, self._desk = jobs, desk

    async def ReportProgress(self, request: training_pb2.ProgressReport, context: Context) -> training_pb2.ProgressReceipt:
        async def stored() -> Receipt:
            if problem := protocol_problem(request.protocol):
                raise BadInput(problem)
            if request.step < 1 or request.steps_lost < 0:
                raise BadInput("step: accepted are numbers from 1; steps_lost: from 0")
            progress = Progress(incarnation=request.incarnation, step=request.step, steps_lost=request.steps_lost)
            return await self._jobs.ask(request.job_id, Updates.PROGRESS, progress)

        receipt = await self._desk.answer(context, request.job_id, stored, UNREGISTERED)
        return training_pb2.ProgressReceipt(code=receipt.code, info=receipt.info)


class _Writer:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def write(self, message: wire.ProcessManageSignal) -> None:
        await self._context.write(message)


def _status(receipt: Receipt) -> wire.Status:
    return wire.Status(code=receipt.code, info=receipt.info)


def _not_possible_now(what: str) -> wire.Status:
    return wire.Status(code=OM_IS_RUNNING, info=f"{what} is not possible now")
