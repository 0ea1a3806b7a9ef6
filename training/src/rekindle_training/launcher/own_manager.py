"""Manager of a pod without a control plane. The launcher starts it, and restarts it when it ends. Used by `pod.py`."""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle_training.launcher.arguments import Arguments
from rekindle_training.launcher.processes import Processes
from rekindle_training.launcher.zygote import Command, Program, Signal, Start

STARTS, STARTS_WITHIN = 5, 60.0
"""Number of manager starts within so many seconds at which the pod gives up."""

MANAGER = "manager"
"""Name of the manager's process."""


@dataclass(frozen=True)
class Listens:
    """Event: the manager listens on this port."""

    port: int


class OwnManager:
    """Manager that the launcher starts. Created before the zygote, which inherits the descriptor that announces the port."""

    def __init__(self, arguments: Arguments, *, forked: bool) -> None:
        """Args:
        forked: True if the manager is forked from a process that has loaded torch.
        """
        self._arguments, self._forked = arguments, forked
        self._say: Callable[[Command], None] = lambda _: None
        self._announced, self.announce = os.pipe()
        self._starts: list[float] = []
        self.runs = False
        self.is_stopped = False

    @property
    def succeeds(self) -> bool:
        """True if the current manager follows one that ended."""
        return len(self._starts) > 1

    @property
    def ends_again_and_again(self) -> bool:
        return ends_again_and_again(self._starts, time.monotonic())

    def attend(self, processes: Processes, events: "queue.SimpleQueue[Any]") -> None:
        """Enables starts of the manager. A `Listens` event is put into `events` for each manager that listens.

        All of them listen on the port of the first one.
        """
        self._say = processes.say
        threading.Thread(target=self._await, args=(events,), daemon=True).start()

    def start(self, port: int) -> None:
        """Starts a manager on this port. 0: any port."""
        self._starts.append(time.monotonic())
        self.runs, self.is_stopped = True, False
        size = [f"--nnodes={self._arguments.nnodes}", f"--nproc-per-node={self._arguments.nproc_per_node}"]
        where = [f"--port={port}", f"--announce-fd={self.announce}"]
        patience = f"--stall-seconds={self._arguments.stall_seconds}"
        command = ("rekindle_training.manager.main", "--standalone", patience, *where, *size)
        program = Program(command, interpreted=True, as_module=True)
        if not self._forked:
            program = Program((sys.executable, "-m", *command))
        self._say(Start(MANAGER, program, dict(os.environ), keep=(self.announce,), interruptible=False))

    def send(self, number: int) -> None:
        if self.runs:
            self._say(Signal(MANAGER, number))

    def end_if_stopped(self) -> None:
        """Kills the manager if it is stopped, because it would not notice a fault."""
        if self.is_stopped:
            self.send(signal.SIGKILL)

    def _await(self, events: "queue.SimpleQueue[Any]") -> None:
        while line := os.read(self._announced, 64):
            events.put(Listens(int(line)))


def ends_again_and_again(starts: Sequence[float], now: float) -> bool:
    """Returns whether too many managers were started recently, given the times of all starts in seconds."""
    return sum(now - start < STARTS_WITHIN for start in starts) >= STARTS
