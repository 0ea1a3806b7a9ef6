"""Client of one Kubernetes API server, based on the official client: the only module that imports it. Used by the drivers.

Objects are plain mappings, as the server sends them, so that the same code serves built-in kinds and custom ones. Every answer
that is not a success becomes an error of `rekindle.errors`. Reads and writes are not repeated here, since activities are.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Self

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from prometheus_client import Counter, Histogram
from yaml import YAMLError

from rekindle.errors import (
    MALFORMED,
    BadInput,
    ClusterError,
    ClusterUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    WatchExpired,
)
from rekindle.model.compatibility import API_SERVER

REQUEST_LIMIT = 10.0
"""Seconds for one request; a watch has no such limit."""

ENDED = 1.0
"""Minimum seconds between two openings of a watch that ends without any data.

A proxy, or a server that shuts down, ends each watch at once.
"""

SILENCE_LIMIT = 90.0
"""Seconds without a byte on a watch; the server sends a bookmark about once a minute."""

PAGED = 600.0
"""Seconds for which lists are read in pages after a streamed list broke.

A server may accept the parameter, and send no bookmark.
"""

PAGE = 500
"""Objects of one page of a list."""

LARGEST_PAGE = 64 * 1024 * 1024
"""Maximum bytes of one page, which need five times as much memory.

Objects of tenants may have a megabyte: pages of such objects have fewer of them.
"""

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of one event of a watch. The server keeps objects of 1.5 MiB, and writes some characters as six."""

BOOKMARK = "BOOKMARK"
"""Event of a watch that only says up to which version it has come."""

ALL_THERE = "k8s.io/initial-events-end"
"""Annotation of the bookmark after the last object of a streamed list."""

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""A list of objects without their specs and statuses."""

MERGE_PATCH = "application/merge-patch+json"
ITEMS_PATCH = "application/strategic-merge-patch+json"

ERRORS: Mapping[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: WatchExpired,
    413: Invalid,
    422: Invalid,
}

DEEPEST = 400
"""Maximum nesting of an answer; deeper levels are replaced.

Python's parser gives up at about a thousand levels, and the API server admits more.
"""

TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""Matches the tokens of JSON that determine nesting depth: strings and brackets."""

Object = dict[str, Any]

REQUESTS = Counter("rekindle_kube_requests", "Requests to the API server, by the code of the answer.", ("verb", "code"))
REQUEST_SECONDS = Histogram(
    "rekindle_kube_request_seconds",
    "Time until the API server began its answer.",
    ("verb",),
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)

logger = logging.getLogger("cluster")


@dataclass(frozen=True)
class Listing:
    """All objects of a path at one moment."""

    items: list[Object]
    resource_version: str
    """Version at which a watch can begin without missing a change."""


@dataclass(frozen=True)
class Change:
    """Event of a watch: ADDED, MODIFIED or DELETED; also BOOKMARK, from methods that document it."""

    type: str
    object: Object


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Object | None = None
    kind: str = JSON
    limit: float | None = REQUEST_LIMIT
    silence: float = SILENCE_LIMIT
    """Seconds without a byte after which a request without a total limit fails."""

    accept: str = JSON
    credentials: bool = True


READY = Request("GET", "/readyz")


@dataclass
class Connection:
    """Connections with one set of credentials. Connections with older credentials are closed by their last request."""

    client: ApiClient
    users: int = 0


class Api:
    """One API server, under one identity. `async with`, or `close()`."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """Args:
        kubeconfig: its current context; None: the service account of the pod that this process runs in.
        """
        self._kubeconfig = kubeconfig
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._streams_from = 0.0
        """Monotonic time from which lists are requested as streams."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.client.close()
            self._connection = None

    async def address(self) -> str:
        """Returns the address of the server, without a password in it.

        Raises:
            BadInput: the kubeconfig cannot be used.
            ClusterUnavailable: a file that it names cannot be read.
        """
        try:
            async with self._connected() as connection:
                return re.sub(r"//[^/]*@", "//", str(connection.client.configuration.host))
        except OSError as error:
            raise ClusterUnavailable(f"kubeconfig {self._kubeconfig}: {error}") from error

    # ---- objects

    async def get(self, path: str) -> Object:
        return await self._ask("GET", path)

    async def list(self, path: str, **selectors: str) -> Listing:
        """Args:
        selectors: `labelSelector`, `fieldSelector`.
        """
        items: list[Object] = []
        async for page in self.pages(path, **selectors):
            items += page.items
        return Listing(items, page.resource_version)

    async def pages(self, path: str, **selectors: str) -> AsyncGenerator[Listing, None]:
        """Yields the objects of a path in pages, so that not all of them are in memory at once."""
        async for page in self._pages(path, JSON, **selectors):
            yield page

    async def metadata(self, path: str, **selectors: str) -> AsyncGenerator[Listing, None]:
        """Yields pages of objects with only their metadata."""
        async for page in self._pages(path, METADATA, **selectors):
            yield page

    async def _pages(self, path: str, accept: str, **selectors: str) -> AsyncGenerator[Listing, None]:
        query, limit = dict(selectors), PAGE
        while True:
            query["limit"] = str(limit)
            async with self._answer(Request("GET", path, query, accept=accept)) as answer:
                content = await _read(answer, LARGEST_PAGE if limit > 1 else None)
            if content is None:
                limit = max(1, limit // 8)
                continue
            page, more = _page(_parsed(content))
            del content
            yield page
            if not more:
                return
            query["continue"] = more

    async def everything(self, path: str, **selectors: str) -> AsyncGenerator[Change, None]:
        """Yields all objects one by one, then a BOOKMARK at which a watch can begin without missing a change.

        If the server supports streamed lists (WatchList), neither side holds more than one object at a time; otherwise pages are
        read. An object that changes meanwhile may come again, or as DELETED.
        """
        if time.monotonic() >= self._streams_from:
            try:
                async with aclosing(self._streamed(path, **selectors)) as changes:
                    async for change in changes:
                        yield change
            except Invalid as unknown:
                logger.info("list streaming not supported, lists read in pages", extra={"reason": str(unknown)})
                self._streams_from = inf
            else:
                return
        async for page in self.pages(path, **selectors):
            for item in page.items:
                yield Change("ADDED", item)
        yield Change(BOOKMARK, {"metadata": {"resourceVersion": page.resource_version}})

    async def _streamed(self, path: str, **selectors: str) -> AsyncGenerator[Change, None]:
        """Yields all objects of a streamed list.

        Raises:
            Invalid: the server does not support it; nothing was yielded.
        """
        stream = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        query = {**selectors, **stream, "allowWatchBookmarks": "true"}
        async with self._answer(Request("GET", path, query, limit=None, silence=REQUEST_LIMIT)) as answer:
            try:
                async for line in _lines(answer):
                    change = _change(line)
                    if change is None:
                        continue
                    if change.type != BOOKMARK:
                        yield change
                    elif (change.object["metadata"].get("annotations") or {}).get(ALL_THERE) == "true":
                        yield change
                        return
                raise ClusterUnavailable(f"GET {path}: the stream of the list ended before its end")
            except Exception:
                self._streams_from = time.monotonic() + PAGED
                raise

    async def create(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        """Creates an object.

        Args:
            dry_run: the object passes admission, and is not created.
        """
        return await self._ask("POST", path, {"dryRun": "All"} if dry_run else {}, body)

    async def patch(self, path: str, body: Object) -> Object:
        """Applies a merge patch: None removes a key."""
        return await self._ask("PATCH", path, {}, body, MERGE_PATCH)

    async def patch_items(self, path: str, body: Object) -> Object:
        """Applies a patch that merges lists by the keys of their items, such as the types of conditions. Built-in kinds only."""
        return await self._ask("PATCH", path, {}, body, ITEMS_PATCH)

    async def delete(self, path: str, uid: str, grace_seconds: int | None = None, version: str = "") -> None:
        """Deletes exactly this object; `grace_seconds` None means its own grace period.

        Args:
            version: resource version that the object must still have; empty: any.

        Raises:
            Conflict when the name belongs to another object.
        """
        same = {"uid": uid, **({"resourceVersion": version} if version else {})}
        options: Object = {"preconditions": same, "propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._ask("DELETE", path, {}, options)

    async def watch(self, path: str, resource_version: str, **selectors: str) -> AsyncGenerator[Change, None]:
        """Yields changes after this version, without end.

        A stream that the server ends regularly, or that is silent for long, is opened again at the same position: some servers
        send no bookmarks for objects that never change.

        Raises:
            WatchExpired when the version is too old, ClusterUnavailable when the stream breaks: list again.
        """
        while True:
            query = {**selectors, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": resource_version}
            said, began = False, time.monotonic()
            async with self._answer(Request("GET", path, query, limit=None, silence=SILENCE_LIMIT)) as answer:
                async for line in _lines_until_silent(answer):
                    if (change := _change(line)) is None:
                        continue
                    said, resource_version = True, change.object["metadata"]["resourceVersion"]
                    if change.type != BOOKMARK:
                        yield change
            if not said:
                await asyncio.sleep(began + ENDED - time.monotonic())

    async def is_ready(self) -> bool:
        """Returns whether the server is ready.

        A server that has just started, or that cannot reach its store, is not: it may refuse valid requests.
        """
        try:
            return await self._is_ready()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False

    # ---- requests

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Object | None = None, kind: str = JSON
    ) -> Object:
        async with self._answer(Request(method, path, query or {}, body, kind)) as answer:
            found: Object = _parsed(await answer.read())
            return found

    @asynccontextmanager
    async def _answer(self, request: Request) -> AsyncIterator[RESTResponse]:
        """Yields the server's answer if it is a success. Expired credentials are read again, once."""
        try:
            async with AsyncExitStack() as stack:
                answer = await stack.enter_async_context(self._sent(request))
                if answer.status == 401:
                    answer = await stack.enter_async_context(self._sent(request))
                if not 200 <= answer.status < 300:
                    refusal = _refusal(answer.status, await answer.read(), answer.headers)
                    if answer.status in (401, 403) and await self._cannot_tell(answer.status):
                        raise ClusterUnavailable(f"the API server is not ready, and cannot tell who may do what: {refusal}")
                    raise refusal
                yield answer
        except TimeoutError as error:
            raise ClusterUnavailable(f"{request.method} {request.path}: the API server did not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterUnavailable(f"{request.method} {request.path}: {error or type(error).__name__}") from error

    async def _cannot_tell(self, refused: int) -> bool:
        """Returns whether a refusal may be temporary.

        A server that has just started, or that cannot reach its store, refuses requests that it will allow later. After a
        403 its readiness is read with our credentials, after a 401 without them.
        """
        if refused == 403:
            return not await self._is_ready()
        async with self._sent(replace(READY, credentials=False)) as answer:
            return bool(answer.status >= 500)

    async def _is_ready(self) -> bool:
        async with self._sent(READY) as answer:
            return bool(answer.status == 200)

    @asynccontextmanager
    async def _sent(self, request: Request) -> AsyncIterator[RESTResponse]:
        """Sends the request and yields the answer.

        After a 401 the next request reads the credentials again; requests in flight keep their connections.
        """
        async with self._connected() as connection:
            call = await connection.client.param_serialize(
                request.method,
                request.path,
                query_params=list(request.query.items()),
                header_params={"Accept": request.accept, "Content-Type": request.kind, "User-Agent": "rekindle"},
                body=request.body,
                auth_settings=["BearerToken"] if request.credentials else [],
            )
            limits = {"sock_connect": REQUEST_LIMIT, "sock_read": request.limit or request.silence}
            timeout = aiohttp.ClientTimeout(total=request.limit, **limits)
            with _measured(request) as code:
                answer = await connection.client.call_api(*call, _request_timeout=timeout)
                code.append(str(answer.status))
            try:
                if answer.status == 401 and connection is self._connection:
                    self._connection = None
                yield answer
            finally:
                answer.response.release()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        async with self._connecting:
            if self._connection is None:
                self._connection = Connection(ApiClient(await self._configuration()))
            connection = self._connection
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            if not connection.users and connection is not self._connection:
                await connection.client.close()

    async def _configuration(self) -> Configuration:
        configuration = Configuration()
        configuration.connection_pool_maxsize = 0  # without end: each wait for pods holds a connection, for minutes
        try:
            if self._kubeconfig:
                await load_kube_config(str(self._kubeconfig), client_configuration=configuration, persist_config=False)
            else:
                load_incluster_config(configuration)
        except (ConfigException, YAMLError, *MALFORMED) as error:
            source = f"kubeconfig {self._kubeconfig}" if self._kubeconfig else "the pod's service account"
            raise BadInput(f"{source}: {_problem_of_config(error)}") from error
        return configuration


def _problem_of_config(error: Exception) -> str:
    """Returns why a kubeconfig cannot be used. What a parser of YAML says may quote the file, which has credentials."""
    if isinstance(error, ConfigException):
        return str(error)
    mark = getattr(error, "problem_mark", None)
    return f"not YAML, in line {mark.line + 1}" if mark else f"no kubeconfig: {type(error).__name__}"


@contextmanager
def _measured(request: Request) -> Iterator[list[str]]:
    """Counts a request by the code that the block appends. A request without an answer has the code `none`."""
    verb, code, began = "WATCH" if "watch" in request.query else request.method, list[str](), time.monotonic()
    try:
        yield code
    finally:
        REQUESTS.labels(verb, code[0] if code else "none").inc()
        REQUEST_SECONDS.labels(verb).observe(time.monotonic() - began)


def lean(thing: Object) -> Object:
    """Returns the object without the record of field managers, which may be most of it."""
    thing["metadata"].pop("managedFields", None)
    return thing


async def _read(answer: RESTResponse, most: int | None) -> bytes | None:
    """Returns the body of an answer; None: it is larger than `most` bytes, and the rest was not read."""
    parts, size = [], 0
    async for part in answer.response.content.iter_any():
        parts.append(part)
        size += len(part)
        if most is not None and size > most:
            return None
    return b"".join(parts)


async def _lines(answer: RESTResponse) -> AsyncIterator[bytes]:
    while line := await answer.response.content.readline(max_line_length=LONGEST_LINE):
        yield line


async def _lines_until_silent(answer: RESTResponse) -> AsyncIterator[bytes]:
    with suppress(TimeoutError):
        async for line in _lines(answer):
            yield line


def _parsed(content: bytes) -> Any:
    """Parses JSON.

    Raises:
        ClusterUnavailable: it is not JSON, so another service answered.
    """
    try:
        try:
            return json.loads(content)
        except RecursionError:
            return json.loads(_shallow(content))
    except ValueError as error:
        raise ClusterUnavailable(f"the API server answers what is not JSON: {error}") from error


def _shallow(content: bytes) -> bytes:
    """Returns the JSON with a string in place of everything that is nested too deeply.

    One such object must not make a list unreadable; its reader finds a string where a mapping belongs.
    """
    kept, level, last = [], 0, 0
    for token in TOKENS.finditer(content):
        if token[0] in (b"{", b"["):
            level += 1
            if level == DEEPEST + 1:
                kept.append(content[last : token.start()] + b'"nested too deep"')
        elif token[0] in (b"}", b"]"):
            level -= 1
            if level == DEEPEST:
                last = token.end()
    return b"".join([*kept, content[last:]])


def _page(answer: Any) -> tuple[Listing, str]:
    """Returns a page of a list, and the token of the next page; empty: there is none.

    Raises:
        ClusterUnavailable: it is not a list, so another service answered.
    """
    try:
        listing = Listing(answer["items"] or [], answer["metadata"]["resourceVersion"])  # of metadata none are null
        return listing, answer["metadata"].get("continue", "")
    except MALFORMED as error:
        raise ClusterUnavailable(f"the API server answers what is no list: {type(error).__name__}: {error}") from error


def _change(line: bytes) -> Change | None:
    """Parses one event of a watch. None: a bookmark without information.

    Raises:
        ClusterUnavailable: it is not an event of a watch.
    """
    event = _parsed(line)
    try:
        kind, thing = event["type"], event.get("object")
        if kind == "ERROR":
            raise _refusal(thing.get("code", 500), json.dumps(thing).encode(), {})
        known = bool(thing["metadata"]["resourceVersion"])
    except MALFORMED as error:
        if isinstance(event, dict) and event.get("type") == BOOKMARK:
            return None
        raise ClusterUnavailable(f"the API server sends what is no event: {type(error).__name__}: {error}") from error
    return Change(kind, thing) if known or kind != BOOKMARK else None


def _refusal(code: int, body: bytes, headers: Mapping[str, str]) -> ClusterError:
    """Converts a refusal to an error with the server's message: for 403 it names verb, resource and namespace.

    To the server, changing an object under the UID of another one is `Invalid`; here it is a Conflict, as the name belongs to
    another object.
    """
    try:
        status = json.loads(body)
        words = str(status["message"])
    except (ValueError, TypeError, KeyError):
        status, words = {}, body.decode(errors="replace").strip()[:500]
    words = words or f"code {code}"
    if code == 422 and any(cause.get("field") == "metadata.uid" for cause in (status.get("details") or {}).get("causes") or ()):
        return Conflict(words)
    if known := ERRORS.get(code):
        return known(words)
    return ClusterUnavailable(f"{code}: {words}", retry_after=_seconds(headers.get("Retry-After", "")))


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


async def check_version(api: Api) -> str:
    """Returns the server's version.

    Raises:
        BadInput when it is older than what the drivers need, ClusterUnavailable when another service answers.
    """
    answer = await api.get("/version")
    try:
        found = str(answer["gitVersion"])
    except MALFORMED as error:
        raise ClusterUnavailable(f"the API server answers what is no version: {type(error).__name__}: {error}") from error
    if problem := API_SERVER.problem(found):
        raise BadInput(problem)
    return found
