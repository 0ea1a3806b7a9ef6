"""Connections over which ranks send their snapshots to the ranks that keep them, beside the computation.

They are no part of a process group, so that no collective waits for them. If one breaks, training goes on, and it is made again
for the next copy. Until then its rank has its newest snapshots in its own pod only.
"""

import logging
import os
import secrets
import socket
import struct
import threading
from contextlib import suppress
from typing import NamedTuple

from rekindle_training.snapshot_memory import Copy, Kind, SnapshotMemory

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
_GREETING = struct.Struct("!16sq")
"""Token of the rank that is called, and rank of the caller."""
_OFFER = struct.Struct("!qQQq")
"""Step, length and digest of a copy, and the newest step before it of which all ranks had a copy."""
_WANTED, _THERE = b"\1", b"\0"
_SENT_AT_ONCE = 64 * 1024 * 1024


class Address(NamedTuple):
    host: str
    port: int
    token: bytes


class _Offer(NamedTuple):
    step: int
    length: int
    digest: int
    common: int


class SnapshotLines:
    """Connections of one rank in one generation."""

    def __init__(self, memory: SnapshotMemory, rank: int, host: str) -> None:
        self._memory, self._rank = memory, rank
        self._server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address = Address(host, self._server.getsockname()[1], secrets.token_bytes(16))
        self._lock = threading.Lock()
        self._all: list[socket.socket] = []
        self.closed = False
        self._keeper: Address | None = None
        self._line: socket.socket | None = None

    def begin(self, keeper: Address | None) -> None:
        """Receives snapshots from now on, and sends them to this keeper."""
        self._keeper = keeper
        threading.Thread(target=self._accept, name="rekindle-snapshots", daemon=True).start()

    def send(self, copy: Copy, common: int = -1) -> bool:
        """Sends a copy, unless the keeper has it. Returns whether the keeper has it then. Called by one thread at a time.

        Args:
            common: newest step before the copy's of which all ranks had a snapshot. The keeper drops what is newer, and not that
                one. -1: there may be none.

        Raises:
            OSError: the keeper cannot be reached.
        """
        if self._keeper is None:
            return True
        had_line = self._line is not None
        try:
            return self._sent(copy, common, self._keeper)
        except OSError:
            self._hang_up()
            if not had_line:
                raise
        return self._sent(copy, common, self._keeper)  # the connection may have been cut while nothing was sent

    def _sent(self, copy: Copy, common: int, keeper: Address) -> bool:
        if self._line is None:
            self._line = self._called(keeper)
        self._line.sendall(_OFFER.pack(copy.step, copy.length, copy.digest, common))
        if _received(self._line, 1) == _THERE:
            return True
        sent = 0
        while sent < copy.length:
            sent += os.sendfile(
                self._line.fileno(), self._memory.descriptor, copy.offset + sent, min(copy.length - sent, _SENT_AT_ONCE)
            )
        return _received(self._line, 1) == _THERE

    def close(self) -> None:
        """Ends all transfers. May be called from any thread."""
        with self._lock:
            self.closed = True
            lines, self._all = [self._server, *self._all], []
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()
            with self._lock:
                self._all = [one for one in self._all if one is not line]

    def _called(self, keeper: Address) -> socket.socket:
        if self.closed:
            raise ConnectionAbortedError("the generation is over")
        line = socket.create_connection((keeper.host, keeper.port), CONNECT_SECONDS)
        line.settimeout(None)
        self._remember(line)
        line.sendall(_GREETING.pack(keeper.token, self._rank))
        return line

    def _remember(self, line: socket.socket) -> None:
        with self._lock:
            if self.closed:
                line.close()
                raise ConnectionAbortedError("the generation is over")
            self._all.append(line)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._server.accept()
                threading.Thread(target=self._receive, args=(line,), name="rekindle-snapshots", daemon=True).start()

    def _receive(self, line: socket.socket) -> None:
        try:
            self._remember(line)
            line.settimeout(CONNECT_SECONDS)
            token, rank = _GREETING.unpack(_received(line, _GREETING.size))
            line.settimeout(None)
            while token == self.address.token:
                self._take(line, rank, _Offer(*_OFFER.unpack(_received(line, _OFFER.size))))
        except OSError:
            return  # its rank is gone, or the generation is over
        finally:
            line.close()

    def _take(self, line: socket.socket, rank: int, offer: _Offer) -> None:
        step, length, digest, common = offer
        kept = self._memory.find(Kind.KEPT, rank, step)
        if kept is not None and kept.digest == digest:
            line.sendall(_THERE)
            return
        if common >= 0:
            self._memory.forget(common, (Kind.KEPT,))
        place, content = self._memory.begin(Kind.KEPT, rank, length)
        line.sendall(_WANTED)
        got = 0
        while got < length:
            if not (part := line.recv_into(content[got:])):
                raise ConnectionResetError("the connection was closed")
            got += part
        copy = self._memory.seal(place, rank, step, length)
        line.sendall(_THERE if copy.digest == digest else _WANTED)


def _received(line: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        if not (part := line.recv(count - len(content))):
            raise ConnectionResetError("the connection was closed")
        content += part
    return content
