"""Queues for calls to Temporal: calls for one job run one after the other, and a limited number run at once in all."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from rekindle.errors import Unavailable


class Lanes:
    """Lock per job, so that messages about a job are sent in the order in which the events happened."""

    def __init__(self) -> None:
        self._lanes: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, job_id: str) -> AsyncIterator[None]:
        lock, users = self._lanes.get(job_id, (asyncio.Lock(), 0))
        self._lanes[job_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._lanes.pop(job_id)
            if users > 1:
                self._lanes[job_id] = (lock, users - 1)


class Admission:
    """Limits the number of concurrent calls. `wanted` jobs come first; the others take turns, however many calls each has."""

    def __init__(self, places: int, patience: float, wanted: Collection[str]) -> None:
        """Args:
        patience: seconds that a caller waits for a place.
        wanted: ids of a few jobs that come first; they may change while others wait.
        """
        self._free, self._patience, self._wanted = places, patience, wanted
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, job_id: str) -> AsyncIterator[None]:
        """Holds a place until the block ends.

        Raises:
            Unavailable: none became free in time.
        """
        try:
            async with asyncio.timeout(self._patience):
                await self._enter(job_id)
        except TimeoutError:
            raise Unavailable(f"too many come at once: no place became free within {self._patience:g} s") from None
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, job_id: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place came in the same moment
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._next()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _next(self) -> asyncio.Future[None]:
        job_id = next((job_id for job_id in self._wanted if job_id in self._waiting), None) or next(iter(self._waiting))
        turns = self._waiting.pop(job_id)
        turn = turns.popleft()
        if turns:
            self._waiting[job_id] = turns
        return turn
