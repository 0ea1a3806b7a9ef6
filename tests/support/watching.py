"""Watcher for tests, and a scripted peer in place of the jobs' workflows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from activities.clusters.port import Cluster
from rekindle.model.cluster import Pod
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.policy.detection.watcher_updates import News, Register, Sighted
from workers.watcher.watcher import Watcher


class Peer:
    """Accepts what the watcher sends. It can be set to fail first."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, News]] = []
        self.taken_at: list[float] = []
        self.update_ids: list[str] = []
        self.attempted: list[type[News]] = []
        self.failures: list[Exception] = []
        self.refuses: Callable[[News], Exception | None] = lambda _: None
        self.gone: set[str] = set()
        """Jobs whose workflow is lost."""
        self.registered: set[str] = set()
        """Jobs whose workflow an earlier watcher has registered."""
        self._changed = asyncio.Condition()

    async def send(self, job_id: str, news: News, update_id: str) -> None:
        async with self._changed:
            self.update_ids.append(update_id)
            self.attempted.append(type(news))
            self._changed.notify_all()
            if self.failures:
                raise self.failures.pop(0)
            if error := self.refuses(news):
                raise error
            self.taken.append((job_id, news))
            self.taken_at.append(now())

    async def has_trained(self, _: str) -> bool:
        return True

    async def lost(self, job_ids: Collection[str]) -> list[str]:
        """Reports each lost workflow once."""
        gone = [job_id for job_id in job_ids if job_id in self.gone]
        self.gone -= set(gone)
        return gone

    async def running(self) -> set[str]:
        return self.registered

    @property
    def attempts(self) -> int:
        return len(self.update_ids)

    def gaps(self) -> list[float]:
        """Returns the seconds between accepted updates."""
        return [later - earlier for earlier, later in pairwise(self.taken_at)]

    @property
    def news(self) -> list[News]:
        return [news for _, news in self.taken]

    @property
    def sightings(self) -> list[Sighting]:
        told = (one.registration.sighting if isinstance(one, Register) else one for one in self.news)
        return [one.sighting if isinstance(one, Sighted) else one for one in told if isinstance(one, Sighted | Sighting)]

    @property
    def sighting(self) -> Sighting:
        """Last sighting that was accepted."""
        return self.sightings[-1]

    async def until(self, satisfied: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(satisfied)

    async def until_seen(self, satisfied: Callable[[Sighting], bool]) -> Sighting:
        await self.until(lambda: bool(self.sightings) and satisfied(self.sighting))
        return self.sighting

    async def until_held(self, *pods: Pod) -> None:
        """Waits until it knows these pods as holders of the ranks, in order."""
        holders = tuple(pod.metadata.uid[:8] for pod in pods)
        await self.until_seen(lambda seen: seen.holders == holders)

    async def until_registered(self, sub_health: str) -> None:
        """Waits until it knows this policy of the job."""
        await self.until(
            lambda: sub_health in {one.registration.job.sub_health for one in self.news if isinstance(one, Register)}
        )

    async def until_last(self, kind: type[News]) -> News:
        await self.until(lambda: bool(self.taken) and isinstance(self.news[-1], kind))
        return self.news[-1]


@asynccontextmanager
async def watching(cluster: Cluster, peer: Peer) -> AsyncIterator[None]:
    """Runs a watcher until the block ends."""
    task = asyncio.create_task(Watcher(cluster, peer, Limits(), look_for_lost=0.05, listed=0.05).run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def now() -> float:
    return asyncio.get_running_loop().time()
