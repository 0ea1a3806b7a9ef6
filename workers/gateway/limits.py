"""Rate limits. Used by the services of platforms, and for reports that nothing waits for."""

import asyncio
from dataclasses import dataclass, field


@dataclass
class Bucket:
    """Token bucket: tokens are refilled at a constant rate."""

    rate: float
    """Tokens per second."""

    burst: float
    queue: int = 0
    """Number of callers that may wait for a token."""

    _left: float | None = None
    """Tokens that are left; None: no token was requested yet."""
    _counted: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: int = 0

    async def take(self) -> bool:
        """Takes a token, after a wait if allowed. Returns False if too many callers wait already."""
        if self._turn.locked() or self._count() < 1:
            if self._waiting >= self.queue:
                return False
            self._waiting += 1
            try:
                await self._wait()
            finally:
                self._waiting -= 1
        self._left = self._count() - 1
        return True

    async def _wait(self) -> None:
        async with self._turn:
            await asyncio.sleep((1 - self._count()) / self.rate)

    def _count(self) -> float:
        now = asyncio.get_running_loop().time()
        self._left = self.burst if self._left is None else min(self.burst, self._left + (now - self._counted) * self.rate)
        self._counted = now
        return self._left
