"""Base of scripted controllers over a real API server, and the custom kinds of objects that they own."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import yaml

from activities.clusters.api_server import Api, Object
from rekindle.errors import ClusterUnavailable, Conflict, NotFound, WatchExpired
from tests.kubernetes.world.control_plane import Namespace

CRDS = Path(__file__).parent / "crds"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WAIT_LIMIT = 60.0
AGAIN = 0.05
"""Seconds before a failed round is repeated, or a broken watch is reopened."""

logger = logging.getLogger("peers")


async def apply_crds(api: Api) -> None:
    """Installs the custom kinds of other job systems, with a minimal schema. Existing kinds are kept."""
    async with asyncio.timeout(WAIT_LIMIT):
        for file in sorted(CRDS.glob("*.yaml")):
            await define(api, yaml.safe_load(file.read_text()))


async def define(api: Api, definition: Object) -> None:
    """Installs a kind unless it exists, and returns when objects of it can be created."""
    with suppress(Conflict):
        await api.create(DEFINITIONS, definition)
    spec = definition["spec"]
    await _until_served(api, f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}")


async def _until_served(api: Api, path: str) -> None:
    while True:
        try:
            await api.list(path)
        except NotFound:
            await asyncio.sleep(AGAIN)  # `Established` comes before the first answer, and nothing comes with it
        else:
            return


def annotations_of(thing: Object) -> dict[str, str]:
    found: dict[str, str] = thing["metadata"].get("annotations", {})
    return found


def labels_of(thing: Object) -> dict[str, str]:
    found: dict[str, str] = thing["metadata"].get("labels", {})
    return found


def is_terminating(thing: Object) -> bool:
    return "deletionTimestamp" in thing["metadata"]


async def pods_until(namespace: Namespace, condition: Callable[[list[Object]], object]) -> list[Object]:
    """Returns all pods of a namespace, as soon as they satisfy a condition."""
    pods: dict[str, Object] = {}
    async with asyncio.timeout(WAIT_LIMIT):
        listing = await namespace.api.list(namespace.path("pods"))
        pods = {pod["metadata"]["uid"]: pod for pod in listing.items}
        if condition(list(pods.values())):
            return list(pods.values())
        async for change in namespace.api.watch(namespace.path("pods"), listing.resource_version):
            if change.type == "DELETED":
                pods.pop(change.object["metadata"]["uid"], None)
            else:
                pods[change.object["metadata"]["uid"]] = change.object
            if condition(list(pods.values())):
                return list(pods.values())
    raise AssertionError("a watch has no end")


class Controller(ABC):
    """Controller that runs a round after every change of what it watches. While it is deaf, it sees changes and does not act
    on them."""

    def __init__(self, namespace: Namespace, *paths: str) -> None:
        self.namespace, self.api = namespace, namespace.api
        self._known: dict[str, dict[str, Object]] = {path: {} for path in paths}
        self._news: asyncio.Queue[tuple[str, str, Sequence[Object]]] = asyncio.Queue()
        self._listed: set[str] = set()
        self._deaf = False
        self._seen: dict[str, int] = {}
        self._rounds = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._follow(path)) for path in self._known]
        self._tasks.append(asyncio.create_task(self._run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    @property
    def deaf(self) -> bool:
        return self._deaf

    @deaf.setter
    def deaf(self, deaf: bool) -> None:
        """Switches deafness. Deletions that happened while it was deaf are not acted on later."""
        self._deaf = deaf
        self._wake()

    async def saw(self, thing: Object) -> None:
        """Returns after a round that knew this state of an object, or a later one: what was not done by then will not be done."""
        uid, version = thing["metadata"]["uid"], int(thing["metadata"]["resourceVersion"])
        async with asyncio.timeout(WAIT_LIMIT), self._rounds:
            await self._rounds.wait_for(lambda: self._seen.get(uid, 0) >= version)

    def _wake(self) -> None:
        self._news.put_nowait(("", "WOKEN", ()))

    # ---- what it knows

    async def _follow(self, path: str) -> None:
        while True:
            try:
                listing = await self.api.list(path)
                self._news.put_nowait((path, "LISTED", listing.items))
                changes = self.api.watch(path, listing.resource_version)
                async for change in changes:
                    self._news.put_nowait((path, change.type, (change.object,)))
            except (ClusterUnavailable, WatchExpired) as error:
                logger.info("the watch broke", extra={"path": path, "reason": str(error)})
                await asyncio.sleep(AGAIN)

    async def _run(self) -> None:
        while True:
            await self._take(*await self._news.get())
            while not self._news.empty():
                await self._take(*self._news.get_nowait())
            if self._deaf or self._listed < self._known.keys():
                continue
            try:
                await self.round()
            except (Conflict, NotFound, ClusterUnavailable) as error:
                logger.info("the round failed and is repeated", extra={"reason": str(error)})
                await asyncio.sleep(AGAIN)
                self._wake()
            else:
                await self._tell_round()

    async def _tell_round(self) -> None:
        things = [thing["metadata"] for known in self._known.values() for thing in known.values()]
        self._seen |= {metadata["uid"]: int(metadata["resourceVersion"]) for metadata in things}
        async with self._rounds:
            self._rounds.notify_all()

    async def _take(self, path: str, change: str, things: Iterable[Object]) -> None:
        if change == "LISTED":
            self._listed.add(path)
            self._known[path] = {thing["metadata"]["uid"]: thing for thing in things}
        for thing in things:
            if change == "DELETED":
                self._known[path].pop(thing["metadata"]["uid"], None)
                self._seen[thing["metadata"]["uid"]] = int(thing["metadata"]["resourceVersion"])
                if not self._deaf:
                    await self.deleted(path, thing)
            elif change in ("ADDED", "MODIFIED"):
                self.remember(path, thing)

    def known(self, path: str) -> list[Object]:
        return list(self._known[path].values())

    def remember(self, path: str, thing: Object) -> None:
        """Stores the answer of a write, so that the next round does not act on the state before it."""
        known = self._known[path].get(thing["metadata"]["uid"])
        if known is None or int(known["metadata"]["resourceVersion"]) < int(thing["metadata"]["resourceVersion"]):
            self._known[path][thing["metadata"]["uid"]] = thing

    # ---- what it does

    @abstractmethod
    async def round(self) -> None:
        """Reconciles all known objects once."""

    async def deleted(self, path: str, thing: Object) -> None:
        """Handles a deletion that was noticed, with the last state of the object."""
        return
