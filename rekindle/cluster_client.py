"""Client of the local cluster over its Unix socket. Used by the command line and by the driver `activities/clusters/local.py`.

Errors are those of `rekindle.errors`: ClusterUnavailable if the cluster does not answer, NotFound, Conflict and Invalid as the
cluster answers, WatchExpired when a watch ends.
"""

import codecs
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, TypeAdapter, ValidationError

from rekindle.errors import BadInput, ClusterError, ClusterUnavailable, Conflict, Invalid, NotFound, WatchExpired
from rekindle.model.cluster import (
    ClusterEvent,
    Condition,
    GenerationRequest,
    JobObject,
    LinkPatch,
    MetadataChange,
    MetadataPatch,
    Node,
    NodePatch,
    Pod,
    Status,
    WatchEvent,
)

REQUEST_LIMIT = 5.0
"""Time limit of one request in seconds; a watch and the following of a log have no such limit."""

SILENCE_LIMIT = 20.0
"""Seconds without a byte after which a watch fails. The cluster sends an empty line every few seconds."""

SOCKET_BYTES = 107
"""Maximum length of the path of a Unix socket on Linux."""

MAX_LINE = 8 * 1024 * 1024
"""Maximum bytes of one object on a watch."""

REFUSAL = b'{"code"'
"""Beginning of the last line of a watch that fails: the line is a `Status` instead of an event."""

ERRORS: Mapping[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 400: Invalid, 422: Invalid, 410: WatchExpired}

Answer = TypeVar("Answer")
Object = TypeVar("Object", bound=BaseModel)
Value = str | int | bool | None


def checked_socket(path: Path) -> Path:
    """Returns the path, if a Unix socket may have it.

    Raises:
        BadInput: it is too long.
    """
    length = len(str(path).encode())
    if length > SOCKET_BYTES:
        raise BadInput(
            f"socket {path}: {length} bytes, a Unix socket's path has at most {SOCKET_BYTES}: "
            "choose a shorter state directory (--state-dir, REKINDLE_STATE_DIR; of the demo: TMPDIR)"
        )
    return path


class ClusterClient:
    """One connection pool to one local cluster. `async with`, or `close()`."""

    def __init__(self, socket: Path) -> None:
        self.socket = checked_socket(socket)
        self._open: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._open:
            await self._open.close()
            self._open = None

    # ---- jobs, by UID or by name

    async def jobs(self) -> list[JobObject]:
        return await self._get("/jobs", list[JobObject])

    async def job(self, reference: str) -> JobObject:
        return await self._get(_path("job", reference), JobObject)

    async def submit(self, job: JobObject) -> JobObject:
        """Creates the job and its first pods; returns it with its UID.

        Raises:
            Conflict: the name is taken. Invalid: a field is wrong; the message names it.
        """
        return await self._send("POST", "/jobs", job, JobObject)

    async def delete_job(self, reference: str, grace: int | None = None) -> JobObject:
        """Deletes the job and its pods; `grace` in seconds, by default each pod's own."""
        return await self._send("DELETE", _path("job", reference), None, JobObject, grace=grace)

    async def patch_job(
        self, reference: str, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]
    ) -> JobObject:
        """Changes labels and annotations of a job; None removes a key."""
        return await self._send("PATCH", _path("job", reference), _change(labels, annotations), JobObject)

    async def ensure_generation(self, reference: str, generation: str, avoid_nodes: Sequence[str] = ()) -> list[Pod]:
        """Returns the job's pods of this generation, created where missing."""
        request = GenerationRequest(generation=generation, avoid_nodes=tuple(avoid_nodes))
        return await self._send("POST", _path("job", reference, "/pods"), request, list[Pod])

    # ---- pods

    async def pods(self, job_id: str | None = None) -> list[Pod]:
        """Returns the pods of a job, by its UID, or all pods."""
        return await self._get("/pods", list[Pod], job=job_id)

    async def pod(self, name: str) -> Pod:
        return await self._get(_path("pod", name), Pod)

    async def create_pod(self, pod: Pod) -> Pod:
        return await self._send("POST", "/pods", pod, Pod)

    async def patch_pod(
        self, name: str, uid: str, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]
    ) -> Pod:
        return await self._send("PATCH", _path("pod", name), _change(labels, annotations), Pod, uid=uid)

    async def delete_pod(self, name: str, uid: str = "", grace: int | None = None) -> Pod:
        """Deletes a pod. If the pod has another UID, it is a Conflict."""
        return await self._send("DELETE", _path("pod", name), None, Pod, uid=uid or None, grace=grace)

    async def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> AsyncGenerator[str, None]:
        """Yields the output of a pod in pieces; with `follow` until the pod has ended."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end inside a character
        async with self._stream(
            _path("pod", name, "/logs"), None, follow=follow, tail=tail
        ) as response:  # a log may be silent for long
            async for piece in response.content.iter_any():
                yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)

    # ---- nodes

    async def nodes(self) -> list[Node]:
        return await self._get("/nodes", list[Node])

    async def node(self, name: str) -> Node:
        return await self._get(_path("node", name), Node)

    async def degrade(self, name: str, code: str, message: str) -> Node:
        """Makes the node sub-healthy: it works, but slowly."""
        return await self._condition(name, Condition(type="SubHealthy", status="True", reason=code, message=message))

    async def heal(self, name: str) -> Node:
        """Ends the node's sub-health."""
        return await self._condition(name, Condition(type="SubHealthy", status="False"))

    async def take_down(self, name: str, message: str = "") -> Node:
        """Makes the node lost, with all its pods."""
        return await self._condition(name, Condition(type="Ready", status="False", reason="NodeLost", message=message))

    async def bring_up(self, name: str) -> Node:
        """Brings a lost node back, without pods."""
        return await self._condition(name, Condition(type="Ready", status="True"))

    async def set_capacity(self, name: str, accelerators: int) -> Node:
        """Sets the number of accelerators of a node. Running pods stay; new pods use the new number."""
        return await self._send("PATCH", _path("node", name), NodePatch(accelerators=accelerators), Node)

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        """Sets annotations of a node; None removes a key."""
        return await self._send("PATCH", _path("node", name), NodePatch(annotations=dict(annotations)), Node)

    async def cordon(self, name: str, *, cordoned: bool) -> Node:
        """Cordons a node, so that no new pod is placed there, or uncordons it. Running pods stay."""
        return await self._send("PATCH", _path("node", name), NodePatch(unschedulable=cordoned), Node)

    async def set_link(self, node: str, link: str, *, up: bool) -> Node:
        """Pulls the cable of a node's link, such as `eth1`, or plugs it in again.

        Raises:
            Invalid: the node has no such link.
        """
        return await self._send("PATCH", _path("node", node), NodePatch(links=(LinkPatch(name=link, up=up),)), Node)

    async def set_leaf(self, link: str, *, up: bool) -> list[Node]:
        """Does the same for the links of this name on all nodes, which one leaf switch connects."""
        return [await self.set_link(node.metadata.name, link, up=up) for node in await self.nodes()]

    async def _condition(self, name: str, condition: Condition) -> Node:
        return await self._send("PATCH", _path("node", name), NodePatch(conditions=(condition,)), Node)

    # ---- events and the watch

    async def events(self, name: str | None = None) -> list[ClusterEvent]:
        """Returns events about the object of this name, or all; the oldest first."""
        return await self._get("/events", list[ClusterEvent], name=name)

    async def record(self, event: ClusterEvent) -> ClusterEvent:
        return await self._send("POST", "/events", event, ClusterEvent)

    async def watch(self) -> AsyncGenerator[WatchEvent, None]:
        """Yields changes, beginning with ADDED for all existing objects. Always ends with WatchExpired or ClusterUnavailable."""
        async with self._stream("/watch", SILENCE_LIMIT) as response:
            async for line in response.content:
                if line.startswith(REFUSAL):
                    status = _read(Status, line)
                    raise ERRORS.get(status.code, ClusterUnavailable)(status.message)
                if line.strip():
                    yield _read(WatchEvent, line)
        raise WatchExpired("the watch ended: list again, watch again")

    async def break_watches(self) -> None:
        """Ends every watch, as a cluster may at any time; for tests."""
        await self._send("POST", "/watch/break", None, dict[str, int])

    # ---- requests

    def _session(self) -> aiohttp.ClientSession:
        if self._open is None:
            connector = aiohttp.UnixConnector(path=str(self.socket), limit=0)
            self._open = aiohttp.ClientSession("http://cluster", connector=connector, read_bufsize=MAX_LINE)
        return self._open

    async def _get(self, path: str, kind: type[Answer], **query: Value) -> Answer:
        return await self._send("GET", path, None, kind, **query)

    async def _send(self, method: str, path: str, body: BaseModel | None, kind: type[Answer], **query: Value) -> Answer:
        timeout = aiohttp.ClientTimeout(total=REQUEST_LIMIT)
        async with self._request(method, path, body, timeout, query) as response:
            return _read(kind, await response.read())

    @asynccontextmanager
    async def _stream(self, path: str, silence: float | None, **query: Value) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_LIMIT, sock_read=silence)
        async with self._request("GET", path, None, timeout, query) as response:
            yield response

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: BaseModel | None, timeout: aiohttp.ClientTimeout, query: Mapping[str, Value]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends one request; every failure is raised as an error of `rekindle.errors`."""
        content = None if body is None else body.model_dump_json(by_alias=True)
        headers = {} if content is None else {"Content-Type": "application/json"}
        parameters = {name: str(value).lower() if value is True else str(value) for name, value in query.items() if _said(value)}
        try:
            async with self._session().request(
                method, path, data=content, params=parameters, headers=headers, timeout=timeout
            ) as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.read())
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = str(error) or type(error).__name__
            raise ClusterUnavailable(f"the local cluster does not answer at {self.socket}: {words}") from error


def _path(kind: str, name: str, below: str = "") -> str:
    """Returns the API path of an object. The name, which a user may have typed, is escaped to a single part of the path.

    Raises:
        NotFound: the name would lead elsewhere, or is not printable text.
    """
    if name in ("", ".", "..") or not name.isprintable():
        raise NotFound(f"no {kind} is named {name!r}")
    return f"/{kind}s/{quote(name, safe='')}{below}"


def _said(value: Value) -> bool:
    return value is not None and value is not False


def _change(labels: Mapping[str, str | None], annotations: Mapping[str, str | None]) -> MetadataPatch:
    return MetadataPatch(metadata=MetadataChange(labels=dict(labels), annotations=dict(annotations)))


def _read(kind: type[Answer], content: bytes) -> Answer:
    try:
        return TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        raise ClusterUnavailable(f"the local cluster answers what is no {kind}: {error}") from error


def _refusal(code: int, content: bytes) -> ClusterError:
    try:
        message = Status.model_validate_json(content).message
    except ValidationError:
        message = content.decode(errors="replace")[:500]
    return ERRORS.get(code, ClusterUnavailable)(message)
