"""HTTP API of the local cluster. Objects are those of `rekindle.model.cluster` in camelCase, errors are `Status`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from rekindle.errors import WatchExpired
from rekindle.model.cluster import ClusterEvent, GenerationRequest, JobObject, MetadataPatch, NodePatch, Pod
from simulators.local_cluster.environment import log_of
from simulators.local_cluster.http import body_of, list_of, number_of, one, piece_of, refusals, start_of_tail, status_of
from simulators.local_cluster.machine import Machine
from simulators.local_cluster.store import Watch
from workers.training_job_phase import over

HEARTBEAT = 5.0
"""Seconds between empty lines on a quiet watch, by which a reader notices a frozen cluster."""

FOLLOW = 0.1
"""Seconds between two reads of a log that is followed."""


logger = logging.getLogger("cluster")


def application(machine: Machine) -> web.Application:
    """Returns the application with the routes for one cluster."""
    api = Api(machine)
    app = web.Application(middlewares=[refusals], client_max_size=8 * 1024 * 1024)
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
        return list_of(list(self._store.jobs.values()))

    async def get_job(self, request: web.Request) -> web.Response:
        return one(self._store.job(request.match_info["job"]))

    async def submit(self, request: web.Request) -> web.Response:
        return one(self._machine.jobs.submit(await body_of(request, JobObject)), 201)

    async def patch_job(self, request: web.Request) -> web.Response:
        patch = await body_of(request, MetadataPatch)
        return one(self._machine.jobs.patch(request.match_info["job"], patch.metadata))

    async def delete_job(self, request: web.Request) -> web.Response:
        return one(self._machine.jobs.delete(request.match_info["job"], number_of(request, "grace")))

    async def ensure_generation(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, GenerationRequest)
        return list_of(self._machine.jobs.ensure_generation(request.match_info["job"], wanted))

    async def list_pods(self, request: web.Request) -> web.Response:
        job = request.query.get("job")
        return list_of(list(self._store.pods.values()) if job is None else self._store.pods_of(job))

    async def create_pod(self, request: web.Request) -> web.Response:
        return one(self._machine.pods.create(await body_of(request, Pod)), 201)

    async def get_pod(self, request: web.Request) -> web.Response:
        return one(self._store.pod(request.match_info["pod"]))

    async def patch_pod(self, request: web.Request) -> web.Response:
        patch = await body_of(request, MetadataPatch)
        return one(self._machine.pods.patch(request.match_info["pod"], request.query.get("uid", ""), patch.metadata))

    async def delete_pod(self, request: web.Request) -> web.Response:
        uid, grace = request.query.get("uid", ""), number_of(request, "grace")
        return one(self._machine.pods.delete(request.match_info["pod"], uid, grace))

    async def list_nodes(self, request: web.Request) -> web.Response:
        return list_of(self._machine.counted(list(self._store.nodes.values())))

    async def get_node(self, request: web.Request) -> web.Response:
        return self._node(request.match_info["node"])

    def _node(self, name: str) -> web.Response:
        (node,) = self._machine.counted([self._store.node(name)])
        return one(node)

    async def patch_node(self, request: web.Request) -> web.Response:
        name, patch = request.match_info["node"], await body_of(request, NodePatch)
        self._machine.patch_node(name, patch)
        return self._node(name)

    async def list_events(self, request: web.Request) -> web.Response:
        name = request.query.get("name")
        return list_of([event for event in self._store.events if name is None or event.name == name])

    async def record(self, request: web.Request) -> web.Response:
        return one(self._store.record(await body_of(request, ClusterEvent)), 201)

    # ---- streams

    async def watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        with self._store.watching() as watch:
            await response.prepare(request)
            beat = asyncio.create_task(_beat(request, response, watch))
            try:
                await _write_all(watch, response)
            except ConnectionError:
                logger.debug("watch client disconnected")
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
        start = start_of_tail(log_of(pod, job), number_of(request, "tail"))
        await response.prepare(request)
        async for piece in self._read(pod, log_of(pod, job), start, follow=follow):
            await response.write(piece)
        return response

    async def _read(self, pod: Pod, log: Path, start: int, *, follow: bool) -> AsyncIterator[bytes]:
        """Yields the log from a position on; with `follow` until the pod has ended and everything was read."""
        while True:
            current = self._store.pods.get(pod.metadata.name)
            ended = current is None or current.metadata.uid != pod.metadata.uid or over(current)
            while piece := piece_of(log, start):
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
        await response.write(status_of(410, expired).model_dump_json().encode() + b"\n")


async def _beat(request: web.Request, response: web.StreamResponse, watch: Watch) -> None:
    """Sends heartbeats. Ends the watch of a client that left, and the connection of one that was cut and does not read."""
    while not watch.over:
        await asyncio.sleep(HEARTBEAT)
        try:
            if not watch.over:
                await response.write(b"\n")
        except ConnectionError:
            watch.cut("the watcher left")
    if request.transport:
        request.transport.abort()
