"""Detects losses through the launchers of a job with a control plane: a process that ended, or that holds training up, is lost.

The coordinator reports it. Without a connected launcher, a process is lost when it is silent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from rekindle_training.manager import watch
from rekindle_training.manager.left_out import LeftOut
from rekindle_training.manager.loop_ends import LoopEnds
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.watch import Watch
from rekindle_wire.training_pb2 import ProcessState

log = logging.getLogger(__name__)

MEET_SECONDS = 2.0
"""Seconds in which a manager that follows another one meets all live ranks. They reconnect every 0.5 s."""
LATE_SECONDS = 10.0
"""Seconds after that in which a rank may still reconnect, if its launcher says that its process lives.

The machine may be overloaded.
"""


async def meet(membership: Membership, pods: Pods) -> None:
    """Waits until a manager that follows another one has met all live ranks."""

    def is_expected(process: ProcessState) -> bool:
        lives = not process.HasField("ended")
        return lives and process.rank in membership.vacant and not membership.knows(process.process)

    await asyncio.sleep(MEET_SECONDS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LATE_SECONDS):
            while any(map(is_expected, pods.processes)):  # noqa: ASYNC110  (a launcher that leaves changes no member)
                await asyncio.sleep(watch.LOOK_SECONDS)


class LivenessMonitor:
    """Loss detection for one job with a control plane."""

    def __init__(self, membership: Membership, pods: Pods, patience: float, break_off: Callable[[], None]) -> None:
        """Args:
        patience: as of `Watch`.
        break_off: stops all ranks, so that all report where they stand.
        """
        self._membership, self._pods = membership, pods
        self._watch = Watch(patience, self._lose)
        self._ends = LoopEnds(membership, patience, break_off)
        self._left_out = LeftOut(membership, break_off)
        self._useless: set[str] = set()
        """Processes whose end concerns their own pod only."""
        membership.lives = pods.vouches_for
        pods.on_change = self._look_at_ends

    async def watch(self) -> None:
        """Watches the ranks. Never returns."""
        await watch.keep(self._watch, self._ends, self._left_out, self._membership, self._pods)

    def _look_at_ends(self) -> None:
        for process in list(self._pods.processes):
            if process.HasField("ended"):
                self._membership.ended(process.process)
                self._look_at_stranger(process)

    def _look_at_stranger(self, process: ProcessState) -> None:
        """Handles an ended process that has never trained: its script failed before it began, or it belongs to a backup."""
        if process.ended and not self._membership.has_trained(process.process) and process.process not in self._useless:
            self._useless.add(process.process)
            later = 0 if self._membership.generation and not self._membership.took_over else MEET_SECONDS
            asyncio.get_running_loop().call_later(later, self._release, process)

    def _release(self, process: ProcessState) -> None:
        """Releases the pod of this process, unless training waits for a process of its rank."""
        if not self._membership.generation or process.rank not in self._membership.vacant:
            self._pods.release(f"rank {process.rank} ended with {process.ended} and did not train", process.process)

    def _lose(self, rank: int, reason: str) -> None:
        """Kills the process of a rank that holds training up.

        A rank without a member may have a process that was to take the rank, and was stopped before it registered.
        """
        member = self._membership.members.get(rank)
        if member is not None and not member.lost:
            found = [member.identity]
        else:
            found = [process.process for process in self._pods.processes if process.rank == rank and process.stopped]
        for identity in found if self._membership.generation else ():
            log.warning("blocking rank found", extra={"rank": rank, "reason": reason})
            self._pods.kill(identity, reason)
            self._membership.ended(identity)
