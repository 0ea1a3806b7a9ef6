"""The pod's processes, as the launcher knows them: started, bound and ended by way of the zygote."""

import contextlib
import os
import queue
import signal
import threading
from multiprocessing.connection import Connection

from rekindle_training.launcher import zygote
from rekindle_training.launcher.zygote import Command, End, Ended, Event

ZYGOTE = "zygote"
"""Its end is told as that of any other process."""


class Processes:
    """Made while the launcher has one thread."""

    def __init__(self, *, preload: bool) -> None:
        self._zygote, self._way = zygote.start(preload=preload)

    def listen(self, events: "queue.SimpleQueue[Event]") -> None:
        """From here on what becomes of them is put there."""
        threading.Thread(target=self._listen, args=(self._way, events), daemon=True).start()

    def say(self, command: Command) -> None:
        with contextlib.suppress(OSError):  # it has ended, and all processes with it, which is told
            self._way.send(command)

    def end(self) -> None:
        """All that are still there are killed."""
        self.say(End())
        os.waitpid(self._zygote, 0)

    @staticmethod
    def _listen(way: Connection, events: "queue.SimpleQueue[Event]") -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                events.put(way.recv())
        events.put(Ended(ZYGOTE, -signal.SIGKILL))
