"""Objects of the local cluster and their watches, in memory: the end of the cluster is like the loss of a machine."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, TypeVar

from rekindle.errors import NotFound, WatchExpired
from rekindle.model.cluster import ClusterEvent, JobObject, Node, Pod, WatchEvent

Stored = TypeVar("Stored", JobObject, Node, Pod)

BACKLOG = 2000
"""Largest number of changes that may wait for a watcher; the watch of a slower one is ended, and it has to list again."""

KEPT_EVENTS = 2000
"""Number of events that are kept; the oldest are dropped."""


class Watch:
    """Changes that one watcher has not read yet."""

    def __init__(self, first: list[WatchEvent], backlog: int) -> None:
        self._events = deque(first)
        self._limit = len(first) + backlog
        self._wake = asyncio.Event()
        self._over = ""
        self._wake.set()

    def tell(self, event: WatchEvent) -> None:
        if self._over:
            return
        self._events.append(event)
        if len(self._events) > self._limit:
            self.cut(f"the watcher is more than {self._limit} changes behind: list again, watch again")
        self._wake.set()

    def cut(self, reason: str) -> None:
        """Ends the watch; its reader gets WatchExpired with the reason."""
        self._over = reason
        self._events.clear()
        self._wake.set()

    @property
    def over(self) -> bool:
        return bool(self._over)

    async def events(self) -> AsyncIterator[WatchEvent]:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._events:
                yield self._events.popleft()
            if self._over:
                raise WatchExpired(self._over)


class Store:
    """Jobs, pods and nodes by name. Watchers and the controller are notified of every write."""

    def __init__(self, changed: Callable[[], None], backlog: int = BACKLOG) -> None:
        self.jobs: dict[str, JobObject] = {}
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.events: deque[ClusterEvent] = deque(maxlen=KEPT_EVENTS)
        self._changed = changed
        self._backlog = backlog
        self._versions = itertools.count(1)
        self._watches: set[Watch] = set()

    def _table(self, kind: type[Stored]) -> dict[str, Stored]:
        tables: dict[type, object] = {JobObject: self.jobs, Pod: self.pods, Node: self.nodes}
        table = tables[kind]
        assert isinstance(table, dict)
        return table

    def job(self, reference: str) -> JobObject:
        """Returns a job by UID or by name. Raises NotFound."""
        for job in self.jobs.values():
            if reference in (job.metadata.uid, job.metadata.name):
                return job
        raise NotFound(f"no job has the UID or the name {reference}; there are: {_names(self.jobs)}")

    def pod(self, name: str) -> Pod:
        if name not in self.pods:
            raise NotFound(f"no pod is named {name}; there are: {_names(self.pods)}")
        return self.pods[name]

    def node(self, name: str) -> Node:
        if name not in self.nodes:
            raise NotFound(f"no node is named {name}; there are: {_names(self.nodes)}")
        return self.nodes[name]

    def pods_of(self, job_uid: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.metadata.owner_uid == job_uid]

    def put(self, thing: Stored) -> Stored:
        """Creates or replaces an object; an equal object is no change."""
        table = self._table(type(thing))
        before = table.get(thing.metadata.name)
        if before == thing:
            return before
        stored = _versioned(thing, next(self._versions))
        table[thing.metadata.name] = stored
        self._tell("MODIFIED" if before else "ADDED", stored)
        return stored

    def remove(self, thing: Stored) -> None:
        self._table(type(thing)).pop(thing.metadata.name, None)
        self._tell("DELETED", _versioned(thing, next(self._versions)))

    def _tell(self, change: Literal["ADDED", "MODIFIED", "DELETED"], thing: JobObject | Pod | Node) -> None:
        event = _event(change, thing)
        for watch in tuple(self._watches):
            watch.tell(event)
        self._changed()

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Yields a watch that begins with an ADDED event for each existing object: nodes, jobs, pods."""
        things: list[JobObject | Pod | Node] = [*self.nodes.values(), *self.jobs.values(), *self.pods.values()]
        watch = Watch([_event("ADDED", thing) for thing in things], self._backlog)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def break_watches(self, reason: str) -> int:
        """Ends all watches, and returns how many there were."""
        for watch in self._watches:
            watch.cut(reason)
        return len(self._watches)

    def record(self, event: ClusterEvent) -> ClusterEvent:
        stamped = event.model_copy(update={"timestamp": event.timestamp or now()})
        self.events.append(stamped)
        return stamped


def now() -> datetime:
    return datetime.now(UTC)


def _versioned(thing: Stored, version: int) -> Stored:
    return thing.model_copy(update={"metadata": thing.metadata.model_copy(update={"resource_version": version})})


def _event(change: Literal["ADDED", "MODIFIED", "DELETED"], thing: JobObject | Pod | Node) -> WatchEvent:
    kind: Literal["Job", "Pod", "Node"] = "Job" if isinstance(thing, JobObject) else "Pod" if isinstance(thing, Pod) else "Node"
    return WatchEvent(type=change, kind=kind, object=thing)


def _names(table: dict[str, JobObject] | dict[str, Pod] | dict[str, Node]) -> str:
    return ", ".join(sorted(table)[:20]) or "none"
