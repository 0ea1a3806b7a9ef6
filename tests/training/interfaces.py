"""Network interfaces for a pod, as far as gloo can tell: further names of the loopback interface, with addresses of their own."""

import fcntl
import os
import re
import socket
import struct
from pathlib import Path

import pytest

SET_ADDRESS, GET_FLAGS, SET_FLAGS = 0x8916, 0x8913, 0x8914
UP = 0x1
ESTABLISHED = "01"


class Alias:
    """One of them; it needs no programs, and a user who may configure interfaces."""

    def __init__(self, letter: str, network: int) -> None:
        number = os.getpid() % 65024
        self.name = f"lo:{number}{letter}"
        self.address = f"127.{network}.{number // 254}.{number % 254 + 1}"
        self._ask(SET_ADDRESS, struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton(self.address)))

    def remove(self) -> None:
        """An alias that is down is no more."""
        self._ask(SET_FLAGS, struct.pack("H14x", 0))

    def _ask(self, what: int, value: bytes) -> None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                fcntl.ioctl(asking, what, struct.pack("16s16s", self.name.encode(), value))
        except PermissionError:
            pytest.fail("the tests of links give lo further addresses, which takes root with the capability NET_ADMIN")


def addresses(process: int) -> set[str]:
    """Of both ends of this process's connections, but for 127.0.0.1, which the system gives to who connects on this machine."""
    sockets = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            sockets |= set(re.findall(r"socket:\[(\d+)\]", str(entry.readlink())))
        except FileNotFoundError:  # closed meanwhile
            continue
    found = set()
    for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_, inode = line.split()[:10]
        if state == ESTABLISHED and inode in sockets:
            found |= {socket.inet_ntoa(struct.pack("<I", int(end.partition(":")[0], 16))) for end in (local, remote)}
    return found - {"127.0.0.1"}
