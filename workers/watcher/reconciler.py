"""Keeps one job's workflow up to date with the state of the cluster. `workers/watcher/watcher.py` creates one per job."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from rekindle.errors import Refused, Unavailable
from rekindle.policy.detection import watcher_updates
from rekindle.policy.detection.watcher_updates import Acknowledged, End, News, Register, Shown
from workers.watcher.job_workflows import JobUnknown, JobWorkflows

AT_ONCE = 0.005
"""Seconds for which changes of a quiet job are gathered into one update: with a lost node its pods are lost."""

GATHERED, QUIET = 0.05, 1.0
"""Seconds for which changes are gathered if the last update was less than `QUIET` seconds ago: pods fail one after the other."""

GROWING = 1.0
"""Seconds for which changes that are not urgent are gathered, such as pods that start one by one."""

CROWDED = 3.0
"""Seconds for which changes are gathered after `MANY` updates within `WHILE` seconds, since a history has a limited size."""

MANY, WHILE = 60, 60.0

RARELY = 15.0
"""Seconds for which changes are gathered after `MOST` updates, or `PLENTY` of bytes, within `AN_HOUR`. The server ends a workflow
whose history has 50 MiB, and accepts 2,000 updates. A sighting of 5,000 pods has 56 KB, and a job begins no new history while
it is recovered, which may take hours."""

MOST, PLENTY, AN_HOUR = 600, 8 * 1024 * 1024, 3600.0

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds before an update without an answer is repeated: the first pause, which doubles up to the second value."""

logger = logging.getLogger("watcher")


class Reconciler:
    """Sends one update at a time, each with the state of the cluster at that time."""

    def __init__(self, job_id: str, look: Callable[[], Shown], workflows: JobWorkflows, refuse: Callable[[str], None]) -> None:
        """Args:
        look: returns what the cluster shows of the job now.
        refuse: records on the job, where its owner looks, why it cannot be registered.
        """
        self._job_id, self._look, self._workflows, self._refuse = job_id, look, workflows, refuse
        self.acknowledged = Acknowledged()
        self._hurried = asyncio.Event()
        self._told_at: deque[float] = deque(maxlen=MANY)
        self._sizes: deque[tuple[float, int]] = deque(maxlen=MOST)
        """Time and size in bytes of each update within the last hour."""
        self._attempt: tuple[News, str] | None = None
        """Last update that was sent and not acknowledged, and its id."""
        self._changed_at: datetime | None = None
        """Time of the first urgent change since the last look at the cluster; None: there was none."""
        self._seen_at: dict[str, datetime] = {}
        """Time at which each fault was first seen, by fault id."""
        self._said = ""
        """Reason why the job cannot be registered, as last reported to its owner."""
        self._refusal = ""
        """Reason why the workflow refused to register the job; empty: it did not refuse."""

    def hurry(self) -> None:
        """Marks an urgent change: something happened that may be worse than a pod that starts."""
        self._changed_at = self._changed_at or datetime.now(UTC)
        self._hurried.set()

    def forget(self) -> None:
        """Resets what was acknowledged, because the job's workflow is gone."""
        self._attempt, self.acknowledged = None, watcher_updates.forgotten(self.acknowledged)

    def meet(self) -> None:
        """Records that the job has a workflow, which an earlier watcher has registered."""
        self.acknowledged = watcher_updates.met(self.acknowledged)

    def reconsider(self) -> None:
        """Retries a registration that the workflow refused: the workflow's code may have changed since."""
        self.acknowledged = watcher_updates.reconsidered(self.acknowledged)

    async def run(self) -> None:
        """Sends updates until the job's workflow knows the whole state of the cluster for this job."""
        noticed, pause = _now(), FIRST_PAUSE
        while True:
            await asyncio.sleep(GATHERED if self._told_at and self._told_at[-1] > _now() - QUIET else AT_ONCE)
            self._hurried.clear()
            news = self._due()
            if news is None:
                return
            wait = noticed + self._patience(news) - _now()
            if wait > 0:
                await self._wait(wait)
            elif await self._send(news):
                noticed, pause = _now(), FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _due(self) -> News | None:
        now = self._look()
        if now.refused and now.refused != self._said:
            holds = "; until then what it said before holds" if self.acknowledged.reached else ""
            self._refuse(f"{now.refused}{holds}")
        self._said = now.refused
        seen_at, self._changed_at = self._changed_at or datetime.now(UTC), None
        self._seen_at = {fault.id: self._seen_at.get(fault.id, seen_at) for fault in now.sighting.faults}
        return watcher_updates.due(now, self.acknowledged)

    def _patience(self, news: News) -> float:
        """Returns the seconds for which changes are gathered, counted from the first one."""
        if spacing := self._spacing():
            return spacing
        return 0.0 if watcher_updates.is_urgent(news, self.acknowledged) else GROWING

    def _spacing(self) -> float:
        """Returns the seconds between two updates regardless of their content; 0: more events fit into the history."""
        while self._sizes and self._sizes[0][0] <= _now() - AN_HOUR:
            self._sizes.popleft()
        if len(self._sizes) >= MOST or sum(size for _, size in self._sizes) >= PLENTY:
            return RARELY
        return CROWDED if len(self._told_at) == MANY and self._told_at[0] > _now() - WHILE else 0.0

    async def _wait(self, seconds: float) -> None:
        """Waits. An urgent change ends the wait, unless the job has had too many updates."""
        if self._spacing():
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()

    async def _send(self, news: News) -> bool:
        """Sends an update. Returns True if the next one can follow without a pause."""
        update_id = self._attempt[1] if self._attempt and self._attempt[0] == news else uuid.uuid4().hex
        self._attempt = (news, update_id)
        words = {"job": self._job_id, "news": type(news).__name__, "what": _what(news)}
        try:
            await self._workflows.send(self._job_id, watcher_updates.dated(news, self._seen_at), update_id)
        except Unavailable as error:
            logger.warning("update not sent, retrying", extra={**words, "error": str(error)})
            self.acknowledged = watcher_updates.unconfirmed(self.acknowledged, news)
            return False
        except JobUnknown:
            self._attempt, self.acknowledged = None, watcher_updates.unknown(self._look(), self.acknowledged, news)
            if not isinstance(news, End):
                logger.warning("unknown job registered again", extra=words)
            return not isinstance(news, Register)
        except Refused as error:
            logger.warning("update refused", extra={**words, "error": str(error)})
            self._attempt, self.acknowledged = None, watcher_updates.decline(self.acknowledged, news)
            if isinstance(news, Register) and str(error) != self._refusal:
                self._refusal = str(error)
                self._refuse(self._refusal)
            return True
        logger.info("update sent", extra=words)
        if isinstance(news, Register):
            self._refusal = ""
        self._attempt, self.acknowledged = None, watcher_updates.acknowledge(self.acknowledged, news)
        self._told_at.append(_now())
        self._sizes.append((_now(), len(news.model_dump_json())))
        return True


def _what(news: News) -> str:
    """Returns a summary of the news in one line for the log."""
    if isinstance(news, End):
        return news.reason
    sighting = news.registration.sighting if isinstance(news, Register) else news.sighting
    if sighting is None:
        return ""
    held = sum(1 for holder in sighting.holders if holder)
    faults = "; ".join(f"{fault.kind} {fault.node or fault.pod} {fault.code}".rstrip() for fault in sighting.faults[:3])
    more = f" and {len(sighting.faults) - 3} more faults" if len(sighting.faults) > 3 else ""
    return f"{held} of {len(sighting.holders)} pod ranks held" + (f"; {faults}{more}" if faults else "")


def _now() -> float:
    return asyncio.get_running_loop().time()
