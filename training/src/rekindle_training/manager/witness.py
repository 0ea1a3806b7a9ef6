"""What the launchers of a job see, where a control plane decides: a process that ended, or that holds training up, is lost.

The conductor reports it. Without a launcher that speaks, a process is lost when it is silent.
"""

import logging

from rekindle_training.manager import watch
from rekindle_training.manager.pods import Pods
from rekindle_training.manager.roster import Roster
from rekindle_training.manager.watch import Watch

log = logging.getLogger(__name__)


class Witness:
    """Of one job."""

    def __init__(self, roster: Roster, pods: Pods, patience: float) -> None:
        """`patience`: as of `Watch`."""
        self._roster, self._pods = roster, pods
        self._watch = Watch(patience, self._lose)
        roster.lives = pods.vouches_for
        pods.on_change = self._look_at_ends

    async def watch(self) -> None:
        """Never returns."""
        await watch.keep(self._watch, self._roster, self._pods)

    def _look_at_ends(self) -> None:
        for process in list(self._pods.processes):
            if process.HasField("ended"):
                self._roster.ended(process.process)

    def _lose(self, rank: int, reason: str) -> None:
        if (member := self._roster.members.get(rank)) is not None:
            log.warning("a rank holds training up", extra={"rank": rank, "reason": reason})
            self._roster.ended(member.identity)
