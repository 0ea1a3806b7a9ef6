"""The ranks of a pod: which process each of them has, and what their processes are told. Used by `pod.py`."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rekindle_training import names
from rekindle_training.launcher.zygote import Command, Signal
from rekindle_wire.training_pb2 import ProcessState

log = logging.getLogger(__name__)


@dataclass
class Rank:
    """The latest process of a rank."""

    own_state: int
    """Descriptor of what the rank leaves to its next process."""
    number: int = 0
    process: str = ""
    ended: int | None = None
    stopped: bool = False
    spare: str = ""
    """What the process was called before it had the rank; by this name it may still be told that it was stopped."""

    @property
    def lives(self) -> bool:
        return bool(self.process) and self.ended is None

    def begin(self, number: int, process: str) -> None:
        """Another process has this rank."""
        self.number, self.process, self.ended = number, process, None
        self.spare, self.stopped = "", False


class Ranks:
    """All of one pod, by their local numbers. Made before the zygote, which inherits what they leave to their next processes."""

    def __init__(self, count: int) -> None:
        self.all = [Rank(os.memfd_create(f"{names.OWN_STATE_MEMORY}{rank}")) for rank in range(count)]
        self._say: Callable[[Command], None] = lambda _: None

    def attend(self, say: Callable[[Command], None]) -> None:
        """`say` tells the zygote."""
        self._say = say

    @property
    def living(self) -> list[Rank]:
        return [rank for rank in self.all if rank.lives]

    @property
    def begun(self) -> bool:
        """Some have come to their first step: they have left something to their next processes."""
        return any(os.fstat(rank.own_state).st_size for rank in self.all)

    @property
    def complete(self) -> bool:
        """All have ended well."""
        return all(rank.ended == 0 for rank in self.all)

    def states(self) -> Iterator[ProcessState]:
        for rank in self.all:
            yield ProcessState(rank=rank.number, process=rank.process, ended=rank.ended, stopped=rank.stopped)

    def signal(self, number: int) -> None:
        for rank in self.living:
            self._say(Signal(rank.process, number))

    def kill(self, reason: str, *ranks: Rank) -> None:
        """By default all that live."""
        for rank in ranks or self.living:
            log.warning("rank killed", extra={"rank": rank.number, "reason": reason})
            self._say(Signal(rank.process, signal.SIGKILL))

    def kill_if_stopped(self, process: str) -> None:
        for rank in self.living:
            if rank.process == process and rank.stopped:
                self.kill("it is stopped, and does not end", rank)
