"""Finds the processes that hold training up: one that is stopped, and one that stands still while all others wait for it.

A rank that waits is in a collective, and has begun one more than the rank that does not come. So ranks are compared by
progress: completed steps, and collectives begun, in any group. An operation that takes all of them long, such as a
compilation, is no fault. Neither is a silent process: one call may keep it from sending.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping

from rekindle_training.manager.left_out import LeftOut
from rekindle_training.manager.loop_ends import LoopEnds
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.rank_process import RankProcess

LOOK_SECONDS = 0.5
"""Seconds between two comparisons of the ranks' progress."""

Progress = tuple[int, int]
"""Progress of a rank: completed steps, collectives begun."""

WAITS: Progress = (sys.maxsize, 0)
"""Progress of a rank that stands until the order to go on, or is at the end of its loop.

It never counts as behind the others.
"""

STOPPED_SECONDS = 1.0
"""Seconds for which a process may be stopped, for example by SIGSTOP, before another one takes its rank."""
ASLEEP_SECONDS = 10.0
"""Seconds between two comparisons after which this process is assumed to have been stopped itself, and the ranks with it."""
LEARNT = 5
"""Minimum standstill before a rank counts as stuck, as a factor of the longest one from which all went on by themselves."""


async def keep(watch: "Watch", ends: LoopEnds, left_out: LeftOut, membership: Membership, pods: Pods) -> None:
    """Calls all watches every half a second. Never returns."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        look(watch, membership, pods)
        ends.look()
        left_out.look()


def look(watch: "Watch", membership: Membership, pods: Pods) -> None:
    watch.look_at_stopped(stopped(membership, pods))
    if membership.training and not membership.vacant and not any(member.finished for member in membership.members.values()):
        watch.look({rank: _progress(member) for rank, member in membership.members.items()})
    else:
        watch.rest()


def _progress(member: RankProcess) -> Progress:
    return WAITS if member.stands or member.paused or member.leaving else (member.step, member.collectives)


def stopped(membership: Membership, pods: Pods) -> frozenset[int]:
    """Returns the ranks whose processes are stopped. A stopped backup of a rank that trains is left out."""
    living = {rank: member.identity for rank, member in membership.members.items() if not member.lost}
    found = (process for process in pods.processes if process.stopped)
    return frozenset(process.rank for process in found if living.get(process.rank, process.process) == process.process)


class Watch:
    """Watch over one job. `look` is called about every second. `kill` is called with the rank to replace and the reason."""

    def __init__(self, patience: float, kill: Callable[[int, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        patience: minimum number of seconds that ranks wait for another one. 0: no limit.
        kill: replaces a rank, for the given reason.
        """
        self._patience, self._kill, self._clock = patience, kill, clock
        self._progress: dict[int, Progress] = {}
        self._moved = self._looked = clock()
        self._longest = 0.0
        self._stopped: dict[int, float] = {}
        self._blamed: set[tuple[int, int]] = set()
        """Ranks that were replaced, with their steps. A second time they are left alone, because the script is the cause."""

    def look(self, progress: Mapping[int, Progress]) -> None:
        """Compares the progress of all ranks, while they train."""
        now = self._clock()
        if now - self._looked > ASLEEP_SECONDS:
            self.rest()
        self._looked = now
        if progress != self._progress:
            if progress.keys() == self._progress.keys():
                self._longest = max(self._longest, now - self._moved)
            self._progress, self._moved = dict(progress), now
            return
        quiet = now - self._moved
        if self._patience and quiet > max(self._patience, LEARNT * self._longest):
            self._blame(quiet)

    def rest(self) -> None:
        """Resets the comparison, because training does not go on just now, or begins again."""
        self._progress, self._moved = {}, self._clock()

    def look_at_stopped(self, ranks: frozenset[int]) -> None:
        """Kills ranks whose processes have been stopped for too long.

        Args:
            ranks: ranks whose processes are stopped now.
        """
        now = self._clock()
        self._stopped = {rank: self._stopped.get(rank, now) for rank in ranks}
        for rank, since in list(self._stopped.items()):
            if now - since >= STOPPED_SECONDS:
                self._kill(rank, f"stopped for {STOPPED_SECONDS:g} s")
                del self._stopped[rank]

    def _blame(self, quiet: float) -> None:
        least = min(self._progress.values())
        behind = {rank for rank, at in self._progress.items() if at == least}
        if len(behind) == len(self._progress):
            return
        for rank in behind:
            step = least[0] + 1
            if (rank, step) not in self._blamed:
                self._blamed.add((rank, step))
                self._kill(rank, f"the others have waited for it in step {step} for {quiet:.0f} s")
        self._moved = self._clock()
