"""Address of the job's manager: the same for ranks, launcher and manager. Used by `arguments.py`."""

import argparse
import contextlib
import socket
from collections.abc import Mapping

from rekindle_training import names
from rekindle_training.launcher.flags import UsageInvalid

HERE = "127.0.0.1"
"""Address of a manager that the launcher starts itself: its ranks are on the same machine."""
LOOPBACK = (HERE, "localhost", "::1")


def meeting_point(given: argparse.Namespace, environment: Mapping[str, str], *, standalone: bool) -> tuple[str, int]:
    """Returns host and port of the manager.

    A standalone manager's address is not the user's choice (port 0: any port). Flags may only name this machine, and
    MASTER_ADDR is not read; torchrun does the same. In a cluster the command line takes precedence, then MASTER_ADDR, then
    PET_MASTER_ADDR: controllers append both variables to the owner's settings, and only the command line is always the
    owner's.

    Raises:
        UsageInvalid: the port is invalid, or, standalone, the address belongs to another machine.
    """
    if standalone:
        flag, host, port = _of_flags(given)
        _check_port(port, lowest=0)
        if not (given.standalone or _is_here(host)):
            raise UsageInvalid(
                f"{flag} {host}: this machine has no such name or address, and a job without {names.GATEWAY_HOST} runs on one "
                f"machine; accepted are its own, or leave {flag} out"
            )
        return HERE, 0
    host, port = _in_a_cluster(given, environment)
    _check_port(port, lowest=1)
    return host, int(port)


def _in_a_cluster(given: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, str]:
    """Returns host and port of the manager in a cluster.

    The port is taken from the same source as the address, because it is the port of the listener at that address.
    """
    typed = given.typed
    if typed.rdzv_endpoint or typed.master_addr:
        only = argparse.Namespace(
            rdzv_endpoint=typed.rdzv_endpoint or "",
            master_addr=typed.master_addr or given.master_addr,
            master_port=typed.master_port or str(names.DEFAULT_MASTER_PORT),
        )
        return _of_flags(only)[1:]
    _, host, port = _of_flags(given)
    return environment.get(names.MASTER_ADDR) or host, typed.master_port or environment.get(names.MASTER_PORT) or port


def _of_flags(given: argparse.Namespace) -> tuple[str, str, str]:
    """Returns the flag, host and port."""
    if not given.rdzv_endpoint:
        return "--master-addr", given.master_addr.strip("[]"), given.master_port
    host, _, port = given.rdzv_endpoint.rpartition(":") if ":" in given.rdzv_endpoint else (given.rdzv_endpoint, "", "")
    return "--rdzv-endpoint", host.strip("[]") or given.master_addr, port or given.master_port


def _check_port(port: str, *, lowest: int) -> None:
    if not port.isdigit() or not lowest <= int(port) < 65536:
        raise UsageInvalid(f"--master-port {port}: accepted is a port from {lowest} to 65535")


def _is_here(host: str) -> bool:
    if host in (*LOOPBACK, socket.gethostname()):
        return True
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        return any(_can_listen(family, address) for family, _, _, _, address in found)
    return False


def _can_listen(family: int, address: object) -> bool:
    with contextlib.suppress(OSError), socket.socket(family) as probe:
        probe.bind(address)  # type: ignore[arg-type]  # as `getaddrinfo` gave it
        return True
    return False
