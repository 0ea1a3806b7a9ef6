"""The streams that a gateway holds: at most one a job, the newest. Orders go onto them one by one."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from rekindle.errors import NotAttached
from rekindle.model.recovery import Order
from rekindle_wire import recover_pb2 as wire
from workers.gateway.messages import keep_alive, signal_of

KEEP_ALIVE = 5.0
"""Seconds between keep-alives. Source: the wire contract."""

GAP = 0.1
"""Seconds between two orders of a job: the manager's loop takes one in 100 ms, and loses the first of two. Source: tried."""

logger = logging.getLogger("gateway")


class Writer(Protocol):
    async def write(self, message: wire.ProcessManageSignal) -> None: ...


@dataclass
class Stream:
    """One subscription of one job."""

    job_id: str
    session: str
    keep_alive: float = KEEP_ALIVE
    uuid: str = ""
    ended: str = ""
    """Why the gateway ended it; empty: it lives."""
    orders: asyncio.Queue[tuple[Order, asyncio.Future[None]]] = field(default_factory=asyncio.Queue)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self.over.set()

    async def serve(self, writer: Writer) -> None:
        """Writes orders and keep-alives until the stream is ended."""
        try:
            while not self.ended:
                await self._write_next(writer)
        finally:
            self.end("the stream broke")
            self._refuse_waiting()

    async def _write_next(self, writer: Writer) -> None:
        next_order = asyncio.ensure_future(self.orders.get())
        over = asyncio.ensure_future(self.over.wait())
        try:
            done, _ = await asyncio.wait({next_order, over}, timeout=self.keep_alive, return_when=asyncio.FIRST_COMPLETED)
            if next_order in done:
                await self._write(writer, *next_order.result())
            elif not done:
                await writer.write(keep_alive(self.job_id, self.uuid))
        finally:
            next_order.cancel()
            over.cancel()

    async def _write(self, writer: Writer, order: Order, written: asyncio.Future[None]) -> None:
        if written.cancelled():
            return
        try:
            await writer.write(signal_of(order))
        except BaseException:
            self._refuse(written)
            raise
        self.uuid = order.uuid
        if not written.cancelled():
            written.set_result(None)
        logger.info("order", extra={"job": self.job_id, "order": order.name, "uuid": order.uuid})
        await asyncio.sleep(GAP)

    def _refuse(self, written: asyncio.Future[None]) -> None:
        if not written.done():
            written.set_exception(NotAttached(f"the stream of job {self.job_id} broke"))

    def _refuse_waiting(self) -> None:
        while not self.orders.empty():
            self._refuse(self.orders.get_nowait()[1])


class Streams:
    """All streams of this gateway."""

    def __init__(self, limit: int, keep_alive: float = KEEP_ALIVE) -> None:
        self._limit, self._keep_alive = limit, keep_alive
        self._streams: dict[str, Stream] = {}

    def open(self, job_id: str, session: str) -> Stream | None:
        """A stream for a job; an older one is ended. None: the gateway is full."""
        older = self._streams.get(job_id)
        if older is None and len(self._streams) >= self._limit:
            return None
        if older:
            older.end("another subscriber took over")
        stream = self._streams[job_id] = Stream(job_id, session, self._keep_alive)
        return stream

    def close(self, stream: Stream) -> None:
        """Forgets a stream; a newer one of the job stays."""
        if self._streams.get(stream.job_id) is stream:
            del self._streams[stream.job_id]

    def end_session(self, job_id: str, session: str, reason: str) -> None:
        """Ends this very subscription, if it is still here."""
        stream = self._streams.get(job_id)
        if stream and stream.session == session:
            stream.end(reason)

    def end_all(self, reason: str) -> None:
        for stream in list(self._streams.values()):
            stream.end(reason)

    async def deliver(self, order: Order) -> None:
        """Puts an order on its job's stream and waits until it is written.

        Raises:
            NotAttached: the job's stream is not here, or broke.
        """
        stream = self._streams.get(order.job_id)
        if stream is None or stream.ended:
            raise NotAttached(f"the stream of job {order.job_id} is not at this gateway")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream.orders.put_nowait((order, written))
        await written
