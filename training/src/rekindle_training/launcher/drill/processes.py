"""Processes of one run of a drill: they are started by fork, awaited, and ended with all that they started."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from rekindle_training import logs
from rekindle_training.launcher import child
from rekindle_training.launcher.zygote import PASSED_ON, usual_handlers

GRACE_SECONDS = 8.0
"""Seconds that a launcher has to end its ranks, to which it gives five seconds."""
DUMP_SECONDS = 2.0
"""Seconds that processes have to write down where they stand."""
LOOK_SECONDS = 0.2


class Processes:
    """Processes of one run, as a context: at its end none is left."""

    def __init__(self, output: Path, tick: Callable[[], None]) -> None:
        """Args:
        output: file for everything that they print.
        tick: called a few times each second while they are waited for.
        """
        self._output, self._tick = output, tick
        self._living: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        """Exit codes of the processes that have ended, by name. Negative: the number of a signal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGTERM)
        if not self.wait(lambda: not self._living, GRACE_SECONDS):
            self._signal(signal.SIGKILL)
            self.wait(lambda: not self._living, GRACE_SECONDS)

    def start(self, name: str, run: Callable[[], int], environment: Mapping[str, str]) -> None:
        """Starts a process that calls a function, in a new process group: a terminal's Ctrl-C reaches the drill only."""

        def begin() -> int:
            os.setpgid(0, 0)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            child.redirect({1: self._output, 2: self._output})
            os.environ.clear()
            os.environ.update(environment)
            logs.configure("rekindle-train")
            return run()

        self._living[name] = child.fork(begin, {**usual_handlers(PASSED_ON), signal.SIGCHLD: signal.SIG_DFL})

    def end(self, name: str) -> None:
        os.kill(self._living[name], signal.SIGTERM)

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Returns whether the condition holds; it is looked at again after each end of a process, and a few times each second."""
        over = time.monotonic() + seconds
        self._reap()
        while not condition():
            left = over - time.monotonic()
            if left <= 0:
                return False
            self._sleep(min(left, LOOK_SECONDS))
            self._reap()
            self._tick()
        return True

    def dump(self) -> None:
        """Has every process of the ranks write down where it stands, and end: those are the grandchildren of the launchers."""
        launchers = list(self._living.values())
        ranks = [rank for launcher in launchers for zygote in _children(launcher) for rank in _children(zygote)]
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGABRT)
        self.wait(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), DUMP_SECONDS)

    def _signal(self, number: int) -> None:
        for pid in self._living.values():
            os.kill(pid, number)

    def _sleep(self, seconds: float) -> None:
        """Waits until a process ends, or until the time is over."""
        descriptors = [os.pidfd_open(pid) for pid in self._living.values()]
        try:
            select.select(descriptors, [], [], seconds)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _reap(self) -> None:
        for name, pid in list(self._living.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._living[name]
                self.codes[name] = os.waitstatus_to_exitcode(status)


def _children(process: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []
