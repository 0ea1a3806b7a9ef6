"""Processes of the pod, as the launcher sees them. The zygote starts, binds and ends them."""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Collection
from multiprocessing.connection import Connection

from rekindle_training.launcher import linux, zygote
from rekindle_training.launcher.zygote import Command, End, Ended, Event, Stopped

ZYGOTE = "zygote"
"""Name of the zygote. Its end and its stops are reported as those of any other process."""


class Processes:
    """All processes of the pod. Created while the launcher has only one thread."""

    def __init__(self, *, preload: bool, signals: Collection[int]) -> None:
        """Args:
        preload: torch is loaded once, for all that is forked.
        signals: those that the launcher passes on.
        """
        self._preload, self._signals = preload, signals
        self._strangers = linux.children()
        """Children that this process had before it became the launcher, for example those of a shell that ran `exec`."""
        linux.adopt_orphans()
        self._zygote, self._way = zygote.start(preload=preload, signals=signals)

    def listen(self, events: "queue.SimpleQueue[Event]") -> None:
        """Puts all further events of the processes into `events`."""
        self._events = events
        threading.Thread(target=self._listen, args=(self._way, events), daemon=True).start()
        threading.Thread(target=self._watch, args=(self._zygote, events), daemon=True).start()

    def say(self, command: Command) -> None:
        with contextlib.suppress(OSError):  # it has ended, and all processes with it, which is an event
            self._way.send(command)

    def signal_zygote(self, number: int) -> None:
        """Sends a signal to the zygote. Called only if it has not been replaced since its last event."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._zygote, number)

    def begin_again(self, inherited: Collection[int]) -> None:
        """Starts another zygote when the one before has ended, and ends what that left behind.

        Args:
            inherited: descriptors that the pod's processes need.
        """
        self._end_rest()
        self._zygote, self._way = zygote.start_another(preload=self._preload, signals=self._signals, inherited=inherited)
        self.listen(self._events)

    def end(self, *, well: bool) -> None:
        """Kills all processes that are left.

        Args:
            well: True if processes that ranks have left behind are not killed.
        """
        self.say(End(well))
        self.signal_zygote(signal.SIGCONT)  # a stopped zygote would not read the command
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._zygote, 0)
        if not well:
            self._end_rest()

    def _end_rest(self) -> None:
        linux.end_children(besides=self._strangers)

    @staticmethod
    def _listen(way: Connection, events: "queue.SimpleQueue[Event]") -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                events.put(way.recv())
        events.put(Ended(ZYGOTE, -signal.SIGKILL))

    @staticmethod
    def _watch(process: int, events: "queue.SimpleQueue[Event]") -> None:
        """Puts each stop of the zygote into `events`, until it ends.

        A stopped zygote reports nothing about the pod's processes.
        """
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_PID, process, os.WSTOPPED | os.WCONTINUED)) is not None:
                events.put(Stopped(ZYGOTE, found.si_code == os.CLD_STOPPED))
