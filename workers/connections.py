"""Connections to a server that any pod may call: few are open at once, so that nobody takes all memory with them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # some processes answer no probes, and start without a server
    from aiohttp import web
    from aiohttp.web_protocol import RequestHandler

MOST = 256
"""Maximum number of open connections. One with TLS takes 0.3 MiB."""


class Connections:
    """Factory of connections for an event loop. For one too many another one ends: the oldest of those that have not asked for
    anything, or else the oldest, after its request."""

    def __init__(self, server: "web.Server") -> None:
        self._server = server
        self._asked: set[RequestHandler] = set()

    def __call__(self) -> "RequestHandler":
        self._asked.intersection_update(self._server.connections)
        there = sorted(self._server.connections, key=self._asked.__contains__)
        for one in there[: max(len(there) + 1 - MOST, 0)]:
            if one in self._asked:
                one.close()
            elif one.transport:
                one.transport.abort()
        return self._server()

    def asked(self, one: "RequestHandler") -> None:
        """Notes that a whole request was read from this connection."""
        self._asked.add(one)
