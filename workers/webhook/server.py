"""HTTPS server of the admission webhook: `/mutate` adds variables to new jobs, `/validate` refuses wrong ones.

Jobs are read in threads, those of a namespace one after another, so that a tenant with large objects delays nobody else. Few
large requests are in memory at a time.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Self
from weakref import WeakValueDictionary

from aiohttp import web

from rekindle.errors import MALFORMED, BadInput, RekindleError, Unavailable
from rekindle.model.limits import Limits
from rekindle.policy.parameters.admission import Verdict, mutated, validated
from rekindle.policy.parameters.reading import Document, as_text, mapping, text
from rekindle.settings import Settings
from workers.connections import Connections
from workers.webhook.review import answer, request_of
from workers.webhook.tls import ServerTls

MOST_BYTES = 20 * 1024 * 1024
"""Maximum size of a request: an object of 1.5 MiB, and the one before it. The API server writes `<`, `>` and `&` as six bytes."""

SMALL, MIDDLE = 256 * 1024, 4 * 1024 * 1024
"""Sizes up to which requests are read without bound, and a few at a time. Larger ones are read one by one."""

MIDDLE_AT_ONCE = 4

READ = 2.0
"""Seconds within which a connection must be encrypted, and a request be read. A caller need not be the API server."""

ANSWERED = 4.0
"""Seconds after which a job is admitted without a check. The API server waits for 5."""

THREADS = 8

NOT_CHECKED = "the job could not be checked by Rekindle, and is admitted as it is"

Judge = Callable[[Document, Limits], Verdict]

logger = logging.getLogger("webhook")


class Webhook:
    """Running server: `async with Webhook(settings, tls) as webhook`.

    Raises:
        Unavailable: the port is taken; the message names it.
    """

    def __init__(self, settings: Settings, tls: ServerTls) -> None:
        self._settings, self._tls = settings, tls
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="admission")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Lock of each namespace of which a job is read."""
        self._middle, self._large = asyncio.Semaphore(MIDDLE_AT_ONCE), asyncio.Semaphore(1)
        application = web.Application(client_max_size=MOST_BYTES)
        application.add_routes([web.post("/mutate", self._mutate), web.post("/validate", self._validate)])
        # The API server compresses nothing, and a small body could become a large one.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=ANSWERED, auto_decompress=False)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        assert self._runner.server, "it was set up"
        self._connections = Connections(self._runner.server)
        host, port = self._settings.gateway_host, self._settings.webhook_port
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._connections,
                host,
                port,
                ssl=self._tls.context,
                ssl_handshake_timeout=READ,
                ssl_shutdown_timeout=READ,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise Unavailable(f"admission cannot be served on {host}, port {port} (REKINDLE_WEBHOOK_PORT): {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        await self._runner.cleanup()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def port(self) -> int:
        return int(self._listener.sockets[0].getsockname()[1])

    async def _mutate(self, http: web.Request) -> web.Response:
        return await self._answered(http, mutated)

    async def _validate(self, http: web.Request) -> web.Response:
        return await self._answered(http, validated)

    async def _answered(self, http: web.Request, judge: Judge) -> web.Response:
        began = asyncio.get_running_loop().time()
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(READ):
                    await stack.enter_async_context(self._room(http.content_length))
                    body = await http.read()
                self._connections.asked(http.protocol)
                request = await asyncio.get_running_loop().run_in_executor(self._threads, request_of, body)
            except TimeoutError:
                logger.warning("admission review not read in time", extra={"bytes": http.content_length})
                return web.Response(
                    status=503, text=f"the review was not read within {READ:g} s\n", headers={"Connection": "close"}
                )
            except BadInput as error:
                logger.warning("admission review refused", extra={"reason": str(error)})
                return web.Response(status=400, text=f"{error}\n")
            verdict = await self._judged(request, judge, began + ANSWERED)
        return web.json_response(answer(request, verdict.observed if self._settings.observe else verdict))

    def _room(self, size: int | None) -> AbstractAsyncContextManager[None]:
        """Returns the place in memory for a request. A body of 20 MiB takes ten times as much when it is read."""
        if size is not None and size <= SMALL:
            return nullcontext()
        return self._middle if size is not None and size <= MIDDLE else self._large

    async def _judged(self, request: Document, judge: Judge, until: float) -> Verdict:
        """Returns the verdict. An object that cannot be read, or not in time, is admitted with a warning.

        Args:
            until: time of the event loop at which the job is admitted without a check.
        """
        namespace = text(request.get("namespace")) or ""
        if self._settings.namespaces and namespace not in self._settings.namespaces:
            return Verdict()
        turn = self._turns.setdefault(namespace, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until), turn:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, judge, request, self._settings.limits)
        except (TimeoutError, RekindleError, *MALFORMED) as error:
            extra = {"namespace": namespace, "job_name": as_text(request.get("name")), "kind": _kind(request)}
            logger.warning("job admitted without a check", extra={**extra, "error": f"{type(error).__name__}: {error}"})
            return Verdict(warnings=(NOT_CHECKED,))


def _kind(request: Document) -> str:
    return as_text(mapping(request.get("kind")).get("kind"))
