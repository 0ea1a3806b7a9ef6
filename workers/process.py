"""Common parts of all processes of the control plane: they run until SIGTERM or SIGINT, answer probes and expose metrics."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from rekindle.errors import BadInput, ClusterUnavailable, RekindleError, Unavailable
from rekindle.interpreter import run_and_end
from rekindle.settings import Settings

if TYPE_CHECKING:  # the local cluster has no client of Temporal, and probes are for Kubernetes
    from aiohttp import web
    from aiohttp.typedefs import Handler

    from workers.exposition import Exposition

PROBE_LIMIT = 0.8
"""Time limit of a check in seconds: Kubernetes waits one second for a probe, unless configured otherwise."""

REPEAT = 0.2
"""Seconds before a call of the API server is retried; doubles up to `LONGEST`."""

LONGEST = 5.0

NAMESPACE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Check = Callable[[], Awaitable[str]]
"""Function that returns what is wrong; empty: nothing."""

Answer = TypeVar("Answer")

logger = logging.getLogger("process")


def stop_requested() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    _on_signals(stop.set)
    return stop


def _on_signals(told: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)


def ready(line: str) -> None:
    """Writes one line to stdout for the program that started the process; everything else goes to the log."""
    sys.stdout.write(f"ready {line}\n")
    sys.stdout.flush()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
    """Runs a process from start to end. Errors that a user can fix become one sentence on stderr, and exit code 1."""

    def whole() -> None:
        try:
            asyncio.run(main())
        except RekindleError as error:
            sys.exit(f"error: {error}")

    run_and_end(whole)


class Process:
    """Process on a cluster, from its start to its end: `async with Process(settings) as process`.

    `/healthz` is 200 as long as the event loop runs, whatever else is away: recoveries survive a wait for Temporal, and a restart
    shortens none. `/readyz` is 200 from `ready` on until the process has to stop; otherwise it is 503, with the reason. A
    process that has to stop before it is ready ends at once. `/metrics` is in Prometheus' text format.

    Raises:
        Unavailable: the port is taken; the message names it.
        BadInput: its pod is in another namespace than the settings say.
    """

    def __init__(self, settings: Settings, *, has_temporal: bool = True) -> None:
        """Args:
        has_temporal: True if the process has clients of Temporal. They must be created after the process.
        """
        refuse_another_namespace(settings, NAMESPACE_OF_POD)
        self.stop = asyncio.Event()
        """Set when SIGTERM or SIGINT was received."""
        self._host = settings.health_host or ("::" if ":" in settings.gateway_host else "0.0.0.0")
        """Address on which probes are answered."""
        self._port = settings.health_port
        self._started = False
        self._check: Check | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._exposition = _exposition(has_temporal) if self.is_observed else None
        self._main: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        self._main = asyncio.current_task()
        _on_signals(self._told_to_stop)
        if self.is_observed:
            await self._serve()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if self._listener:
            self._listener.close()
        if self._runner:
            await self._runner.cleanup()
        early = isinstance(error, asyncio.CancelledError) and self.stop.is_set() and not self._started
        if early and self._main:
            self._main.uncancel()
        return early

    def ready(self, line: str, check: Check | None = None) -> None:
        """Marks the process as ready and writes a line to stdout.

        Args:
            check: additional condition of readiness, evaluated at each probe.
        """
        self._started, self._check = True, check
        ready(line)

    async def until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work until it ends by itself, or the process has to stop."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (working, stopping):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await working

    def _told_to_stop(self) -> None:
        self.stop.set()
        if self._main and not self._started:
            self._main.cancel()

    @property
    def is_observed(self) -> bool:
        """True if probes are answered and metrics exposed."""
        return bool(self._port)

    # ---- probes and metrics

    def expose(self, text: Callable[[], bytes]) -> None:
        """Exposes further metrics.

        Args:
            text: returns them in Prometheus' text format.
        """
        if self._exposition:
            self._exposition.further.append(text)

    async def _serve(self) -> None:
        from aiohttp import web

        from workers.connections import Connections

        @web.middleware
        async def noted(request: web.Request, handler: "Handler") -> web.StreamResponse:
            connections.asked(request.protocol)
            return await handler(request)

        application = web.Application(middlewares=[noted])
        routes = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}
        application.add_routes([web.get(path, handler) for path, handler in routes.items()])
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        assert self._runner.server, "it was set up"
        connections = Connections(self._runner.server)
        try:
            self._listener = await asyncio.get_running_loop().create_server(connections, self._host, self._port)
        except OSError as error:
            await self._runner.cleanup()
            where = f"{self._host} (REKINDLE_HEALTH_HOST), port {self._port} (REKINDLE_HEALTH_PORT)"
            raise Unavailable(f"probes cannot be answered on {where}: {error}") from error

    async def _healthz(self, _: "web.Request") -> "web.Response":
        return _said("")

    async def _readyz(self, _: "web.Request") -> "web.Response":
        if self.stop.is_set():
            return _said("it was told to stop")
        if not self._started:
            return _said("it starts")
        return _said(await self._check() if self._check else "")

    async def _metrics(self, _: "web.Request") -> "web.Response":
        from aiohttp import web

        assert self._exposition, "it was made with the port"
        return web.Response(body=await self._exposition.text(), headers={"Content-Type": self._exposition.content_type})


def _exposition(has_temporal: bool) -> "Exposition":
    from workers.exposition import Exposition

    return Exposition(sdk=has_temporal)


def refuse_another_namespace(settings: Settings, of_pod: Path) -> None:
    """Raises BadInput if the process runs in another namespace than its settings say; returns if that is not known.

    Args:
        of_pod: the file in which Kubernetes gives a pod its namespace.
    """
    if settings.cluster != "kubernetes" or settings.kubeconfig or not of_pod.is_file():
        return
    if (here := of_pod.read_text().strip()) != settings.namespace:
        raise BadInput(
            f"REKINDLE_NAMESPACE: {settings.namespace!r} is not accepted, since this pod is in namespace {here!r}: "
            f"set REKINDLE_NAMESPACE={here} in your overlay, with the component deploy/components/namespace"
        )


def _said(problem: str) -> "web.Response":
    from aiohttp import web

    return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")


async def patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Calls the API server until it answers, and returns the answer: a process that starts can only wait."""
    pause = REPEAT
    while True:
        try:
            return await ask()
        except ClusterUnavailable as error:
            logger.warning("API server not reached, retrying", extra={"reason": str(error)})
            await asyncio.sleep(error.retry_after or pause)
            pause = min(2 * pause, LONGEST)
