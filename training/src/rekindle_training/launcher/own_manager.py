"""The manager of a pod that has no control plane: started by the launcher, and started again when it ends. Used by `pod.py`."""

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
"""How often a manager is started within so many seconds before the pod gives up."""

MANAGER = "manager"
"""By this name its process is known."""


@dataclass(frozen=True)
class Listens:
    """The manager, on this port."""

    port: int


class OwnManager:
    """Made before the process that makes all others, which inherits what the manager announces itself by."""

    def __init__(self, arguments: Arguments, *, forked: bool) -> None:
        """`forked`: from a process that has loaded torch."""
        self._arguments, self._forked = arguments, forked
        self._say: Callable[[Command], None] = lambda _: None
        self._announced, self.announce = os.pipe()
        self._starts: list[float] = []
        self.runs = False
        self.is_stopped = False

    @property
    def succeeds(self) -> bool:
        """It follows one that ended."""
        return len(self._starts) > 1

    @property
    def ends_again_and_again(self) -> bool:
        return ends_again_and_again(self._starts, time.monotonic())

    def attend(self, processes: Processes, events: "queue.SimpleQueue[Any]") -> None:
        """From here on managers can be started, and a `Listens` is put there for each that listens; the port is that of the
        first."""
        self._say = processes.say
        threading.Thread(target=self._await, args=(events,), daemon=True).start()

    def start(self, port: int) -> None:
        """`port`: 0 for any."""
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
        """One that does not go on hears of no fault."""
        if self.is_stopped:
            self.send(signal.SIGKILL)

    def _await(self, events: "queue.SimpleQueue[Any]") -> None:
        while line := os.read(self._announced, 64):
            events.put(Listens(int(line)))


def ends_again_and_again(starts: Sequence[float], now: float) -> bool:
    """Whether a manager that was started so often, at these times in seconds, is started no more."""
    return sum(now - start < STARTS_WITHIN for start in starts) >= STARTS
