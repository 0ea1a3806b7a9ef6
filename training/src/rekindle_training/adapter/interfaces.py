"""State of a network interface of this machine. It is read by system calls, because /sys may show another namespace."""

import fcntl
import socket
import struct
from pathlib import Path

_GET_FLAGS, _GET_ADDRESS = 0x8913, 0x8915
_UP, _RUNNING = 0x1, 0x40
_REQUEST = struct.Struct("16sH22x")
_GLOBAL = "00"
"""Scope of an IPv6 address that other machines can reach."""


def problem(name: str) -> str:
    """Returns why collectives cannot use an interface. Empty: it exists, is up and has an address."""
    try:
        _, flags = _REQUEST.unpack(_asked(name, _GET_FLAGS))
    except OSError:
        return f"there is no interface {name}"
    if not flags & _UP:
        return f"interface {name} is down"
    if not flags & _RUNNING:
        return f"interface {name} has no carrier: its cable, or the port at its other end, is down"
    return "" if _has_address(name) else f"interface {name} has no address"


def _has_address(name: str) -> bool:
    try:
        _asked(name, _GET_ADDRESS)
    except OSError:
        table = Path("/proc/self/net/if_inet6")
        lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
        return any(line[-1] == name and line[3] == _GLOBAL for line in lines)
    return True


def _asked(name: str, what: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return fcntl.ioctl(asking, what, _REQUEST.pack(name.encode()[:15], 0))
