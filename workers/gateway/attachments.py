"""Sends the streams of this gateway to the workflows of their jobs: a few jobs at a time, and again in regular rounds.

Clients of a gateway that died come back all at once, and Temporal bears some hundred updates a second: further updates wait here.
Reports and faults do not pass here, and do not wait. A `TrainingJob` that was lost and registered again receives its stream and
its progress in the next round.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from rekindle.errors import Unavailable
from rekindle.ids import ErrorTypes, Updates
from rekindle.model.attachment import Attachment
from workers.gateway.concurrency import Admission, Lanes
from workers.gateway.job_workflows import SLOW, Jobs, Rejected
from workers.gateway.registration_cache import Introductions
from workers.gateway.streams import Stream, Streams

IN_FLIGHT = 32
"""Largest number of attachments that are sent to Temporal concurrently. Source: tried with 1,000 jobs on two cores: with more,
many time out and none is quicker."""

PATIENCE = 60.0
"""Seconds that a client waits for its turn. A client that gives up earlier joins the end of the queue again."""

ROUND = 10.0
"""Seconds of a round in which every attachment is offered again, if there are few of them."""

OFFERS = 20
"""Largest number of attachments that are offered again per second."""

AGAIN_AT_ONCE = 8
"""Largest number of attachments that are offered again concurrently. A job that does not answer holds up no other one."""

SHUTDOWN = "the gateway shuts down"
OVER = "another subscriber took over"

logger = logging.getLogger("gateway")


class Attachments:
    def __init__(self, jobs: Jobs, streams: Streams, introductions: Introductions, queue: str, every: float = ROUND) -> None:
        """Args:
        queue: task queue of this gateway. every: seconds of a round where there are few streams.
        """
        self._jobs, self._streams, self._introductions = jobs, streams, introductions
        self._queue, self._round = queue, every
        self._lanes, self._admission = Lanes(), Admission(IN_FLIGHT, PATIENCE, streams.wanted, SLOW)
        self._waiting: dict[asyncio.Task[None], Stream] = {}
        self._offered: set[Stream] = set()
        """Streams that are being offered again."""
        self._stopping = False

    @asynccontextmanager
    async def stream(self, job_id: str, client: str) -> AsyncIterator[Stream]:
        """Opens a stream, attaches it to the job's workflow, and yields it. An older stream of the job is ended.

        Args:
            client: its address.

        Raises:
            Rejected: the workflow does not want it.
            Unavailable: the workflow did not answer in time, or the gateway holds as many streams as it may.
        """
        stream = self._streams.open(job_id, uuid.uuid4().hex, client)
        if stream is None:
            raise Unavailable("the gateway holds as many streams as it may")
        try:
            await self._attached(stream)
            self._streams.wanted.pop(job_id, None)
            yield stream
        finally:
            self._streams.close(stream)
            await self._detached(stream)

    def want(self, job_id: str) -> None:
        """Records that a recovery of the job waits for its stream: it comes before others."""
        self._streams.want(job_id)

    def here(self, job_id: str) -> Stream | None:
        """Returns the job's stream at this gateway; None: it is not here."""
        return self._streams.of(job_id)

    async def tell(self, stream: Stream) -> None:
        """Offers an attachment immediately, because the job's workflow misses it. Does nothing if the stream has ended."""
        async with self._lanes.of(stream.job_id):
            if stream.told and not stream.ended:
                await self._offer(stream)

    async def keep_told(self) -> None:
        """Offers every attachment again, round by round, until it is cancelled."""
        places = asyncio.Semaphore(AGAIN_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                streams = self._streams.all()
                pause = max(self._round / max(len(streams), 1), 1 / OFFERS)
                if not streams:
                    await asyncio.sleep(pause)
                for stream in streams:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                    if stream not in self._offered:
                        await places.acquire()
                        self._offered.add(stream)
                        group.create_task(self._offer_again(stream, places))

    def stop(self) -> None:
        """Cancels attachments that wait for their turn. Those that were already sent to Temporal are completed."""
        self._stopping = True
        for task, stream in self._waiting.items():
            if not stream.told:
                task.cancel()

    async def _attached(self, stream: Stream) -> None:
        """Returns when the job's workflow knows of the stream.

        If the caller is cancelled, an attachment that was already sent to Temporal is completed, and one that was not is dropped.
        """
        task = self._begin(stream, self._attach(stream))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Unavailable(SHUTDOWN) from None
            if not stream.told:
                task.cancel()
            raise

    async def _detached(self, stream: Stream) -> None:
        """Detaches a stream that has ended. On shutdown nothing is sent: the clients reconnect to another gateway."""
        if not stream.told:
            return
        logger.info("subscriber detached", extra={"job": stream.job_id, "session": stream.session, "reason": stream.ended})
        if not self._stopping:
            await asyncio.shield(self._begin(stream, self._detach(stream)))

    def _begin(self, stream: Stream, telling: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(telling)
        self._waiting[task] = stream
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._waiting[task]
        if not task.cancelled() and task.exception():
            logger.debug("attachment task failed", extra={"error": str(task.exception())})

    async def _attach(self, stream: Stream) -> None:
        async with self._lanes.of(stream.job_id), self._admission.place(stream.job_id):
            if stream.ended:
                return
            stream.told = True
            try:
                await self._offer(stream)
            except Rejected:
                stream.told = False
                raise

    async def _detach(self, stream: Stream) -> None:
        try:
            async with self._lanes.of(stream.job_id), self._admission.place(stream.job_id):
                await self._jobs.ask(stream.job_id, Updates.DETACH, stream.session)
        except (Rejected, Unavailable) as error:
            logger.info("detachment not sent", extra={"job": stream.job_id, "error": str(error)})

    async def _offer(self, stream: Stream) -> None:
        progress = self._introductions.progress(stream.job_id)
        attachment = Attachment(
            queue=self._queue, session=stream.session, since=stream.since, client=stream.client, progress=progress
        )
        try:
            await self._jobs.ask(stream.job_id, Updates.ATTACH, attachment)
        except Rejected as error:
            if error.kind != ErrorTypes.ATTACHMENT_KNOWN:
                self._introductions.forget(stream.job_id)
                raise

    async def _offer_again(self, stream: Stream, places: asyncio.Semaphore) -> None:
        try:
            await self._offer_once_more(stream)
        finally:
            self._offered.discard(stream)
            places.release()

    async def _offer_once_more(self, stream: Stream) -> None:
        """Offers an attachment again. Ends the stream if the workflow has given it up: its client then opens a new one."""
        async with self._lanes.of(stream.job_id):
            if not stream.told or stream.ended:
                return
            try:
                await self._introductions.complete(stream.job_id)
                async with self._admission.place(stream.job_id):
                    await self._offer(stream)
            except Rejected as error:
                if error.kind == ErrorTypes.ATTACHMENT_OVER:
                    stream.end(OVER)
            except Unavailable as error:
                logger.info("attachment not sent", extra={"job": stream.job_id, "error": str(error)})
