"""Intervals of the manager's procedures and of the ranks in them, for the trace of an incident. Created by `membership.py`.

They are recorded always, which costs some microseconds for each procedure, and sent where the control plane asks for them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from rekindle_wire.training_pb2 import Interval, RankMessage

KEPT = 64
"""Maximum number of procedures that are kept until they are sent."""
RANKS = 64
"""Maximum number of ranks of a procedure that are kept: the slowest."""
OWN = 4
"""Maximum number of intervals that are kept of what a rank has measured in a procedure."""
MOST = 2048
"""Maximum number of intervals that are sent at once. Gateways refuse more."""
LONGEST_NAME = 60
LONGEST = 86_400 * 10**9
"""Maximum length of an interval in nanoseconds. A longer one is a clock that was set. Gateways refuse it."""
OUTDATED_SECONDS = 900.0
"""Seconds after which a procedure is not sent any more: it belongs to no recovery that runs."""

Procedure = tuple[Interval, list[tuple[Interval, list[Interval]]]]
"""Interval of a procedure, and those of its ranks, each with what the rank itself has measured in it."""

Answers = Mapping[int, "asyncio.Future[RankMessage]"]


class Spans:
    def __init__(self) -> None:
        self._procedures: deque[Procedure] = deque(maxlen=KEPT)

    @contextmanager
    def record(self, name: str, asked: Answers | None = None) -> Iterator[None]:
        """Records a procedure.

        Args:
            asked: answers of the ranks that take part, by rank.
        """
        began, answered = time.time_ns(), dict[int, int]()
        for rank, answer in (asked or {}).items():
            answer.add_done_callback(partial(_note, answered, rank))
        whole = Interval(name=name, began=began)
        try:
            yield
        except BaseException as error:
            whole.error = type(error).__name__
            raise
        finally:
            whole.ended = max(began, time.time_ns())
            ranks = [
                _of_rank(name, rank, began, answered.get(rank, whole.ended), answer) for rank, answer in (asked or {}).items()
            ]
            self._procedures.append((whole, sorted(ranks, key=lambda one: -one[0].ended)[:RANKS]))

    def take(self) -> list[Interval]:
        """Removes all intervals and returns them, each behind the one around it: those of the latest procedures that fit."""
        kept, left = list[Procedure](), MOST
        while self._procedures:
            whole, ranks = self._procedures.pop()
            left -= 1 + sum(1 + len(own) for _, own in ranks)
            if left >= 0 and whole.ended > time.time_ns() - int(OUTDATED_SECONDS * 1e9) and _is_right(whole):
                kept.append((whole, ranks))
        found = list[Interval]()
        for whole, ranks in reversed(kept):
            found.append(whole)
            around = len(found)
            for rank, own in ranks:
                rank.within = around
                found.append(rank)
                within = len(found)
                found += [Interval(name=one.name, began=one.began, ended=one.ended, rank=rank.rank, within=within) for one in own]
        return found


def _is_right(interval: Interval) -> bool:
    """Returns whether a gateway accepts the interval. It refuses all of a message with one that is wrong."""
    name = interval.name
    is_named = 0 < len(name) <= LONGEST_NAME and name.isprintable()
    return is_named and 0 < interval.began <= interval.ended <= interval.began + LONGEST


def _note(answered: dict[int, int], rank: int, _: "asyncio.Future[RankMessage]") -> None:
    answered[rank] = time.time_ns()


def _of_rank(
    name: str, rank: int, began: int, ended: int, answer: "asyncio.Future[RankMessage]"
) -> tuple[Interval, list[Interval]]:
    interval = Interval(name=f"rank {rank}: {name}", began=began, ended=max(began, ended), rank=rank)
    if not answer.done() or answer.cancelled():
        interval.error = "no answer"
    elif error := answer.exception():
        interval.error = type(error).__name__
    else:
        return interval, [one for one in answer.result().stepped.intervals[:OWN] if _is_right(one)]
    return interval, []
