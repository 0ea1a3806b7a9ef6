"""Service of the manager for its ranks: one stream for each rank process, and one for each launcher. Served by `main`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from grpc import StatusCode
from grpc.aio import ServicerContext

from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rank_process import Outbox, RankProcess
from rekindle_wire import protocol_problem
from rekindle_wire.training_pb2 import Hello, ManagerMessage, PodOrder, PodState, RankMessage
from rekindle_wire.training_pb2_grpc import PodsServicer, RanksServicer

log = logging.getLogger(__name__)

SILENCE_SECONDS = 8.0
"""Seconds after which a silent rank or launcher counts as frozen. Each sends a message each second, whatever training does.

Source: MindIO's limit.
"""


class RanksService(RanksServicer):
    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def Join(
        self,
        request_iterator: AsyncIterator[RankMessage],
        context: ServicerContext[RankMessage, ManagerMessage],
    ) -> AsyncIterator[ManagerMessage]:
        first = await anext(request_iterator, None)
        if first is None:
            return
        if problem := self._problem(first.hello):
            log.error("process refused", extra={"rank": first.hello.rank, "reason": problem})
            await context.abort(StatusCode.FAILED_PRECONDITION, problem)
        if first.hello.last_words:
            self._membership.hear_last_words(first.hello)
            return
        process, outbox = self._membership.enroll(first.hello, first.generation)
        listening = asyncio.create_task(self._listen(process, request_iterator, outbox))
        try:
            while (message := await outbox.get()) is not None:
                yield message
        finally:
            listening.cancel()
            self._membership.depart(process, outbox)

    def _problem(self, hello: Hello) -> str:
        """Returns why a process is refused. Empty: it is not."""
        membership = self._membership
        if problem := protocol_problem(hello.protocol) or membership.shape_problem(hello):
            return problem
        return "" if hello.last_words else membership.parts_problem(hello)

    async def _listen(self, process: RankProcess, messages: AsyncIterator[RankMessage], outbox: Outbox) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    message = await anext(messages)
                self._membership.hear(process, message)
        except TimeoutError:
            log.warning("silent rank disconnected", extra={"rank": process.rank})
        except StopAsyncIteration:
            pass
        finally:
            outbox.put_nowait(None)


class PodsService(PodsServicer):
    def __init__(self, pods: Pods) -> None:
        self._pods = pods

    async def Attach(
        self,
        request_iterator: AsyncIterator[PodState],
        context: ServicerContext[PodState, PodOrder],
    ) -> AsyncIterator[PodOrder]:
        first = await anext(request_iterator, None)
        if first is None or self._pods.over:
            return
        if problem := protocol_problem(first.protocol):
            log.error("launcher refused", extra={"reason": problem})
            await context.abort(StatusCode.FAILED_PRECONDITION, problem)
        pod = self._pods.attach()
        self._pods.hear(pod, first)
        listening = asyncio.create_task(self._listen(pod.outbox, request_iterator, lambda state: self._pods.hear(pod, state)))
        try:
            while (order := await pod.outbox.get()) is not None:
                yield order
        finally:
            listening.cancel()
            self._pods.detach(pod)

    @staticmethod
    async def _listen(
        outbox: asyncio.Queue[PodOrder | None], states: AsyncIterator[PodState], hear: Callable[[PodState], None]
    ) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    state = await anext(states)
                hear(state)
        except TimeoutError:
            log.warning("silent launcher disconnected")
        except StopAsyncIteration:
            pass
        finally:
            outbox.put_nowait(None)
