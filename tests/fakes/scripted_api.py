"""Scripted API server on loopback that admits everything: also objects that the real one would refuse, or with an open schema."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from aiohttp import web

from activities.clusters.api_server import ALL_THERE, BOOKMARK, Api, Object
from tests.fakes.loopback import served

WAIT_LIMIT = 60.0


class ScriptedApi:
    """Collections of objects by path, and their watchers."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, Object]] = {}
        self.refused: dict[tuple[str, str], tuple[int, str]] = {}
        """Errors to return for a method on a path: code and message."""
        self.answers: dict[tuple[str, str], tuple[int, Object]] = {}
        """Complete answers to return for a method on a path: code and body."""
        self.held: dict[tuple[str, str], asyncio.Event] = {}
        """Events that must be set before a method on a path is answered."""
        self.requests: list[tuple[str, str]] = []
        """Received methods and paths, in order."""
        self.streams = True
        """True if lists are streamed to clients that request it."""
        self.ends_streams = False
        """True if streamed lists end prematurely."""
        self.gone: set[str] = set()
        """Names of objects that are deleted while their list is streamed."""
        self._watchers: list[tuple[str, str, asyncio.Queue[Object]]] = []
        self._history: list[tuple[int, str, Object]] = []
        """Version, path and watch event of each change, for watches that begin with an older version."""
        self._answered = Counter[tuple[str, str]]()
        self._version = 0
        self._changed = asyncio.Condition()

    async def put(self, path: str, thing: Object) -> Object:
        """Creates or replaces an object of a collection without validation."""
        name = thing["metadata"]["name"]
        known = name in self.collections.setdefault(path, {})
        self.collections[path][name] = thing
        await self._changes("MODIFIED" if known else "ADDED", path, thing)
        return thing

    async def remove(self, path: str, name: str) -> Object:
        thing = self.collections[path].pop(name)
        await self._changes("DELETED", path, thing)
        return thing

    async def until(self, path: str, name: str, field: str) -> Object:
        """Waits until an object with this name or prefix has this field, and returns it."""

        def found() -> Object | None:
            things = self.collections.get(path, {})
            return next((thing for key, thing in things.items() if key.startswith(name) and thing.get(field)), None)

        async with asyncio.timeout(WAIT_LIMIT), self._changed:
            await self._changed.wait_for(lambda: found() is not None)
            thing = found()
            assert thing is not None
            return thing

    async def _changes(self, change: str, path: str, thing: Object) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        event = {"type": change, "object": thing}
        self._history.append((self._version, path, event))
        for watched, selector, queue in self._watchers:
            if _is_below(path, watched) and _selected(thing, selector):
                queue.put_nowait(event)
        async with self._changed:
            self._changed.notify_all()

    # ---- requests

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = await self._answer(request)
        async with self._changed:
            self._answered[request.method, request.path] += 1
            self._changed.notify_all()
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, method = request.path, request.method
        self.requests.append((method, request.raw_path))
        async with self._changed:
            self._changed.notify_all()
        if held := self.held.get((method, path)):
            await held.wait()
        whole = self.answers.get((method, path))
        if problem := self.refused.get((method, path)):
            whole = problem[0], {"kind": "Status", "code": problem[0], "message": problem[1]}
        if whole:
            return web.json_response(whole[1], status=whole[0])
        if method == "GET":
            return await self._read(request)
        body = json.loads(await request.read())
        if method == "POST":
            return await self._create(path, body, is_dry="dryRun" in request.query)
        collection, name = path.removesuffix("/status").rsplit("/", 1)
        if name not in self.collections.get(collection, {}):
            return web.json_response({"message": f"{name} is not found"}, status=404)
        if method == "DELETE":
            return web.json_response(await self.remove(collection, name))
        return await self._patch(collection, name, body)

    async def _patch(self, collection: str, name: str, body: Object) -> web.Response:
        known = self.collections[collection][name]
        if body.get("metadata", {}).get("uid") not in (None, known["metadata"]["uid"]):
            causes = {"details": {"causes": [{"field": "metadata.uid"}]}}
            return web.json_response({"message": f"{name} is another object", **causes}, status=422)
        return web.json_response(await self.put(collection, _merged(known, body)))

    async def _create(self, path: str, body: Object, *, is_dry: bool) -> web.Response:
        if is_dry:
            return web.json_response(body, status=201)
        name = body["metadata"]["name"]
        if name in self.collections.get(path, {}):
            return web.json_response({"message": f"{name} exists"}, status=409)
        body["metadata"].setdefault("uid", f"uid-of-{name}-{self._version}")
        return web.json_response(await self.put(path, body))

    async def _read(self, request: web.Request) -> web.StreamResponse:
        path, selector = request.path, request.query.get("labelSelector", "")
        collection, name = path.rsplit("/", 1)
        if name in self.collections.get(collection, {}):
            return web.json_response(self.collections[collection][name])
        things = [thing for where, known in self.collections.items() if _is_below(where, path) for thing in known.values()]
        items = [thing for thing in things if _selected(thing, selector)]
        if request.query.get("sendInitialEvents"):
            return await self._stream(request, items)
        if request.query.get("watch"):
            return await self._watch(request, selector, int(request.query["resourceVersion"]))
        begin, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", len(items) or 1))
        more = {"continue": str(begin + limit)} if begin + limit < len(items) else {}
        page = {"metadata": {"resourceVersion": str(self._version), **more}, "items": items[begin : begin + limit]}
        return web.json_response(page)

    async def _stream(self, request: web.Request, items: list[Object]) -> web.StreamResponse:
        """Streams a list. Its reader leaves at the end, and opens a watch."""
        if not self.streams:
            words = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            return web.json_response({"kind": "Status", "code": 422, "message": words}, status=422)
        response = web.StreamResponse()
        await response.prepare(request)
        end = {"resourceVersion": str(self._version), "annotations": {ALL_THERE: "true"}}
        changes = [{"type": "ADDED", "object": item} for item in items]
        changes += [{"type": "DELETED", "object": item} for item in items if item["metadata"]["name"] in self.gone]
        bookmarks = [] if self.ends_streams else [{"type": BOOKMARK, "object": {"metadata": end}}]
        for change in (*changes, *bookmarks):
            await response.write(json.dumps(change).encode() + b"\n")
        return response

    async def _watch(self, request: web.Request, selector: str, after: int) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Object] = asyncio.Queue()
        for version, path, event in self._history:
            if version > after and _is_below(path, request.path) and _selected(event["object"], selector):
                queue.put_nowait(event)
        self._watchers.append((request.path, selector, queue))
        async with self._changed:
            self._changed.notify_all()
        while True:
            await response.write(json.dumps(await queue.get()).encode() + b"\n")

    async def until_answered(self, method: str, path: str, times: int) -> None:
        async with asyncio.timeout(WAIT_LIMIT), self._changed:
            await self._changed.wait_for(lambda: self._answered[method, path] >= times)

    async def until_asked(self, method: str, path: str, times: int = 1) -> None:
        async with asyncio.timeout(WAIT_LIMIT), self._changed:
            await self._changed.wait_for(
                lambda: [(verb, raw.partition("?")[0]) for verb, raw in self.requests].count((method, path)) >= times
            )

    async def until_watched(self, path: str, streams: int = 1) -> None:
        """Waits until this number of streams watch the path, each with its own selector."""
        async with asyncio.timeout(WAIT_LIMIT), self._changed:
            await self._changed.wait_for(lambda: sum(watched == path for watched, _, _ in self._watchers) >= streams)


def _is_below(path: str, watched: str) -> bool:
    """Returns whether a collection is the watched one, or that of one namespace within it."""
    return watched in (path, re.sub(r"/namespaces/[^/]+(?=/)", "", path))


def _selected(thing: Object, selector: str) -> bool:
    key, _, value = selector.partition("=")
    labels: Mapping[str, str] = thing["metadata"].get("labels") or {}
    return not selector or (key in labels and (not value or labels[key] == value))


def _merged(thing: Object, change: Object) -> Object:
    merged = {**thing, **{key: _merged(thing.get(key) or {}, one) for key, one in change.items() if isinstance(one, dict)}}
    return {**merged, **{key: one for key, one in change.items() if not isinstance(one, dict)}}


@asynccontextmanager
async def scripted_api(directory: Path) -> AsyncIterator[tuple[ScriptedApi, Api]]:
    """Runs the server, and yields it with a client."""
    scripted = ScriptedApi()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", scripted.answer)
    async with served(application) as server:
        kubeconfig = directory / "kubeconfig"
        cluster = {"name": "scripted", "cluster": {"server": server}}
        context = {"name": "scripted", "context": {"cluster": "scripted", "user": "scripted"}}
        user = {"name": "scripted", "user": {"token": "none"}}
        config = {"current-context": "scripted", "clusters": [cluster], "contexts": [context], "users": [user]}
        kubeconfig.write_text(yaml.safe_dump(config))
        async with Api(kubeconfig) as api:
            yield scripted, api
