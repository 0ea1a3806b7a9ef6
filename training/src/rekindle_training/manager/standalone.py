"""Decides for a job without a control plane: which ranks are replaced, which ones hold training up, and when all begin again.

Created by the coordinator for a job whose launcher started this manager. It knows only what the launcher and the ranks report
now, so that a manager that follows another one makes the same decisions.
"""

import asyncio
import logging
from collections.abc import Callable

from rekindle_training.manager import watch
from rekindle_training.manager.left_out import LeftOut
from rekindle_training.manager.loop_ends import LoopEnds
from rekindle_training.manager.membership import Membership
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.watch import Watch
from rekindle_wire.training_pb2 import ProcessState, Standing

log = logging.getLogger(__name__)


class Standalone:
    """Decisions of one job without a control plane. `consider` is called when something may have been lost."""

    def __init__(
        self, membership: Membership, pods: Pods, patience: float, break_off: Callable[[], None], repair: Callable[[], None]
    ) -> None:
        """Args:
        patience: minimum seconds that ranks wait for another one before it is replaced. 0: no limit.
        break_off: stops all ranks, so that all report where they stand.
        repair: begins a repair, if none is going on.
        """
        self._membership, self._pods, self._repair = membership, pods, repair
        self._watch = Watch(patience, self._kill)
        self._ends = LoopEnds(membership, patience, break_off)
        self._left_out = LeftOut(membership, break_off)
        self._considering: asyncio.Task[None] | None = None
        self._restarts = 0
        self.given_up = False
        """True if all ranks are to begin again, or to end."""
        membership.lives = pods.vouches_for
        membership.on_first_step = pods.train
        pods.on_change = self._changed

    @property
    def over(self) -> bool:
        """Returns whether all ranks have ended with exit code 0, whether they trained or not."""
        ended = list(self._pods.ended.values())
        return len(ended) == self._membership.world_size and not any(process.ended for process in ended)

    def consider(self) -> None:
        if self._considering is None and not self.given_up:
            self._considering = asyncio.create_task(self._look_at_losses())

    def give_up(self, reason: str, *, futile: bool = False) -> None:
        """Orders all ranks to begin again at the last checkpoint, or to end if that is futile."""
        if self.given_up:
            return
        self.given_up = True
        log.error("training given up", extra={"reason": reason})
        self._pods.restart(reason, futile=futile)

    async def watch(self) -> None:
        """Watches the ranks.

        A rank that holds training up is killed, and replaced as one that ended by itself. Never returns.
        """
        await watch.keep(self._watch, self._ends, self._left_out, self._membership, self._pods)

    def _changed(self) -> None:
        for process in self._pods.processes:
            self._membership.follow(process.rank, "" if process.HasField("ended") else process.process)
        if self._pods.restarts > self._restarts:
            self._restarts, self.given_up, self._membership.stepped = self._pods.restarts, False, False
        self.consider()

    async def _look_at_losses(self) -> None:
        """Looks for lost ranks, and repairs training or gives it up.

        A manager that follows another one first meets all live ranks.
        """
        membership, pods = self._membership, self._pods
        try:
            if pods.succeeds:
                await membership.until(self._knows_all_that_live)
            gone = [process for process in pods.ended.values() if not self._is_done(process)]
            if len(membership.vacant) < membership.world_size:
                if gone or membership.torn or membership.vacant:
                    self._repair()
            elif failed := next((process for process in gone if process.ended), None):
                _, words = membership.last_words.get(failed.process, (failed.rank, ""))
                error = f": {words}" if words else ""
                if (final := self._final) is not None:
                    self.give_up(final.reason, futile=final.refused)
                else:
                    self.give_up(f"rank {failed.rank} ended with {failed.ended}, and no other one trains{error}")
        finally:
            self._considering = None

    @property
    def _final(self) -> Standing | None:
        """Standing of a rank that cannot go on, whatever others do. None: there is none."""
        said = (member.standing for member in self._membership.members.values() if member.standing is not None)
        return next((standing for standing in said if standing.final), None)

    def _knows_all_that_live(self) -> bool:
        living = [process.process for process in self._pods.processes if not process.HasField("ended")]
        return all(map(self._membership.knows, living))

    def _is_done(self, process: ProcessState) -> bool:
        member = self._membership.members.get(process.rank)
        return member is not None and member.identity == process.process and member.finished and not process.ended

    def _kill(self, rank: int, reason: str) -> None:
        for process in self._pods.processes:
            if process.rank == rank and not process.HasField("ended"):
                log.warning("rank killed by the manager", extra={"rank": rank, "reason": reason})
                self._pods.kill(process.process, reason)
