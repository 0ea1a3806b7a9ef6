"""Streams of a gateway: at most one for each job, the newest. Orders are written onto them one by one."""

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from google.protobuf.message import Message

from rekindle.errors import NotAttached
from rekindle.model.dialogue import Order
from rekindle.otlp import exporter
from rekindle.policy.dialogue.reports import answer_to
from rekindle.spans import mode_place, within
from rekindle_wire import recover_pb2 as wire
from workers.gateway.messages import keep_alive, signal_of, stress_list, switch_list, switches
from workers.gateway.secondary_streams import Side, SideStreams

KEEP_ALIVE = 5.0
"""Seconds between keep-alives. Source: the wire contract."""

SLOTS = 50
"""Number of parts of that time. Streams are distributed over them, so that keep-alives are not all sent in the same moment."""

MOST_WANTED = 1_000
"""Maximum number of jobs that are remembered since a recovery waits for their stream. One may have ended, or have its stream at
another gateway, which nobody tells: the oldest are dropped."""

GAP = 0.1
"""Seconds between two orders of a job: TaskD's loop takes one in 100 ms, and loses the first of two. Source: measured."""

logger = logging.getLogger("gateway")

Delivery = tuple[Order, str, asyncio.Future[None]]


class Writer(Protocol):
    async def write(self, message: wire.ProcessManageSignal) -> None: ...


@dataclass(eq=False)
class Stream:
    """Subscription of one job."""

    job_id: str
    session: str
    client: str = ""
    """Address of the client, without its port."""
    recovery: str = ""
    """Workflow id of the recovery that gave the last order."""
    slot: int = 0
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    told: bool = False
    """True if the job's workflow may know of the stream."""
    unanswered_since: float | None = None
    """Time of the loop at which the last order was written that wants a report. None: a report has arrived since."""
    ended: str = ""
    """Reason why the gateway ended the stream; empty: it is open."""
    outbox: asyncio.Queue[Delivery | None] = field(default_factory=asyncio.Queue)
    """Orders to be written; None stands for a keep-alive, or for the end of the stream."""
    _keep_alive: wire.ProcessManageSignal | None = None
    _newest: str = ""
    """Newest attempt of which the stream has an order: a uuid begins with its time."""

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self.outbox.put_nowait(None)

    def take(self, order: Order, recovery: str) -> asyncio.Future[None]:
        """Puts an order of a recovery into the outbox.

        Returns:
            A future that is done when the order is written, and fails with NotAttached if the stream breaks before.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._newest = max(self._newest, order.uuid)
        self.outbox.put_nowait((order, recovery, written))
        return written

    def take_if_its_own(self, order: Order, recovery: str) -> None:
        """Takes the order of a receipt if it is for this subscription. Otherwise, or if the stream breaks, its recovery sends
        it again. A receipt that comes after an order of a newer attempt is late: that recovery has ended."""
        if order.session == self.session and not self.ended and order.uuid >= self._newest:
            self.take(order, recovery).add_done_callback(lambda written: written.cancelled() or written.exception())

    def beat(self) -> None:
        """Queues a keep-alive unless the outbox holds a message: one that still waits for a slow client is enough."""
        if self.outbox.empty():
            self.outbox.put_nowait(None)

    async def serve(self, writer: Writer) -> None:
        """Writes orders and keep-alives until the stream is ended."""
        self._keep_alive = keep_alive(self.job_id, "")
        try:
            while not self.ended:
                delivery = await self.outbox.get()
                if delivery:
                    await self._write(writer, *delivery)
                elif not self.ended:
                    await writer.write(self._keep_alive)
        finally:
            self.end("the stream broke")
            self._refuse_waiting()

    async def _write(self, writer: Writer, order: Order, recovery: str, written: asyncio.Future[None]) -> None:
        if written.cancelled():
            return
        self.recovery = recovery  # before the order is out: its answer may come at once
        try:
            await writer.write(signal_of(order))
        except BaseException:
            self._refuse(written)
            raise
        self._keep_alive = keep_alive(self.job_id, order.uuid)
        if answer_to(order):
            self.unanswered_since = asyncio.get_running_loop().time()
        if not written.cancelled():
            written.set_result(None)
        with within(mode_place(recovery) if exporter() else None):
            logger.info("order sent", extra={"job": self.job_id, "order": order.name, "uuid": order.uuid})
        if not order.at_once:
            await asyncio.sleep(GAP)

    def _refuse(self, written: asyncio.Future[None]) -> None:
        if not written.done():
            written.set_exception(NotAttached(f"the stream of job {self.job_id} broke"))

    def _refuse_waiting(self) -> None:
        while not self.outbox.empty():
            if delivery := self.outbox.get_nowait():
                self._refuse(delivery[-1])


class Streams:
    """All streams of this gateway."""

    def __init__(self, limit: int, keep_alive: float = KEEP_ALIVE, sides: SideStreams | None = None) -> None:
        self._limit, self._keep_alive, self._sides = limit, keep_alive, sides
        self._streams: dict[str, Stream] = {}
        self._slots: list[set[Stream]] = [set() for _ in range(SLOTS)]
        self._opened = 0
        self.wanted: dict[str, None] = {}
        """Jobs without a stream here for which a recovery waits: an order arrived, or the job's workflow reports one. The latest
        are last."""

    def open(self, job_id: str, session: str, client: str = "") -> Stream | None:
        """Opens a stream for a job; an older one is ended. Returns None if the gateway is full."""
        older = self._streams.get(job_id)
        if older is None and len(self._streams) >= self._limit:
            return None
        if older:
            older.end("another subscriber took over")
        self._opened += 1
        stream = self._streams[job_id] = Stream(job_id, session, client, slot=self._opened % SLOTS)
        self._slots[stream.slot].add(stream)
        return stream

    def close(self, stream: Stream) -> None:
        """Removes a stream; a newer one of the job stays."""
        self._slots[stream.slot].discard(stream)
        if self._streams.get(stream.job_id) is stream:
            del self._streams[stream.job_id]

    def of(self, job_id: str) -> Stream | None:
        return self._streams.get(job_id)

    def want(self, job_id: str) -> None:
        """Records that a recovery waits for the job's stream: its clients come before others."""
        self.wanted.pop(job_id, None)
        self.wanted[job_id] = None
        if len(self.wanted) > MOST_WANTED:
            del self.wanted[next(iter(self.wanted))]

    def all(self) -> list[Stream]:
        return list(self._streams.values())

    def unanswered(self) -> list[float]:
        """Returns the ages in seconds of the last orders that want a report, and on whose streams none has arrived since."""
        now = asyncio.get_running_loop().time()
        return [now - one.unanswered_since for one in self.all() if one.unanswered_since is not None]

    def end_session(self, job_id: str, session: str, reason: str) -> None:
        """Ends this subscription of the job if it still is the current one."""
        stream = self._streams.get(job_id)
        if stream and stream.session == session:
            stream.end(reason)

    def end_all(self, reason: str) -> None:
        for stream in self.all():
            stream.end(reason)

    async def keep_alive(self) -> None:
        """Keeps all streams alive, one slot after the other, until it is cancelled: one task and one timer for all of them."""
        while True:
            for slot in self._slots:
                await asyncio.sleep(self._keep_alive / SLOTS)
                for stream in slot:
                    stream.beat()

    async def deliver(self, order: Order, recovery: str) -> None:
        """Sends an order on its job's stream and waits until it is written.

        Args:
            recovery: id of the workflow that sends the order, and receives the reports that answer it.

        Raises:
            NotAttached: the job's stream is not here, or broke.
        """
        stream = self._streams.get(order.job_id)
        if stream is None or stream.ended:
            self.want(order.job_id)
            raise NotAttached(f"the stream of job {order.job_id} is not at this gateway")
        if order.session and order.session != stream.session:
            raise NotAttached(f"job {order.job_id} has subscribed again, and receives all that it lacks")
        if self._sides and (aside := _aside(order)):
            stream.recovery = stream.recovery if order.trace else recovery  # an order of tracing is not answered
            await self._sides.deliver(order.job_id, *aside)
            logger.info("order sent to side streams", extra={"job": order.job_id, "order": order.name, "uuid": order.uuid})
            return
        await stream.take(order, recovery)


def _aside(order: Order) -> tuple[Side, Message] | None:
    """Returns the side stream that an order belongs to and its message; None: it goes onto the main stream."""
    if order.links is not None:
        return Side.LINKS, switch_list(order.job_id, order.links)
    if order.trace is not None:
        return Side.DATA_TRACE, switches(order.trace)
    return (Side.STRESS_TEST, stress_list(order.job_id, order.stress)) if order.stress else None
