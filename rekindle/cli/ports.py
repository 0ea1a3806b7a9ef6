"""Chooses free ports of this machine, and checks which process listens on a port.

`rekindle dev` checks before it starts, and again when its own server should listen.

A connection that is accepted shows only that some process listens. Linux shows which process it is: `/proc/net/tcp` names the
socket, and the process holds it among its open files.
"""

import os
import socket
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

from rekindle.errors import Refused, Unavailable

LOOPBACK = "127.0.0.1"
LISTENING = "0A"
"""State of a listening socket in `/proc/net/tcp`."""

PORTS = range(10_000, 20_000)
"""Ports for our own processes. As configured by default, Linux gives none of them to connections. Such a connection could take a
port before its process listens."""

_chosen = count()


def free_ports(number: int) -> list[int]:
    """Returns different ports of 127.0.0.1 that are free now.

    Processes begin far apart and go upwards. So none chooses a port that another chose and does not use yet.

    Raises:
        Unavailable: too few of `PORTS` are free.
    """
    ports: list[int] = []
    for chosen in islice(_chosen, len(PORTS)):
        port = PORTS[(os.getpid() * 1009 + chosen) % len(PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            ports.append(port)
        if len(ports) == number:
            return ports
    raise Unavailable(f"fewer than {number} of the ports {PORTS.start} to {PORTS.stop - 1} are free")


def ensure_free(port: int, option: str, guess: str) -> None:
    """Refuses a port that another process uses.

    Args:
        port: of 127.0.0.1.
        option: the option that chooses another port.
        guess: program that usually uses the port.

    Raises:
        Refused: the message names the port, its process where we may see that, and the option.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignores connections of an ended process
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise Refused(
                f"port {port} cannot be used: {error.strerror}, {who_listens(port)} (perhaps {guess}). "
                f"Stop it, or choose another port with {option} (0: any free one)"
            ) from error


def listens(pid: int, port: int) -> bool:
    """Returns whether exactly this process listens on the port."""
    return bool(_sockets_of(pid) & _listening_at(port))


def who_listens(port: int) -> str:
    """Describes the process that listens on the port. Processes of other users cannot be identified."""
    listening = _listening_at(port)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _sockets_of(int(entry.name)) & listening:
            return f"by process {entry.name}, {(entry / 'comm').read_text().strip()}"
    return "by a process of another user"


def _listening_at(port: int) -> set[str]:
    """Returns the inodes of the sockets that listen on the port, at any address."""
    found = set()
    for table in Path("/proc/net").glob("tcp*"):  # without IPv6 there is no tcp6
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rsplit(":", 1)[1], 16) == port:
                found.add(fields[9])
    return found


def _sockets_of(pid: int) -> set[str]:
    """Returns the inodes of the sockets that a process holds; none if access is denied or it is gone."""
    try:
        links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return set()
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
