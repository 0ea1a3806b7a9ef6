"""The HTTP API of the local cluster. Objects are those of `rekindle.model.cluster` in camelCase, refusals are `Status`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from rekindle.errors import ClusterError, Conflict, Invalid, NotFound, WatchExpired
from rekindle.model.cluster import (
    ClusterEvent,
    GenerationRequest,
    JobObject,
    MetadataPatch,
    NodePatch,
    Pod,
    Status,
)
from rekindle.model.manifest import problems
from workers.cluster.environment import log_of
from workers.cluster.machine import Machine
from workers.cluster.scheduling import over
from workers.cluster.store import Watch

HEARTBEAT = 5.0
"""Seconds between empty lines on a quiet watch: whoever reads it sees a frozen cluster."""

FOLLOW = 0.1
"""Seconds between two looks at a log that is followed."""

PIECE = 256 * 1024
CODES: dict[type[ClusterError], int] = {NotFound: 404, Conflict: 409, WatchExpired: 410, Invalid: 422}

logger = logging.getLogger("cluster")
Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(machine: Machine) -> web.Application:
    """The routes over one cluster."""
    api = Api(machine)
    app = web.Application(middlewares=[_refusals], client_max_size=8 * 1024 * 1024)
    app.add_routes(
        [
            web.get("/jobs", api.list_jobs),
            web.post("/jobs", api.submit),
            web.get("/jobs/{job}", api.get_job),
            web.patch("/jobs/{job}", api.patch_job),
            web.delete("/jobs/{job}", api.delete_job),
            web.post("/jobs/{job}/pods", api.ensure_generation),
            web.get("/pods", api.list_pods),
            web.post("/pods", api.create_pod),
            web.get("/pods/{pod}", api.get_pod),
            web.patch("/pods/{pod}", api.patch_pod),
            web.delete("/pods/{pod}", api.delete_pod),
            web.get("/pods/{pod}/logs", api.logs),
            web.get("/nodes", api.list_nodes),
            web.get("/nodes/{node}", api.get_node),
            web.patch("/nodes/{node}", api.patch_node),
            web.get("/events", api.list_events),
            web.post("/events", api.record),
            web.get("/watch", api.watch),
            web.post("/watch/break", api.break_watches),
        ]
    )
    return app


class Api:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store

    async def list_jobs(self, request: web.Request) -> web.Response:
        return _json_list(list(self._store.jobs.values()))

    async def get_job(self, request: web.Request) -> web.Response:
        return _json(self._store.job(request.match_info["job"]))

    async def submit(self, request: web.Request) -> web.Response:
        return _json(self._machine.jobs.submit(await _body(request, JobObject)), 201)

    async def patch_job(self, request: web.Request) -> web.Response:
        patch = await _body(request, MetadataPatch)
        return _json(self._machine.jobs.patch(request.match_info["job"], patch.metadata))

    async def delete_job(self, request: web.Request) -> web.Response:
        return _json(self._machine.jobs.delete(request.match_info["job"], _number(request, "grace")))

    async def ensure_generation(self, request: web.Request) -> web.Response:
        wanted = await _body(request, GenerationRequest)
        return _json_list(self._machine.jobs.ensure_generation(request.match_info["job"], wanted))

    async def list_pods(self, request: web.Request) -> web.Response:
        job = request.query.get("job")
        return _json_list(list(self._store.pods.values()) if job is None else self._store.pods_of(job))

    async def create_pod(self, request: web.Request) -> web.Response:
        return _json(self._machine.pods.create(await _body(request, Pod)), 201)

    async def get_pod(self, request: web.Request) -> web.Response:
        return _json(self._store.pod(request.match_info["pod"]))

    async def patch_pod(self, request: web.Request) -> web.Response:
        patch = await _body(request, MetadataPatch)
        return _json(self._machine.pods.patch(request.match_info["pod"], request.query.get("uid", ""), patch.metadata))

    async def delete_pod(self, request: web.Request) -> web.Response:
        uid, grace = request.query.get("uid", ""), _number(request, "grace")
        return _json(self._machine.pods.delete(request.match_info["pod"], uid, grace))

    async def list_nodes(self, request: web.Request) -> web.Response:
        return _json_list(list(self._store.nodes.values()))

    async def get_node(self, request: web.Request) -> web.Response:
        return _json(self._store.node(request.match_info["node"]))

    async def patch_node(self, request: web.Request) -> web.Response:
        patch = await _body(request, NodePatch)
        return _json(self._machine.patch_node(request.match_info["node"], patch))

    async def list_events(self, request: web.Request) -> web.Response:
        name = request.query.get("name")
        return _json_list([event for event in self._store.events if name is None or event.name == name])

    async def record(self, request: web.Request) -> web.Response:
        return _json(self._store.record(await _body(request, ClusterEvent)), 201)

    # ---- streams

    async def watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        with self._store.watching() as watch:
            await response.prepare(request)
            beat = asyncio.create_task(_beat(request, response, watch))
            try:
                await _write_all(watch, response)
            except ConnectionError:
                logger.debug("a watcher left")
            finally:
                beat.cancel()
        return response

    async def break_watches(self, request: web.Request) -> web.Response:
        return web.json_response({"broken": self._store.break_watches("the watch was broken on request")})

    async def logs(self, request: web.Request) -> web.StreamResponse:
        pod = self._store.pod(request.match_info["pod"])
        job = self._store.job(pod.metadata.owner_uid)
        follow = request.query.get("follow") == "true"
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        start = _start_of_tail(log_of(pod, job), _number(request, "tail"))
        await response.prepare(request)
        async for piece in self._read(pod, log_of(pod, job), start, follow=follow):
            await response.write(piece)
        return response

    async def _read(self, pod: Pod, log: Path, start: int, *, follow: bool) -> AsyncIterator[bytes]:
        """The log from a position; with `follow` until the pod is over and everything was read."""
        while True:
            current = self._store.pods.get(pod.metadata.name)
            ended = current is None or current.metadata.uid != pod.metadata.uid or over(current)
            while piece := _piece(log, start):
                start += len(piece)
                yield piece
            if ended or not follow:
                return
            await asyncio.sleep(FOLLOW)


async def _write_all(watch: Watch, response: web.StreamResponse) -> None:
    try:
        async for event in watch.events():
            await response.write(event.model_dump_json(by_alias=True).encode() + b"\n")
    except WatchExpired as expired:
        await response.write(_status(410, expired).model_dump_json().encode() + b"\n")


async def _beat(request: web.Request, response: web.StreamResponse, watch: Watch) -> None:
    """Notices a watcher that left, and lets go of one that was cut and does not even read that."""
    while not watch.over:
        await asyncio.sleep(HEARTBEAT)
        try:
            if not watch.over:
                await response.write(b"\n")
        except ConnectionError:
            watch.cut("the watcher left")
    if request.transport:
        request.transport.abort()


def _piece(log: Path, start: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(start)
            return file.read(PIECE)
    except FileNotFoundError:
        return b""


def _start_of_tail(log: Path, lines: int | None) -> int:
    """Where the last lines begin."""
    if lines is None or not log.exists():
        return 0
    content = log.read_bytes()
    kept = content.splitlines(keepends=True)[-lines:] if lines else []
    return len(content) - sum(len(line) for line in kept)


async def _body(request: web.Request, kind: type[Body]) -> Body:
    """The body as a model; an unknown field is refused by its name."""
    try:
        return kind.model_validate_json(await request.read(), extra="forbid")
    except ValidationError as error:
        raise Invalid("; ".join(problems(error, kind))) from error


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > 86400:
        raise Invalid(f"{name}: {text!r} is not accepted (accepted: whole numbers from 0 to 86400)")
    return int(text)


def _json(thing: BaseModel, code: int = 200) -> web.Response:
    return web.Response(text=thing.model_dump_json(by_alias=True), status=code, content_type="application/json")


def _json_list(things: Sequence[BaseModel]) -> web.Response:
    items = ",".join(thing.model_dump_json(by_alias=True) for thing in things)
    return web.Response(text=f"[{items}]", content_type="application/json")


def _status(code: int, error: Exception) -> Status:
    return Status(code=code, reason=type(error).__name__, message=str(error))


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure becomes a `Status`."""
    try:
        return await handler(request)
    except ClusterError as error:
        code = CODES.get(type(error), 500)
        return _json(_status(code, error), code)
    except web.HTTPException as error:
        words = f"{request.method} {request.path}: {error.reason}"
        return _json(Status(code=error.status, reason=type(error).__name__, message=words), error.status)
    except Exception as error:
        logger.exception("a request failed", extra={"path": request.path})
        return _json(_status(500, error), 500)
