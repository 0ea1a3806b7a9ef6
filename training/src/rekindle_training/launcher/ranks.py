"""Ranks of a pod: the process of each rank, and the signals to it. Used by `pod.py`."""

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
    """Rank with its latest process."""

    own_state: int
    """Descriptor of the memory that the rank leaves to its next process."""
    snapshots: int
    """Descriptor of the memory of its snapshots, which outlives a restart of all ranks in their pods."""
    number: int = 0
    process: str = ""
    ended: int | None = None
    stopped: bool = False
    spare: str = ""
    """Former name of the process, as a spare. A late report that it was stopped may still use this name."""

    @property
    def lives(self) -> bool:
        return bool(self.process) and self.ended is None

    def begin(self, number: int, process: str) -> None:
        """Assigns another process to this rank."""
        self.number, self.process, self.ended = number, process, None
        self.spare, self.stopped = "", False


class Ranks:
    """Ranks of one pod, by local rank. Created before the zygote, which inherits their memory."""

    def __init__(self, count: int) -> None:
        self.all = [
            Rank(os.memfd_create(f"{names.OWN_STATE_MEMORY}{rank}"), os.memfd_create(f"{names.SNAPSHOTS_MEMORY}{rank}"))
            for rank in range(count)
        ]
        self._say: Callable[[Command], None] = lambda _: None

    def attend(self, say: Callable[[Command], None]) -> None:
        """Args:
        say: sends a command to the zygote.
        """
        self._say = say

    @property
    def living(self) -> list[Rank]:
        return [rank for rank in self.all if rank.lives]

    @property
    def begun(self) -> bool:
        """Returns whether some ranks have reached their first step, and so have left state to their next processes."""
        return any(os.fstat(rank.own_state).st_size for rank in self.all)

    @property
    def complete(self) -> bool:
        """Returns whether all ranks have ended with exit code 0."""
        return all(rank.ended == 0 for rank in self.all)

    def states(self) -> Iterator[ProcessState]:
        for rank in self.all:
            yield ProcessState(rank=rank.number, process=rank.process, ended=rank.ended, stopped=rank.stopped)

    def signal(self, number: int) -> None:
        for rank in self.living:
            self._say(Signal(rank.process, number))

    def kill(self, reason: str, *ranks: Rank) -> None:
        """Kills these ranks, by default all live ones."""
        for rank in ranks or self.living:
            log.warning("rank killed", extra={"rank": rank.number, "reason": reason})
            self._say(Signal(rank.process, signal.SIGKILL))

    def kill_if_stopped(self, process: str) -> None:
        for rank in self.living:
            if rank.process == process and rank.stopped:
                self.kill("it is stopped, and does not end", rank)
