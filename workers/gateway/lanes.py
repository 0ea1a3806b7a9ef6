"""Who comes when: one after the other for each job, a few at a time for all. For what the gateway tells and asks Temporal."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rekindle.errors import Unavailable


class Lanes:
    """A lane for each job: what is said of one job is said in the order in which it happened."""

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
    """At most so many at once. Those that are urgent come first, otherwise it is first come, first served."""

    def __init__(self, places: int, patience: float) -> None:
        """Args:
        patience: seconds that somebody waits for a place.
        """
        self._free, self._patience = places, patience
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def place(self, *, urgent: bool = False) -> AsyncIterator[None]:
        """A place, until the block ends.

        Raises:
            Unavailable: none became free in time.
        """
        try:
            async with asyncio.timeout(self._patience):
                await self._enter(urgent=urgent)
        except TimeoutError:
            raise Unavailable(f"too many come at once: no place became free within {self._patience:g} s") from None
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, *, urgent: bool) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._urgent if urgent else self._others).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place came in the same moment
            raise

    def _leave(self) -> None:
        for waiting in (self._urgent, self._others):
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
