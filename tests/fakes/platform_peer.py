"""Platform that is as strict as the original: it accepts exactly the fields of the contract, and does not use our code."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import grpc
from google.protobuf import unknown_fields

from tests.support.contract import messages

Check = Callable[[Any], None]

LIMIT = 60.0
"""Time limit in seconds for an expected message."""


def _strings(names: str) -> tuple[str, ...]:
    return tuple(f"string {name}" for name in names.split())


_CLIENT = _strings("jobId role")
FAULT = messages(
    {
        "ClientInfo": _CLIENT,
        "Status": ("int32 code", "string info"),
        "SwitchFaultInfo": (
            "string faultCode",
            "string switchChipId",
            "string switchPortId",
            "string faultTime",
            "string faultLevel",
        ),
        "DeviceFaultInfo": (
            "string deviceId",
            "string deviceType",
            "repeated string faultCodes",
            "string faultLevel",
            "repeated string faultType",
            "repeated string faultReason",
            "repeated SwitchFaultInfo switchFaultInfos",
            "repeated string faultLevels",
        ),
        "NodeFaultInfo": (
            "string nodeName",
            "string nodeIP",
            "string nodeSN",
            "string faultLevel",
            "repeated DeviceFaultInfo faultDevice",
        ),
        "FaultMsgSignal": ("string uuid", "string jobId", "string signalType", "repeated NodeFaultInfo nodeFaultInfo"),
        "FaultQueryResult": ("int32 code", "string info", "FaultMsgSignal faultSignal"),
    }
)
_SUMMARY = (
    "uuid jobId jobName namespace frameWork jobStatus time cmIndex total HcclJson deleteTime sharedTorIp masterAddr operator sid"
)
JOB = messages(
    {
        "ClientInfo": ("string role", "3 string clientId"),
        "Status": ("int32 code", "string info", "string clientId"),
        "JobSummarySignal": _strings(_SUMMARY),
        "JobSummarySignalList": ("repeated JobSummarySignal jobSummarySignals", "string ReportTime", "int32 JobTotalNum"),
    }
)
TRACE = messages(
    {
        "ProfilingSwitch": tuple(
            f"string {name}" for name in ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")
        ),
        "DataTypeReq": ("string jobNsName", "ProfilingSwitch profilingSwitch"),
        "DataTypeRes": ("string message", "int32 code"),
        "DataStatusReq": ("string jobNsName",),
        "DataStatusRes": ("string message", "ProfilingSwitch profilingSwitch", "int32 code"),
        "ProfilingClientInfo": _CLIENT,
    }
)
CONFIG = messages(
    {"ClientInfo": _CLIENT, "Status": ("int32 code", "string info"), "RankTableStream": _strings("jobId rankTable")}
)


class Heard:
    """Messages of a stream, each checked on arrival."""

    def __init__(self, call: Any, check: Check) -> None:
        self.call, self._check = call, check
        self.messages: list[Any] = []

    async def next(self, wanted: Callable[[Any], bool] = bool) -> Any:
        """Returns the next wanted message; earlier ones are also kept in `messages`."""
        async with asyncio.timeout(LIMIT):
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self._check(message)
                self.messages.append(message)
                if wanted(message):
                    return message
        raise AssertionError(f"the stream ended: {await self.call.details()}")

    async def end(self) -> str:
        """Returns the status and text with which the stream ends, after any messages."""
        async with asyncio.timeout(LIMIT):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return f"{(await self.call.code()).name}: {await self.call.details()}"


class Platform:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def ask(self, path: str, kinds: dict[str, Any], request: str, answer: str, **fields: Any) -> Any:
        method: Any = self._channel.unary_unary(
            path, request_serializer=kinds[request].SerializeToString, response_deserializer=kinds[answer].FromString
        )
        found = await method(kinds[request](**fields), timeout=LIMIT)
        assert not unknown_fields.UnknownFieldSet(found), found
        return found

    def listen(self, path: str, kinds: dict[str, Any], request: str, answer: str, check: Check, **fields: Any) -> Heard:
        method: Any = self._channel.unary_stream(
            path, request_serializer=kinds[request].SerializeToString, response_deserializer=kinds[answer].FromString
        )
        return Heard(method(kinds[request](**fields)), check)

    # ---- faults

    async def register_for_faults(self, job_id: str, role: str = "mindie") -> Any:
        return await self.ask("/fault.Fault/Register", FAULT, "ClientInfo", "Status", jobId=job_id, role=role)

    def faults(self, job_id: str, role: str = "mindie") -> Heard:
        path = "/fault.Fault/SubscribeFaultMsgSignal"
        return self.listen(path, FAULT, "ClientInfo", "FaultMsgSignal", check_faults, jobId=job_id, role=role)

    async def faults_now(self, job_id: str, role: str = "mindie") -> Any:
        found = await self.ask("/fault.Fault/GetFaultMsgSignal", FAULT, "ClientInfo", "FaultQueryResult", jobId=job_id, role=role)
        if found.code == 200:
            check_faults(found.faultSignal)
        return found

    # ---- jobs

    async def register_for_jobs(self, role: str = "CCAgent") -> Any:
        return await self.ask("/job.Job/Register", JOB, "ClientInfo", "Status", role=role)

    def jobs(self, client_id: str, role: str = "CCAgent") -> Heard:
        path = "/job.Job/SubscribeJobSummarySignal"
        return self.listen(path, JOB, "ClientInfo", "JobSummarySignal", check_job, role=role, clientId=client_id)

    def lists_of_jobs(self, client_id: str, role: str = "CCAgent") -> Heard:
        path = "/job.Job/SubscribeJobSummarySignalList"
        return self.listen(path, JOB, "ClientInfo", "JobSummarySignalList", check_jobs, role=role, clientId=client_id)

    # ---- tracing

    async def switch_tracing(self, job: str, **switches: str) -> Any:
        path, wanted = "/TrainingDataTrace/ModifyTrainingDataTraceSwitch", TRACE["ProfilingSwitch"](**switches)
        return await self.ask(path, TRACE, "DataTypeReq", "DataTypeRes", jobNsName=job, profilingSwitch=wanted)

    async def tracing(self, job: str) -> Any:
        path = "/TrainingDataTrace/GetTrainingDataTraceSwitch"
        return await self.ask(path, TRACE, "DataStatusReq", "DataStatusRes", jobNsName=job)

    def told_of_tracing(self, job_id: str) -> Heard:
        """Subscribes to tracing as a job's manager."""
        path = "/TrainingDataTrace/SubscribeDataTraceSwitch"
        return self.listen(path, TRACE, "ProfilingClientInfo", "DataStatusRes", lambda _: None, jobId=job_id, role="taskd")


def check_faults(signal: Any) -> None:
    UUID(signal.uuid)
    assert not unknown_fields.UnknownFieldSet(signal), signal
    assert signal.signalType == ("fault" if signal.nodeFaultInfo else "normal"), signal
    order = ("Healthy", "SubHealthy", "UnHealthy")
    for node in signal.nodeFaultInfo:
        assert node.nodeName, signal
        assert node.faultDevice, signal
        assert order.index(node.faultLevel) == max(order.index(one.faultLevel) for one in node.faultDevice), signal
        assert all(one.deviceType in ("Node", "NPU", "Storage", "CPU", "Network") and one.deviceId for one in node.faultDevice)


def check_job(signal: Any) -> None:
    UUID(signal.uuid)
    assert not unknown_fields.UnknownFieldSet(signal), signal
    assert signal.jobStatus in ("pending", "running", "complete", "failed"), signal
    assert signal.operator in ("add", "delete"), signal
    assert (int(signal.cmIndex), int(signal.total)) == (0, 1), signal
    assert all((signal.jobId, signal.jobName, signal.namespace, signal.frameWork)), signal
    assert int(signal.time) > 0, signal
    assert int(signal.deleteTime or 1) > 0, signal


def check_jobs(listed: Any) -> None:
    assert not unknown_fields.UnknownFieldSet(listed), listed
    assert int(listed.ReportTime) > 10**12, listed
    assert len(listed.jobSummarySignals) <= listed.JobTotalNum, listed
    for signal in listed.jobSummarySignals:
        check_job(signal)


@asynccontextmanager
async def platform(address: str) -> AsyncIterator[Platform]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield Platform(channel)
