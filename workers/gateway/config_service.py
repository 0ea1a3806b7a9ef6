"""Service `config.Config` of the wire contract, which serves rank tables of inference jobs: answers that it is not served."""

from typing import NoReturn

import grpc

from rekindle_wire import config_pb2 as wire
from rekindle_wire import config_pb2_grpc
from workers.gateway.access import Context

WORDS = (
    "config.Config tells the rank tables of inference jobs (MindIE), which Rekindle does not manage: "
    "ask a ClusterD that does. Rekindle recovers training jobs: /Recover, /job.Job and /fault.Fault are served"
)


class ConfigService(config_pb2_grpc.ConfigServicer):
    async def Register(self, request: wire.ClientInfo, context: Context) -> wire.Status:
        await _refuse(context)

    async def SubscribeRankTable(self, request: wire.ClientInfo, context: Context) -> None:  # type: ignore[override]
        await _refuse(context)


async def _refuse(context: Context) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, WORDS)
    raise AssertionError
