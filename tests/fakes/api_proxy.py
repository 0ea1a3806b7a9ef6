"""Proxy for a Kubernetes API server: records the requests, and can end watches with 410 as a server does that lost its
history."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from tests.fakes.loopback import served

EXPIRED = {
    "type": "ERROR",
    "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (2)"},
}
HOP_BY_HOP = {"host", "transfer-encoding", "content-length", "connection", "content-encoding", "accept-encoding"}


@dataclass
class ApiProxy:
    """Running proxy. `kubeconfig` points to it, with the identity of the original one."""

    kubeconfig: Path
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Requests as pairs of method and path; watches have the method WATCH."""
    _watches: set[asyncio.Event] = field(default_factory=set)
    _opened: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until_watched(self, *paths: str) -> None:
        """Waits until a watch is open, and these paths were watched."""
        async with self._opened:
            await self._opened.wait_for(lambda: bool(self._watches) and all(("WATCH", path) in self.requests for path in paths))

    def expire_watches(self) -> None:
        """Ends every open watch with 410; later watches are served."""
        for expired in self._watches:
            expired.set()


@asynccontextmanager
async def api_proxy(kubeconfig: Path, directory: Path) -> AsyncIterator[ApiProxy]:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    upstream, certificate = cluster["server"], cluster.pop("certificate-authority")
    proxy = ApiProxy(directory / "proxied-kubeconfig")
    trust = ssl.create_default_context(cafile=certificate)
    async with aiohttp.ClientSession(
        upstream, connector=aiohttp.TCPConnector(ssl=trust, limit=0), auto_decompress=False
    ) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            watch = "watch" in request.query
            proxy.requests.append(("WATCH" if watch else request.method, request.path))
            headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_BY_HOP}
            timeout = aiohttp.ClientTimeout(total=None)
            async with session.request(
                request.method, request.rel_url, headers=headers, data=await request.read(), timeout=timeout
            ) as answer:
                kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP_BY_HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                if watch and answer.status == 200:
                    await _relay_watch(proxy, answer, response)
                else:
                    await response.write(await answer.read())
                await response.write_eof()
                return response

        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", relay)
        async with served(application) as server:
            cluster["server"] = server
            proxy.kubeconfig.write_text(yaml.safe_dump(config))
            yield proxy


async def _relay_watch(proxy: ApiProxy, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    expired = asyncio.Event()
    async with proxy._opened:
        proxy._watches.add(expired)
        proxy._opened.notify_all()
    ends = asyncio.create_task(expired.wait())
    try:
        while True:
            line = asyncio.ensure_future(answer.content.readline())
            await asyncio.wait({line, ends}, return_when=asyncio.FIRST_COMPLETED)
            if ends.done():
                await response.write(json.dumps(EXPIRED).encode() + b"\n")
                return
            if not (content := line.result()):
                return
            await response.write(content)
    finally:
        proxy._watches.discard(expired)
        ends.cancel()
        line.cancel()
        await asyncio.gather(line, return_exceptions=True)
