"""Disconnects the clients of a gateway that cannot reach Temporal, and refuses new ones, so that other gateways serve them.

Orders for a job go to the queue of the gateway that holds its stream, and this one receives none. Its clients would wait until
they give up, while another gateway behind the same address could serve them.
"""

import asyncio
import logging

from grpc_health.v1 import health, health_pb2
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from workers.gateway.streams import Streams
from workers.gateway.watch import Watch

LOOK_SECONDS = 2.0
"""Seconds between two checks, and the time limit of each."""

LONG_SECONDS = 10.0
"""Seconds without an answer after which clients are disconnected. Source: the wire contract, outages: all clients bear 10 s."""

WORDS = "this gateway cannot reach Temporal; another one may"

logger = logging.getLogger("gateway")


class CutOff:
    def __init__(self, client: Client, streams: Streams, watch: Watch, status: health.aio.HealthServicer) -> None:
        self._client, self._streams, self._watch, self._status = client, streams, watch, status
        self._since: float | None = None
        """Time at which Temporal was first not reached; None: it answers."""
        self._is_cut_off = False

    async def watch(self) -> None:
        """Checks the connection to Temporal at intervals, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await self._answers():
                await self._reached()
            else:
                await self._not_reached(asyncio.get_running_loop().time())

    async def _reached(self) -> None:
        self._since = None
        if self._is_cut_off:
            self._is_cut_off = False
            logger.info("Temporal reached again")
            await self._status.set("", health_pb2.HealthCheckResponse.SERVING)

    async def _not_reached(self, now: float) -> None:
        self._since = now if self._since is None else self._since
        if self._is_cut_off or now - self._since < LONG_SECONDS:
            return
        self._is_cut_off = True
        logger.warning("Temporal lost, clients sent away", extra={"streams": len(self._streams.all())})
        await self._status.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        self._streams.end_all(WORDS)
        self._watch.end_present(WORDS)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=False)
        except (RPCError, TimeoutError):
            return False
        return True
