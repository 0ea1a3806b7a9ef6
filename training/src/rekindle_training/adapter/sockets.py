"""Finds the TCP connections of this process, and ends them from any thread."""

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")

_ESTABLISHED = 1
"""Connection state in the first byte of the kernel's TCP_INFO: <linux/tcp.h>."""

Ends = tuple[tuple[str, int], tuple[str, int]]
"""Local and remote address and port."""

Connections = Mapping[int, Ends]
"""Connections by their descriptors."""


def connected() -> dict[int, Ends]:
    found = {}
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, or no connected socket
            if (ends := _ends(int(entry.name))) is not None:
                found[int(entry.name)] = ends
    return found


def cut(connections: Connections) -> list[socket.socket]:
    """Cuts connections: each thread that waits for one immediately reads the end of the stream.

    They are shut in one direction, and stay open as long as the caller keeps the returned sockets. Gloo forgets a message
    that it cannot write, and its sender waits for ever: so no write may fail, here or at the other end. A descriptor that
    belongs to another connection by now is left alone.
    """
    kept = []
    for descriptor, ends in connections.items():
        with contextlib.suppress(OSError):
            if _ends(descriptor) == ends:
                connection = _borrowed(descriptor)
                kept.append(connection)
                connection.shutdown(socket.SHUT_RD)
    return kept


def are_whole(connections: Connections) -> bool:
    """Returns whether all connections are open, at both ends."""
    try:
        return all(_ends(descriptor) == ends and _is_established(descriptor) for descriptor, ends in connections.items())
    except OSError:
        return False


def close(connections: Connections) -> None:
    """Closes connections in a forked process, which holds them open without using them."""
    for descriptor, ends in connections.items():
        with contextlib.suppress(OSError):
            if _ends(descriptor) == ends:
                os.close(descriptor)


def _ends(descriptor: int) -> Ends | None:
    if not str((_DESCRIPTORS / str(descriptor)).readlink()).startswith("socket:"):
        return None
    with _borrowed(descriptor) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        return connection.getsockname()[:2], connection.getpeername()[:2]


def _is_established(descriptor: int) -> bool:
    with _borrowed(descriptor) as connection:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED


def _borrowed(descriptor: int) -> socket.socket:
    """Returns a socket object with another descriptor, which can be closed without the connection."""
    return socket.socket(fileno=os.dup(descriptor))
