"""Queues for calls to Temporal: calls for one job run one after the other, and a limited number run at once in all."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from rekindle.errors import Unavailable

FEWEST = 4
"""Number of calls that run at once however long they take."""

FEWER = 0.7
"""Factor by which the number of calls is lowered where one took too long."""


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
    """Limits the number of concurrent calls. `wanted` jobs come first; the others take turns, however many calls each has.

    Fewer run at once while they take too long, since a call that times out is made again, and costs as much as one that succeeds.
    The number then grows again, by one each time that as many calls as run at once were quick. A call during which as many others
    were quick says only that its own job does not answer. Such jobs must not take the places of all others.
    """

    def __init__(self, places: int, patience: float, wanted: Collection[str], slow: float = math.inf) -> None:
        """Args:
        places: largest number of concurrent calls.
        patience: seconds that a caller waits for a place.
        wanted: ids of a few jobs that come first; they may change while others wait.
        slow: seconds from which on a call takes too long.
        """
        self._most, self._patience, self._wanted, self._slow = places, patience, wanted, slow
        self._places, self._taken = float(places), 0
        self._lowered = -math.inf
        """Time at which the number was last lowered. Calls that began before say nothing of the lower one."""
        self._quick = 0
        """Number of quick calls until now."""
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
        began, quick = asyncio.get_running_loop().time(), self._quick
        try:
            yield
        finally:
            self._adapt(began, self._quick - quick)
            self._leave()

    async def _enter(self, job_id: str) -> None:
        if self._has_room:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place came in the same moment
            raise

    @property
    def _has_room(self) -> bool:
        return self._taken < int(self._places)

    def _adapt(self, began: float, quick: int) -> None:
        """Args:
        began: time at which a call began that has ended. quick: number of quick calls that have ended meanwhile.
        """
        now = asyncio.get_running_loop().time()
        if now - began < self._slow:
            self._quick += 1
            self._places = min(self._most, self._places + 1 / self._places)
        elif began >= self._lowered and quick < int(self._places):
            self._places, self._lowered = max(min(FEWEST, self._most), self._places * FEWER), now

    def _leave(self) -> None:
        self._taken -= 1
        while self._waiting and self._has_room:
            turn = self._next()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)

    def _next(self) -> asyncio.Future[None]:
        job_id = next((job_id for job_id in self._wanted if job_id in self._waiting), None) or next(iter(self._waiting))
        turns = self._waiting.pop(job_id)
        turn = turns.popleft()
        if turns:
            self._waiting[job_id] = turns
        return turn
