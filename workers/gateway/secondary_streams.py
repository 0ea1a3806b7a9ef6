"""Additional streams of a job, to which its manager subscribes at its start for requests of operators, which are rare.

These are link switches, stress tests and changes of tracing. Each stream is kept open until the client leaves, as a client
without it would ask for it every other second. There is at most one for each job and kind, the newest.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

import grpc
from google.protobuf.message import Message

from rekindle.errors import NotAttached
from workers.gateway.access import Context, Desk

Now = Callable[[], Awaitable[Message | None]]


class Side(StrEnum):
    LINKS = "links"
    STRESS_TEST = "stress test"
    DATA_TRACE = "data trace"


@dataclass(eq=False)
class _Held:
    ended: str = ""
    """Reason why the gateway ended the stream; empty: it is open."""
    outbox: asyncio.Queue[tuple[Message, asyncio.Future[None]] | None] = field(default_factory=asyncio.Queue)
    """Messages to be written, each with a future that is done when it is written; None ends the stream."""

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self.outbox.put_nowait(None)

    async def serve(self, context: Context) -> None:
        try:
            while (delivery := await self.outbox.get()) is not None:
                message, written = delivery
                if written.cancelled():
                    continue
                try:
                    await context.write(message)
                except BaseException:
                    _refuse(written)
                    raise
                if not written.done():
                    written.set_result(None)
        finally:
            self.end("the stream broke")
            while not self.outbox.empty():
                if delivery := self.outbox.get_nowait():
                    _refuse(delivery[1])


def _refuse(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_exception(NotAttached("the stream broke"))


class SideStreams:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._held: dict[tuple[str, Side], _Held] = {}
        self._over = ""

    async def hold(self, context: Context, job_id: str, side: Side, now: Now | None = None) -> None:
        """Keeps a stream open until its end. The client need not be registered yet: managers subscribe here before Init.

        Args:
            now: returns the message that holds at the beginning of the stream, or None if there is none.
        """
        async with self._desk.subscription(context, job_id):
            key, held = (job_id, side), _Held()
            if older := self._held.get(key):
                older.end("another subscriber took over")
            self._held[key] = held
            if self._over:
                held.end(self._over)
            try:
                await context.send_initial_metadata(())
                if now and (message := await now()) and held.outbox.empty():  # else a newer message waits
                    await context.write(message)
                await held.serve(context)
            finally:
                if self._held.get(key) is held:
                    del self._held[key]
            await context.abort(grpc.StatusCode.ABORTED, held.ended)

    async def deliver(self, job_id: str, side: Side, message: Message) -> None:
        """Sends a message on a stream and returns when it is written.

        Raises:
            NotAttached: no such stream of the job is here, or it broke.
        """
        held = self._held.get((job_id, side))
        if held is None or held.ended:
            raise NotAttached(f"job {job_id} has not subscribed to {side} at this gateway")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        held.outbox.put_nowait((message, written))
        await written

    def end_all(self, reason: str) -> None:
        self._over = reason
        for held in self._held.values():
            held.end(reason)
