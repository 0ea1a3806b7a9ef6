"""Control plane of one planned switch: it orders the switch when all ranks stand after a step, and records its end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from rekindle_training.launcher.drill import traces
from rekindle_wire.recover_pb2 import FaultRank, ProcessManageSignal, Status
from rekindle_wire.recover_pb2_grpc import RecoverServicer, add_RecoverServicer_to_server
from rekindle_wire.training_pb2 import ProgressReceipt, ProgressReport
from rekindle_wire.training_pb2_grpc import ProgressServicer, add_ProgressServicer_to_server

JOB = "drill"
LOOK_SECONDS = 0.1


class SwitchGateway(RecoverServicer, ProgressServicer):
    """Control plane of one job. It answers every call with code 0."""

    def __init__(self, rank: int, step: int, trace: Path, result: Path) -> None:
        """Args:
        rank: the one that moves.
        step: the step after which all ranks pause by themselves.
        result: file that appears when the switch has ended; see `ended`.
        """
        self._rank, self._step, self._trace, self._result = rank, step, trace, result
        self._orders: asyncio.Queue[ProcessManageSignal] = asyncio.Queue()

    async def serve(self, port: int) -> int:
        """Serves until its process is ended."""
        logging.getLogger("grpc").setLevel(logging.CRITICAL)  # of calls that this control plane does not answer
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_RecoverServicer_to_server(self, server)
        add_ProgressServicer_to_server(self, server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        while traces.read(self._trace).steps < self._step:  # noqa: ASYNC110  # other processes write it
            await asyncio.sleep(LOOK_SECONDS)
        moved = [FaultRank(rankId=str(self._rank), faultType="1")]
        self._orders.put_nowait(
            ProcessManageSignal(uuid=JOB, jobId=JOB, signalType="hot-switch", actions=["hot switch"], faultRanks=moved)
        )
        await server.wait_for_termination()
        return 0

    def _end(self, problem: str) -> Status:
        scratch = self._result.with_suffix(".new")
        scratch.write_text(json.dumps(problem))
        scratch.replace(self._result)
        return Status()

    async def Init(self, request: Any, context: Any) -> Status:
        return Status()

    async def Register(self, request: Any, context: Any) -> Status:
        return Status()

    async def SubscribeProcessManageSignal(self, request: Any, context: Any) -> AsyncIterator[ProcessManageSignal]:
        yield ProcessManageSignal(jobId=JOB, signalType="keep-alive")
        while True:
            yield await self._orders.get()

    async def ReportRecoverStrategy(self, request: Any, context: Any) -> Status:
        if "migration" not in request.strategies:
            return self._end("training could not pause")
        self._orders.put_nowait(
            ProcessManageSignal(
                uuid=JOB, jobId=JOB, signalType="changeStrategy", actions=["change_strategy"], changeStrategy="migration"
            )
        )
        return Status()

    async def ReportRecoverStatus(self, request: Any, context: Any) -> Status:
        moved = request.status.code == 0 and request.strategy == "migration"
        return self._end("" if moved else request.status.info or f"strategy {request.strategy}, code {request.status.code}")

    async def ReportProcessFault(self, request: Any, context: Any) -> Status:
        return self._end(f"ranks {', '.join(fault.rankId for fault in request.faultRanks)} failed")

    async def ReportStopComplete(self, request: Any, context: Any) -> Status:
        return Status()

    async def ReportProgress(self, request: ProgressReport, context: Any) -> ProgressReceipt:
        return ProgressReceipt()


def ended(result: Path) -> str | None:
    """Returns why the switch failed. Empty: the rank has moved. None: the switch goes on."""
    return json.loads(result.read_text()) if result.exists() else None
