"""Ports for our own processes on one machine."""

import os
from functools import partial

import pytest

from rekindle.cli import ports
from rekindle.errors import Unavailable

FIRST_OF_CONNECTIONS = 32_768
"""First port that Linux gives to connections, unless a machine is configured otherwise."""


def test_no_port_is_one_that_a_connection_can_take() -> None:
    """A connection cannot take a port between its choice and the moment when its process listens."""
    assert max(ports.PORTS) < FIRST_OF_CONNECTIONS


def test_later_calls_and_the_next_processes_choose_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that are chosen and not used yet are chosen by no later call, and by no process that starts about the same time."""
    chosen = [port for _ in range(2) for port in ports.free_ports(50)]
    first = os.getpid() + 1
    for process in range(first, first + 4):
        monkeypatch.setattr(os, "getpid", partial(int, process))
        chosen += ports.free_ports(50)
    assert len(set(chosen)) == 300


def test_a_machine_without_free_ports_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends with the range in its message."""
    monkeypatch.setattr(ports, "PORTS", range(10_000, 10_003))
    with pytest.raises(Unavailable, match="fewer than 4 of the ports 10000 to 10002 are free"):
        ports.free_ports(4)
