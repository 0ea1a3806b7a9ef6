"""Scripted side of a cluster that keeps the words of MindCluster's contract, and a platform that answers by annotations."""

import asyncio
from collections.abc import Callable, Mapping

from rekindle.errors import ClusterUnavailable
from rekindle.model.contract import Words


class ScriptedContract:
    """Keeps all words that are written, and the annotations by which a platform decides."""

    def __init__(self, restarts: int | None = 4) -> None:
        """Args:
        restarts: `RetryTime` of the reset-config. None: there is none.
        """
        self.restarts = restarts
        self.written: list[Words] = []
        self.annotations: dict[str, str] = {}
        self.refusals = 0
        """Number of writes that fail from now on."""
        self.hangs_once: Callable[[Words], bool] = lambda _: False
        """Returns whether the write of these words hangs. Only one does."""
        self.was_cut = asyncio.Event()
        """Set when the write that hangs was ended."""
        self.is_away = False
        """True if the annotations cannot be read."""
        self.when_told: Callable[[Mapping[str, str]], None] = lambda _: None
        """Called with the annotations that the platform is told."""
        self._changed = asyncio.Event()

    async def ensure_words(self, job_id: str, words: Words) -> int | None:
        if self.hangs_once(words):
            self.hangs_once = lambda _: False
            try:
                await asyncio.Event().wait()
            finally:
                self.was_cut.set()
        if self.refusals:
            self.refusals -= 1
            raise ClusterUnavailable("scripted: the words are not taken")
        self.written.append(words)
        if self.restarts is not None and words.restarts is not None:
            self.restarts = words.restarts
        self._changed.set()
        return self.restarts

    async def said_by_platform(self, job_id: str) -> Mapping[str, str]:
        if self.is_away:
            raise ClusterUnavailable("scripted: the cluster is away")
        return dict(self.annotations)

    async def tell_platform(self, job_id: str, annotations: Mapping[str, str]) -> None:
        self.annotations.update(annotations)
        self.when_told(annotations)

    async def is_up_to_date(self, strategy: str) -> None:
        """Waits until the announced ranks, and how an earlier strategy ended, can be read. For `Script.before_status`."""
        if strategy == "dump":
            await self.until(lambda words: words.status is not None)
        elif strategy != "retry":
            await self.until(lambda words: bool(words.faulty))

    async def until(self, condition: Callable[[Words], bool]) -> Words:
        """Waits until words were written that satisfy the condition, and returns them."""
        async with asyncio.timeout(60):
            while True:
                self._changed.clear()
                if found := next((words for words in self.written if condition(words)), None):
                    return found
                await self._changed.wait()
