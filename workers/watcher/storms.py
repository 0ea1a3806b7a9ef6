"""Watches for storms, in which modes that move pods are held. Used by the watcher, which tells the jobs concerned.

Nothing asks for a storm: a job learns of one with its faults, so that its recovery waits for no answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rekindle.errors import Unavailable
from rekindle.policy.detection.storm import Marks, Seen, Storm, storm
from workers.watcher.cluster_index import ClusterIndex

LOOK = 10.0
"""Seconds between two looks at the running recoveries."""

SHORT = 8
"""Number of characters of the job's id at the end of the id of a recovery."""

NO_MARKS = Marks()

logger = logging.getLogger("watcher")


async def _none() -> set[str]:
    return set()


class Storms:
    def __init__(
        self,
        tell: Callable[[], None],
        marks: Marks = NO_MARKS,
        recovering: Callable[[], Awaitable[set[str]]] = _none,
        every: float = LOOK,
    ) -> None:
        """Args:
        tell: called when a storm begins or is over, or when it concerns more jobs.
        recovering: returns the ids of the running recoveries. Raises Unavailable.
        every: seconds between two looks at the running recoveries.
        """
        self._tell, self._marks, self._recovering, self._every = tell, marks, recovering, every
        self._storm, self._reason = Storm(), ""
        self._is_listed = False
        """True if the recoveries were listed since the last judgement."""
        self._nodes = self._unhealthy = 0
        self._recoveries: set[str] = set()
        """Ends of the ids of the recoveries that were listed last."""
        self._running = 0
        """Number of the recoveries that were listed last."""
        self._met: set[str] = set()
        """Ends of the ids of recoveries that have run in the present storm."""

    @property
    def reason(self) -> str:
        """Reason why there is a storm. Empty: there is none."""
        return self._reason

    def recovers(self, job_id: str) -> bool:
        """Returns whether a recovery of the job has run in the present storm."""
        return job_id[:SHORT] in self._met

    def look_at(self, index: ClusterIndex) -> None:
        """Counts the unhealthy nodes. Called after every change of a node, before jobs are told of it."""
        self._nodes, self._unhealthy = index.unhealthy()
        if self._judge():
            self._tell()

    async def run(self) -> None:
        """Looks at the running recoveries until it is cancelled."""
        while True:
            if self._marks.recoveries:
                try:
                    self._list(await self._recovering())
                except Unavailable as error:
                    logger.info("running recoveries not listed", extra={"error": str(error)})
            if self._judge():
                self._tell()
            await asyncio.sleep(self._every)

    def _list(self, recoveries: set[str]) -> None:
        self._running, self._recoveries = len(recoveries), {one.rpartition("/")[2] for one in recoveries}
        self._is_listed = True

    def _judge(self) -> bool:
        """Returns whether a storm has begun, is over, or concerns more jobs."""
        now, was, met = asyncio.get_running_loop().time(), bool(self._reason), len(self._met)
        seen = Seen(nodes=self._nodes, unhealthy=self._unhealthy, recoveries=self._running)
        self._storm = storm(seen, self._marks, self._storm, now)
        self._reason = self._storm.reason(now)
        if self._reason and not was:
            logger.warning("storm begun", extra={"reason": self._reason})
        elif was and not self._reason:
            logger.warning("storm ended")
        if not self._reason:
            self._met = set()
        elif self._is_listed or not was:  # not after every change of a node: there may be thousands of both
            self._met |= self._recoveries
        self._is_listed = False
        return bool(self._reason) is not was or len(self._met) > met
