"""Connections between ranks that have the same place in different pods, for short messages. Used by the communicator.

A message through torch needs two threads at each end, each of which waits for a processor. If the processors are busy, for
example with data loaders, that takes ten times as long.
"""

import secrets
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import torch.distributed as dist

CONNECT_SECONDS = 10.0
"""Time limit in seconds for each connection between ranks that are there."""
GREET_SECONDS = 1.0
"""Seconds to wait for the greeting of a caller that may be a stranger."""
_PART = 16 * 1024
"""Number of bytes that a connection accepts although the other end does not read."""
_LENGTH = struct.Struct("!Q")
_GREETING = struct.Struct("!16sQ")
"""Token of the rank that is called, and rank of the caller."""
_LIMIT = struct.Struct("@ll")
"""Seconds and microseconds, as a socket takes them."""


class LineLost(RuntimeError):
    """A rank of another pod cannot be reached any more."""


class _Address(NamedTuple):
    host: str
    port: int
    token: bytes
    """Token that proves that a caller has read it in the store, which a stranger has not."""


class Lines:
    """Connections of one rank in one generation: call `listen`, then `connect`. `cut` may be called from any thread."""

    def __init__(self, rank: int, ranks: int, distances: Collection[int]) -> None:
        """Args:
        distances: distances in ranks to the ranks ahead and behind with which this one exchanges messages.
        """
        self._rank, self._ranks, self._distances = rank, ranks, distances
        self._token = secrets.token_bytes(16)
        self._addresses: dict[int, _Address] = {}
        self._ahead: dict[int, socket.socket] = {}
        self._behind: dict[int, socket.socket] = {}
        """Connections to the ranks behind, by distance."""

    def listen(self, host: str, store: dist.Store) -> None:
        """Returns when the ranks ahead listen as well.

        Args:
            host: address under which other pods reach this one.
            store: one that is used in this generation only.

        Raises:
            RuntimeError: a rank did not come.
        """
        try:
            self._server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise LineLost(f"cannot listen on {host}: {error}") from error
        self._server.settimeout(CONNECT_SECONDS)
        store.set(f"lines/{self._rank}", f"{host} {self._server.getsockname()[1]} {self._token.hex()}")
        for distance in self._distances:
            there, port, token = store.get(f"lines/{(self._rank + distance) % self._ranks}").decode().split()
            self._addresses[distance] = _Address(there, int(port), bytes.fromhex(token))

    def connect(self) -> None:
        """Raises RuntimeError where a rank could not be reached."""
        try:
            with self._server:
                here = self._server.getsockname()[0]
                for distance, address in self._addresses.items():
                    self._ahead[distance] = _called(address, self._rank, here)
                callers = {(self._rank - distance) % self._ranks: distance for distance in self._distances}
                while callers:
                    caller, line = _call(self._server, self._token)
                    self._behind[callers.pop(caller)] = line
        except (OSError, KeyError) as error:
            self.close()
            raise LineLost(f"a rank of another pod could not be reached: {error}") from error
        for line in self._all():
            _set_up(line)

    def exchange(self, distance: int, content: bytes) -> bytes:
        """Sends to the rank ahead, and returns what the rank behind sends. All ranks call it together.

        Raises:
            LineLost: one of the two is not there any more.
        """
        ahead, behind = self._ahead[distance], self._behind[distance]
        message = _LENGTH.pack(len(content)) + content
        try:
            ahead.sendall(message[:_PART])
            end = _LENGTH.size + _LENGTH.unpack(_received(behind, _LENGTH.size))[0]
            theirs = [_received(behind, min(end, _PART) - _LENGTH.size)]
            for start in range(_PART, max(len(message), end), _PART):
                ahead.sendall(message[start : start + _PART])
                theirs.append(_received(behind, max(min(_PART, end - start), 0)))
        except OSError as error:
            raise LineLost(f"a rank of another pod was lost: {error}") from error
        return b"".join(theirs)

    def cut(self) -> None:
        """Ends the wait of this rank, and of each rank that reads from it."""
        for line in self._all():
            with suppress(OSError):  # the other end did so
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes this process's ends. If this is a forked process, the connections stay open in the other one."""
        for line in self._all():
            line.close()

    def _all(self) -> Iterator[socket.socket]:
        return chain(self._ahead.values(), self._behind.values())


def _called(address: _Address, rank: int, here: str) -> socket.socket:
    line = socket.create_connection((address.host, address.port), CONNECT_SECONDS, source_address=(here, 0))
    line.sendall(_GREETING.pack(address.token, rank))
    return line


def _call(server: socket.socket, token: bytes) -> tuple[int, socket.socket]:
    """Returns the next rank that calls. Strangers may call as well."""
    while True:
        line, _ = server.accept()
        line.settimeout(GREET_SECONDS)
        with suppress(OSError):
            said, rank = _GREETING.unpack(_received(line, _GREETING.size))
            if said == token:
                return rank, line
        line.close()


def _set_up(line: socket.socket) -> None:
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LIMIT.pack(int(dist.default_pg_timeout.total_seconds()), 0))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _received(line: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        if not (part := line.recv(count - len(content), socket.MSG_WAITALL)):
            raise ConnectionResetError("the connection was closed")
        content += part
    return content
