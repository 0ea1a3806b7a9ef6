"""Finds collectives that a rank has left out of a step, as by `break` or `continue` in it.

It waits for the others in the vote that ends the step, and they wait for it in the collective.

The conductor then breaks off what goes on between the ranks, which repeat the step. If that ends as before, `repair.py` asks
`left_out` what to make of it. A rank that only computes for long is not harmed: it comes to the vote, and says so.
"""

import logging
import time
from collections.abc import Callable, Mapping

from rekindle_training.manager.rank_process import RankProcess
from rekindle_training.manager.roster import Roster
from rekindle_wire.training_pb2 import Standing

log = logging.getLogger(__name__)

FIRST_SECONDS = 30.0
"""How long ranks may stand still before any of them has completed a step: they may compile."""
QUIET_SECONDS, AGAIN_SECONDS = 2.0, 10.0
"""Afterwards, at least, and in a step that was broken off before."""
LEARNT = 5
"""They may stand still this many times longer than they ever did and went on by themselves."""

Progress = dict[int, tuple[int, int, bool]]
"""The step that is executed, collectives and whether it waits in a vote, by rank."""


def left_out(roster: Roster, standing: Mapping[int, Standing]) -> str:
    """Returns which ranks wait for which ones, and where; empty: nobody does.

    Args:
        standing: what all that live say.
    """
    generation, step = roster.doubted or (0, 0)
    if generation != roster.generation or roster.vacant or any(at.reason or at.step != step - 1 for at in standing.values()):
        return ""
    voting = sorted(rank for rank, at in standing.items() if at.place == Standing.VOTES)
    others = sorted(rank for rank, at in standing.items() if at.place == Standing.BOUNDARY)
    if not voting or not others:
        return ""
    return (
        f"ranks {voting} have come to the end of step {step}, and ranks {others} wait for them in a collective of that step: all "
        "ranks make the same collectives in a step, and a `break` or `continue` inside `with step:` may leave one out"
    )


class LeftOut:
    """Of one job. `look` is called every half a second."""

    def __init__(self, roster: Roster, cut: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`cut` breaks off what goes on between the ranks."""
        self._roster, self._cut, self._clock = roster, cut, clock
        self._progress: Progress = {}
        self._since = clock()
        self._longest = 0.0
        self._cuts = 0
        self._cut_in = 0
        """The step that was broken off last."""

    def look(self) -> None:
        members, now = self._roster.members, self._clock()
        progress = {rank: (member.begun, member.collectives, member.votes) for rank, member in members.items()}
        if not self._are_able():
            self._progress, self._since = {}, now
        elif progress != self._progress:
            if self._progress:
                self._longest = max(self._longest, now - self._since)
            self._progress, self._since = progress, now
        elif (step := self._in_which_some_wait()) and now - self._since > self._limit(step):
            self._break_off(step)

    def _are_able(self) -> bool:
        members = self._roster.members.values()
        return self._roster.complete and all(map(_is_able, members))

    def _in_which_some_wait(self) -> int:
        """The step in which some wait in a vote, and others have begun more collectives without it; 0: there is none."""
        voting = [(begun, collectives) for begun, collectives, votes in self._progress.values() if votes]
        if not voting:
            return 0
        step, collectives = min(voting)
        others = [(at, count) for at, count, votes in self._progress.values() if not votes]
        return step if any(at == step and count >= collectives for at, count in others) else 0

    def _limit(self, step: int) -> float:
        """Doubles with each time: a job whose ranks often stand so is left alone in the end."""
        if not self._roster.stepped and not self._roster.took_over:
            least = FIRST_SECONDS
        else:
            least = AGAIN_SECONDS if step == self._cut_in else QUIET_SECONDS
        return max(least, LEARNT * self._longest) * (1 if step == self._cut_in else 2**self._cuts)

    def _break_off(self, step: int) -> None:
        voting = sorted(rank for rank, (_, _, votes) in self._progress.items() if votes)
        log.warning(
            "some ranks end a step and others do not, all are asked where they stand", extra={"step": step, "end": voting}
        )
        if step == self._cut_in:
            self._roster.doubted = self._roster.generation, step
        self._cut_in, self._cuts = step, self._cuts + 1
        self._progress, self._since = {}, self._clock()
        self._cut()


def _is_able(member: RankProcess) -> bool:
    return member.connected and not (member.stands or member.paused or member.lost or member.leaving is not None)
