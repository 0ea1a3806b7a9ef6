"""Finds collectives that a rank has left out of a step, as by `break` or `continue` in it.

The rank waits for the others in the vote that ends the step, and they wait for it in the collective.

The coordinator then breaks off the step, and the ranks repeat it. If that ends as before, `repair.py` asks `left_out` for the
reason. A rank that only computes for long is not harmed: it reaches the vote, and reports that.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rekindle_training.manager.membership import Doubted, Membership
from rekindle_training.manager.rank_process import RankProcess
from rekindle_wire.training_pb2 import Standing

log = logging.getLogger(__name__)

FIRST_SECONDS = 30.0
"""Minimum standstill in seconds before the first completed step, after which ranks are stopped. Ranks may compile then."""
QUIET_SECONDS, AGAIN_SECONDS = 2.0, 10.0
"""Minimum standstill in seconds after the first step, and in a step that was stopped before."""
LEARNT = 5
"""Minimum standstill as a factor of the longest one from which the ranks went on by themselves."""


class _At(NamedTuple):
    """Progress of a rank."""

    step: int
    """Step that the rank executes."""
    groups: Mapping[str, int]
    votes: bool

    def is_behind(self, other: "_At") -> bool:
        """Returns whether this rank votes, and the other one has begun a collective without it, in a group that has both."""
        groups = self.groups.keys() & other.groups.keys()
        in_step = self.votes and not other.votes and self.step == other.step
        return in_step and any(self.groups[name] < other.groups[name] for name in groups)


def left_out(membership: Membership, standing: Mapping[int, Standing]) -> str:
    """Returns which ranks wait for which ones, and where. Empty: none waits.

    A rank that has begun a further collective since then was only computing.

    Args:
        standing: position of each live rank.
    """
    doubted = membership.doubted
    if doubted is None or doubted.generation != membership.generation or membership.vacant:
        return ""
    if any(at.reason or at.step != doubted.step - 1 for at in standing.values()):
        return ""
    voting = sorted(rank for rank, at in standing.items() if at.place == Standing.VOTES)
    others = sorted(rank for rank, at in standing.items() if at.place == Standing.BOUNDARY)
    if not voting or not others or any(membership.members[rank].groups != doubted.groups[rank] for rank in others):
        return ""
    return (
        f"ranks {voting} have come to the end of step {doubted.step}, and ranks {others} wait for them in a collective of that "
        "step: all ranks make the same collectives in a step, and a `break` or `continue` inside `with step:` may leave one out"
    )


class LeftOut:
    """Watch over the collectives of one job. `look` is called every half a second."""

    def __init__(self, membership: Membership, cut: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`cut` breaks off what goes on between the ranks."""
        self._membership, self._cut, self._clock = membership, cut, clock
        self._progress: dict[int, _At] = {}
        self._since = clock()
        self._longest = 0.0
        self._cuts = 0
        self._cut_in = 0
        """Step that was stopped last."""

    def look(self) -> None:
        members, now = self._membership.members, self._clock()
        progress = {rank: _At(member.begun, member.groups, member.votes) for rank, member in members.items()}
        if not self._are_able():
            self._progress, self._since = {}, now
        elif progress != self._progress:
            if self._progress:
                self._longest = max(self._longest, now - self._since)
            self._progress, self._since = progress, now
        elif (step := self._in_which_some_wait()) and now - self._since > self._limit(step):
            self._break_off(step)

    def _are_able(self) -> bool:
        members = self._membership.members.values()
        return self._membership.complete and all(map(_is_able, members))

    def _in_which_some_wait(self) -> int:
        """Returns the step in which some ranks wait in a vote, and others have begun more collectives without them.

        0: there is none.
        """
        ranks = list(self._progress.values())
        return next((one.step for one in ranks if one.votes and any(map(one.is_behind, ranks))), 0)

    def _limit(self, step: int) -> float:
        """Returns the standstill in seconds after which ranks are stopped.

        It doubles each time, so that a slow job is left alone in the end.
        """
        if not self._membership.stepped and not self._membership.took_over:
            least = FIRST_SECONDS
        else:
            least = AGAIN_SECONDS if step == self._cut_in else QUIET_SECONDS
        return max(least, LEARNT * self._longest) * (1 if step == self._cut_in else 2**self._cuts)

    def _break_off(self, step: int) -> None:
        voting = sorted(rank for rank, at in self._progress.items() if at.votes)
        log.warning("step ended by some ranks only, all ranks queried", extra={"step": step, "end": voting})
        if step == self._cut_in:
            groups = {rank: at.groups for rank, at in self._progress.items()}
            self._membership.doubted = Doubted(self._membership.generation, step, groups)
        self._cut_in, self._cuts = step, self._cuts + 1
        self._progress, self._since = {}, self._clock()
        self._cut()


def _is_able(member: RankProcess) -> bool:
    return member.connected and not (member.stands or member.paused or member.lost or member.leaving is not None)
