"""Network namespaces of Linux, for `networks.py` and the pods. Python itself has these calls from 3.12 on.

A namespace lasts as long as a process is in it or a descriptor of it is open. Those of the cluster vanish with it, however it
ends.
"""

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW_USER, NEW_NET = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET."""

_libc = ctypes.CDLL(None, use_errno=True)


def leave_the_machines_network() -> None:
    """Moves this process, and all processes that it starts, into a new network namespace, where it has all rights.

    A user namespace gives every user this right, and keeps the user id. Where those are forbidden root can do without one.

    Raises:
        OSError: neither is possible here, or the process has more than one thread.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(NEW_USER | NEW_NET)
    except OSError:
        _unshare(NEW_NET)
        return
    Path("/proc/self/setgroups").write_text("deny")  # without this only root may write gid_map
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def new_network() -> int:
    """Returns a descriptor of a new network namespace."""
    with _returning():
        _unshare(NEW_NET)
        return _own()


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Enters a namespace for the time of the block. Sockets that are created there belong to it permanently."""
    with _returning():
        enter(namespace)
        yield


def enter(namespace: int) -> None:
    """Moves this thread, and all processes that it starts, into a namespace."""
    if _libc.setns(namespace, NEW_NET):
        raise _error("setns")


def quieten() -> None:
    """Disables IPv6 on links that are created in this namespace later: neighbour discovery would be counted as traffic."""
    with suppress(OSError):  # a container may not write there; then a few hundred bytes are counted
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")


def hand_over(listener: socket.socket, receiver: socket.socket) -> None:
    """Sends a socket of this namespace to a process in another one."""
    socket.send_fds(receiver, [b"l"], [listener.fileno()])


@contextmanager
def _returning() -> Iterator[None]:
    here = _own()
    try:
        yield
    finally:
        enter(here)
        os.close(here)


def _own() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _unshare(what: int) -> None:
    if _libc.unshare(what):
        raise _error("unshare")


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
