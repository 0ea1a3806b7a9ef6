"""Finds loops of different lengths: a rank is at the end of its loop, and others wait for it in a step that it does not do.

The coordinator then stops the ranks, so that all report where they stand, and `repair.py` asks `uneven` for the reason. A rank
that only takes long to reach its end is not affected.
"""

import logging
import time
from collections.abc import Callable

from rekindle_training.manager.membership import Membership
from rekindle_training.manager.rank_process import RankProcess

log = logging.getLogger(__name__)

QUIET_SECONDS = 2.0
"""Seconds of two heartbeats.

Ranks that have begun one more collective than the rank that left, and do not progress in that time, wait for it.
"""

Progress = dict[int, tuple[int, int, int]]
"""Progress of each rank: completed steps, current step, and number of collectives."""


def uneven(membership: Membership) -> str:
    """Returns which rank left its loop after which step, and which ranks wait for it in which step.

    Empty: no such rank is known.
    """
    left = {rank: member.leaving for rank, member in membership.members.items() if member.leaving is not None}
    if not left:
        return ""
    rank = min(left, key=lambda rank: left[rank].step)
    step, total = left[rank].step, left[rank].total
    others = {other: member.begun for other, member in _in_their_loops(membership).items() if member.begun > step}
    if not others:
        return ""
    return (
        f"rank {rank} left its loop after step {step} of {total}, and ranks {sorted(others)} wait for it in step "
        f"{min(others.values())}: all ranks have to do the same steps, and a loader may be a batch shorter on one rank"
    )


def say(membership: Membership) -> None:
    """Logs how training has ended, once all ranks have ended well."""
    ends: dict[tuple[int, int], list[int]] = {}
    for rank, member in sorted(membership.members.items()):
        if member.leaving is not None:
            ends.setdefault((member.leaving.step, member.leaving.total), []).append(rank)
    if ends and all(step >= total > 0 for step, total in ends):
        log.info("training is complete")
    for (step, total), ranks in ends.items():
        if step < total:
            log.warning("training ended before its last step", extra={"step": step, "total": total, "ranks": ranks})
    if not any(total for _, total in ends):
        log.info("training ended, no loop of a session has counted its steps")


def _in_their_loops(membership: Membership) -> dict[int, RankProcess]:
    return {rank: member for rank, member in membership.members.items() if member.leaving is None and not member.lost}


class LoopEnds:
    """Watch over the loop ends of one job. `look` is called every half a second."""

    def __init__(
        self, membership: Membership, patience: float, cut: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        patience: seconds after which a rank counts as stuck. After half of them, a rank that has begun no further collective is
            asked as well, which does not affect a slow one. 0: never.
        cut: stops all ranks.
        """
        self._membership, self._patience, self._cut, self._clock = membership, patience, cut, clock
        self._progress: Progress = {}
        self._since = clock()

    def look(self) -> None:
        members = _in_their_loops(self._membership)
        left = [member.leaving for member in self._membership.members.values() if member.leaving is not None]
        able = all(member.connected and not (member.stands or member.paused) for member in members.values())
        progress = {rank: (member.step, member.begun, member.collectives) for rank, member in members.items()}
        if not left or not members or not able or progress != self._progress:
            self._progress, self._since = progress if able else {}, self._clock()
            return
        began_more = any(collectives > min(one.collectives for one in left) for _, _, collectives in progress.values())
        limit = QUIET_SECONDS if began_more else self._patience / 2
        if limit and self._clock() - self._since > limit:
            self._since = self._clock()
            log.warning("loop left by some ranks, the others queried", extra={"others": sorted(members)})
            self._cut()
