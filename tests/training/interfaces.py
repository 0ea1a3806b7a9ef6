"""Network interfaces for a pod, as far as gloo can tell: further names of the loopback interface, with addresses of their own."""

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekindle_training.adapter import interfaces

SET_ADDRESS, SET_FLAGS = 0x8916, 0x8914
UP = 0x1
CLONE_NEWNET = 0x40000000
ESTABLISHED, LISTENS = "01", "0A"
NOT_ALLOWED = "the tests of links give lo further addresses, and make namespaces: they take root with the capability NET_ADMIN"


class Alias:
    """An alias of the loopback interface, as `ip address add ... label lo:...` would make it."""

    def __init__(self, letter: str, network: int) -> None:
        number = os.getpid() % 65024
        self.name = f"lo:{number}{letter}"
        self.address = f"127.{network}.{number // 254}.{number % 254 + 1}"
        try:
            _ask(self.name, SET_ADDRESS, _of_address(self.address))
        except PermissionError:
            pytest.fail(NOT_ALLOWED)

    def remove(self) -> None:
        """Takes the alias down, which removes it. May be called again."""
        with contextlib.suppress(OSError):
            _ask(self.name, SET_FLAGS, struct.pack("H14x", 0))


def addresses(process: int) -> set[str]:
    """Addresses of both ends of this process's connections. The address 127.0.0.1, which the system gives to local connections,
    is left out."""
    ends = {end for *both, state in _sockets(process) for end in both if state == ESTABLISHED}
    return ends - {"127.0.0.1"}


def listens(process: int) -> str:
    """Returns the address on which this process accepts connections."""
    (found,) = {local for local, _, state in _sockets(process) if state == LISTENS and local != "127.0.0.1"}
    return found


def _sockets(process: int) -> Iterator[tuple[str, str, str]]:
    """Yields local address, remote address and state of each socket of a process."""
    sockets: set[str] = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
    for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if inode in sockets:
            yield _address(local), _address(remote), state


def _address(end: str) -> str:
    return socket.inet_ntoa(struct.pack("<I", int(end.partition(":")[0], 16)))


def problems_in_a_new_namespace() -> list[str]:
    """Problems of lo in a new network namespace: down, up without an address, and up with one. The last entry is that of an
    absent interface."""
    with multiprocessing.get_context("spawn").Pool(1) as other:
        return other.apply(_problems)


def _problems() -> list[str]:
    if ctypes.CDLL(None).unshare(CLONE_NEWNET):
        raise PermissionError(NOT_ALLOWED)
    found = [interfaces.problem("lo")]
    _ask("lo", SET_FLAGS, struct.pack("H14x", UP))
    _ask("lo", SET_ADDRESS, _of_address("0.0.0.0"))
    found.append(interfaces.problem("lo"))
    _ask("lo", SET_ADDRESS, _of_address("127.0.0.1"))
    return [*found, interfaces.problem("lo"), interfaces.problem("eth7")]


def _of_address(address: str) -> bytes:
    return struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton(address))


def _ask(name: str, what: int, value: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, what, struct.pack("16s16s", name.encode(), value))
