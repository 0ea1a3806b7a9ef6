"""TCP connections of this process: which there are, and an end to them from any thread."""

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")

_ESTABLISHED = 1
"""State of a connection, in the first byte of what the kernel says of it: <linux/tcp.h>."""

Ends = tuple[tuple[str, int], tuple[str, int]]
"""Address and port here and there."""

Connections = Mapping[int, Ends]
"""By their descriptors."""


def connected() -> dict[int, Ends]:
    found = {}
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, or no connected socket
            if (ends := _ends(int(entry.name))) is not None:
                found[int(entry.name)] = ends
    return found


def cut(connections: Connections) -> list[socket.socket]:
    """Nothing is heard any more: whoever waits for one of these, in whatever thread, is told at once that it is closed.

    They are shut in one direction, and stay open as long as the caller keeps what this returns. Gloo forgets a message that it
    cannot write, and its sender waits for ever: so nobody's writing fails, here or at the other end. A descriptor that has
    become another connection's is left alone.
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
    """Tells whether all of them are open, at both ends."""
    try:
        return all(_ends(descriptor) == ends and _is_established(descriptor) for descriptor, ends in connections.items())
    except OSError:
        return False


def close(connections: Connections) -> None:
    """In a forked process, which holds them open without using them."""
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
    """A socket object of its own descriptor, which is closed without the connection."""
    return socket.socket(fileno=os.dup(descriptor))
