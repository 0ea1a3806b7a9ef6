"""The manager's way downwards: one stream for each process of the job's ranks. Served by `main`."""

import asyncio
import logging
from collections.abc import AsyncIterator

from grpc import StatusCode
from grpc.aio import ServicerContext

from rekindle_training.manager.rank_process import Outbox, RankProcess
from rekindle_training.manager.roster import Roster
from rekindle_wire import protocol_problem
from rekindle_wire.training_pb2 import ManagerMessage, RankMessage
from rekindle_wire.training_pb2_grpc import RanksServicer

log = logging.getLogger(__name__)

SILENCE_SECONDS = 8.0
"""Ranks send a heartbeat each second, whatever training does; one that is silent longer is frozen. Source: MindIO's limit."""


class RanksService(RanksServicer):
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    async def Join(
        self,
        request_iterator: AsyncIterator[RankMessage],
        context: ServicerContext[RankMessage, ManagerMessage],
    ) -> AsyncIterator[ManagerMessage]:
        first = await anext(request_iterator, None)
        if first is None:
            return
        if problem := protocol_problem(first.hello.protocol):
            log.error("refused a process", extra={"rank": first.hello.rank, "reason": problem})
            await context.abort(StatusCode.FAILED_PRECONDITION, problem)
        process, outbox = self._roster.enroll(first.hello, first.generation)
        listening = asyncio.create_task(self._listen(process, request_iterator, outbox))
        try:
            while (message := await outbox.get()) is not None:
                yield message
        finally:
            listening.cancel()
            self._roster.depart(process, outbox)

    async def _listen(self, process: RankProcess, messages: AsyncIterator[RankMessage], outbox: Outbox) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    message = await anext(messages)
                self._roster.hear(process, message)
        except TimeoutError:
            log.warning("a rank is silent, hanging up", extra={"rank": process.rank})
        except StopAsyncIteration:
            pass
        finally:
            outbox.put_nowait(None)
