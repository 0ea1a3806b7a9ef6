"""Queries the jobs' workflows while platforms are subscribed, and sends them each change.

A job that a platform watches is queried every second. If a platform watches all jobs, those whose row in Temporal's list has
changed come first. The others take turns, so that a change that no list shows is seen within a round: a second with twenty jobs,
minutes with thousands. A job that does not answer is queried beside the others, and does not delay them. A slow reader gets the
newest state of each job.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from google.protobuf.message import Message

from rekindle.errors import Unavailable
from rekindle.policy.platforms import View, view_of
from workers.gateway.access import Context
from workers.gateway.job_workflows import Jobs, Rejected, Row, unknown

LOOK = 1.0
"""Seconds between two rounds."""

BY_TURNS = 20
"""Jobs that are queried in a round although nothing shows that they have changed."""

FAULTY_BY_TURNS = 20
"""Jobs with known faults that are queried in a round. Two incidents with one verdict leave the same row in the list."""

AT_ONCE = 8
"""Largest number of concurrent queries; a control worker answers each of them."""

LISTED = 1_000
"""Jobs for which the list is fetched in every round; for n times as many it is fetched in every n-th round."""

LINGERS = 60.0
"""Seconds for which all jobs are still watched after the last subscriber has left, so that the next one is answered at once."""

PATIENCE = 60.0
"""Seconds within which the state of all jobs has to be known; callers that wait longer have to retry."""

ALL = ""
"""Value in place of a job's id: all jobs."""

logger = logging.getLogger("gateway")


class Ended(Exception):
    """The gateway has ended a stream whose client does not read."""


class Turns:
    """Walks through jobs, a few at a time."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def take(self, job_ids: Iterable[str], count: int) -> list[str]:
        """Returns the next jobs. After the last one, begins again with the given ones."""
        self._left = self._left or sorted(job_ids)
        taken, self._left = self._left[:count], self._left[count:]
        return taken


@dataclass(eq=False)
class Subscriber:
    """Subscriber to one job, or to all jobs."""

    job_id: str
    ended: str = ""
    """Reason why the gateway ended the subscription; empty: it is open."""
    _news: dict[str, View] = field(default_factory=dict)
    """Unread changes, keyed by job: at most one per job, however slowly the subscriber reads."""
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _is_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, view: View) -> None:
        if self.job_id in (ALL, view.id):
            self._news[view.id] = view
            self._woken.set()

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._woken.set()
        self._is_ended.set()

    async def write(self, context: Context, message: Message) -> None:
        """Writes to the client, which may not read.

        Raises:
            Ended: meanwhile the gateway ended the stream. The status of its end follows the message.
        """
        writing, ended = asyncio.ensure_future(context.write(message)), asyncio.ensure_future(self._is_ended.wait())
        writing.add_done_callback(lambda written: written.cancelled() or written.exception())
        try:
            await asyncio.wait((writing, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not writing.done():
            raise Ended
        await writing

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    async def news(self) -> list[View]:
        """Waits for changes, and returns the newest state of each job that has changed; empty: the subscription was ended."""
        while not self._news and not self.ended:
            self._woken.clear()
            await self._woken.wait()
        news, self._news = list(self._news.values()), {}
        return news


class Watch:
    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._subscribers: set[Subscriber] = set()
        self._views: dict[str, View] = {}
        self._since: dict[str, datetime] = {}
        self._rows: dict[str, Row] = {}
        self._turns, self._faulty_turns = Turns(), Turns()
        self._mute: set[str] = set()
        """Jobs that did not answer when they were asked last."""
        self._all_until, self._waiting = float("-inf"), 0
        self._rounds = 0
        self._is_wanted, self._is_whole = asyncio.Event(), asyncio.Event()
        self._over = ""

    # ---- subscribers

    @asynccontextmanager
    async def subscribed(self, job_id: str) -> AsyncIterator[Subscriber]:
        """Yields a subscriber that has received the current state when the block begins, and receives all changes until it ends.

        Args:
            job_id: id of the job; `ALL` for all jobs.

        Raises:
            Rejected: there is no such job. Unavailable: the workflows did not answer in time.
        """
        subscriber = Subscriber(job_id)
        await (self._until_whole() if job_id == ALL else self._until_known(job_id))
        for view in self._views.values():
            subscriber.tell(view)
        self._subscribers.add(subscriber)
        self._is_wanted.set()
        try:
            if self._over:
                subscriber.end(self._over)
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    async def all(self) -> list[View]:
        """Returns all jobs in their last known state. Raises Unavailable if the workflows did not answer in time."""
        await self._until_whole()
        return list(self._views.values())

    async def ask(self, job_id: str) -> View:
        """Returns the current state of one job.

        Raises:
            Rejected: there is no such job. Unavailable: its workflow did not answer.
        """
        return view_of((await self._jobs.status(job_id)).state)

    def end_all(self, reason: str) -> None:
        """Ends all subscriptions permanently; new ones are ended at once."""
        self._over = reason
        self._is_whole.set()
        self.end_present(reason)

    def end_present(self, reason: str) -> None:
        """Ends all current subscriptions; the subscribers may come back."""
        for subscriber in self._subscribers:
            subscriber.end(reason)

    async def _until_known(self, job_id: str) -> None:
        view = await self.ask(job_id)
        if view.is_over:
            raise unknown(job_id)
        self._seen(view)

    async def _until_whole(self) -> None:
        self._waiting += 1
        self._is_wanted.set()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._is_whole.wait()
        except TimeoutError:
            raise Unavailable(f"not all jobs have answered within {PATIENCE:g} s; try again") from None
        finally:
            self._waiting -= 1
            self._all_until = asyncio.get_running_loop().time() + LINGERS

    # ---- its work

    async def keep(self) -> None:
        """Queries the jobs in rounds while there are subscribers, until it is cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._regularly(self._round))
            both.create_task(self._regularly(lambda: self._ask(self._mute)))

    async def _regularly(self, look: Callable[[], Awaitable[None]]) -> None:
        """Repeats a look. An unexpected error must not end the news of all jobs."""
        while True:
            await self._is_wanted.wait()
            try:
                await look()
            except (Rejected, Unavailable) as error:
                logger.info("jobs not watched", extra={"error": str(error)})
            except Exception:
                logger.exception("jobs not watched, retrying")
            await asyncio.sleep(LOOK)

    async def _round(self) -> None:
        named = {one.job_id for one in self._subscribers} - {ALL}
        now = asyncio.get_running_loop().time()
        if self._waiting or any(one.job_id == ALL for one in self._subscribers):
            self._all_until = now + LINGERS
        if now >= self._all_until:
            self._forget_others(named)
            await self._ask(named - self._mute)
            return
        changed = await self._listed()
        faulty = [job_id for job_id, view in self._views.items() if view.nodes]
        turns = {*self._turns.take(self._rows, BY_TURNS), *self._faulty_turns.take(faulty, FAULTY_BY_TURNS)}
        await self._ask((named | changed | turns) - self._mute)
        self._rounds += 1
        if not (self._rows.keys() - self._views.keys()):
            self._is_whole.set()

    def _forget_others(self, named: set[str]) -> None:
        self._rows, self._turns, self._faulty_turns, self._since = {}, Turns(), Turns(), {}
        self._mute &= named
        self._views = {job_id: view for job_id, view in self._views.items() if job_id in named}
        self._is_whole.clear()
        if not named:
            self._is_wanted.clear()

    async def _listed(self) -> set[str]:
        """Returns the ids of jobs whose row in the list has changed, and of those that are no longer in it."""
        if self._is_whole.is_set() and self._rounds % (1 + len(self._rows) // LISTED):
            return set()
        rows = await self._jobs.rows()
        changed = {job_id for job_id, row in rows.items() if row != self._rows.get(job_id)}
        self._since = {job_id: self._since.get(job_id, row.since) for job_id, row in rows.items()}
        gone = self._views.keys() - rows.keys()
        self._mute &= rows.keys() | {one.job_id for one in self._subscribers}
        self._rows = rows
        return changed | gone

    async def _ask(self, job_ids: Iterable[str]) -> None:
        few = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._ask_one(job_id, few) for job_id in tuple(job_ids)))

    async def _ask_one(self, job_id: str, few: asyncio.Semaphore) -> None:
        """Queries a job. If its workflow does not answer, its last state is kept and it is queried again."""
        async with few:
            try:
                view = view_of((await self._jobs.status(job_id, patience=0)).state)
            except Unavailable as error:
                self._rows.pop(job_id, None)
                self._mute.add(job_id)
                logger.info("job not queried", extra={"job": job_id, "error": str(error)})
                return
            except Rejected:
                view = self._views.get(job_id, View(id=job_id)).model_copy(update={"is_over": True, "nodes": ()})
        self._mute.discard(job_id)
        self._seen(view)

    def _seen(self, view: View) -> None:
        before = self._views.get(view.id)
        view = view.model_copy(update={"since": self._since.get(view.id, before.since if before else None)})
        if view.is_over:
            for known in (self._views, self._rows, self._since):
                known.pop(view.id, None)
        else:
            self._views[view.id] = view
        if view == before or (view.is_over and before is None):
            return
        for subscriber in self._subscribers:
            subscriber.tell(view)
            if view.is_over and subscriber.job_id == view.id:
                subscriber.end(f"jobId={view.id} is over")
