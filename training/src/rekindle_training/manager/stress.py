"""Stress test of ranks that stand: one check after the other, each by all its ranks at once.

It also interprets the answers together. Created for an order of the control plane, and run by `maintenance.py`. A rank that
does not answer in time has timed out, and gets no further check; no rank waits for it.
"""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from rekindle_training.manager.hot_switch import Means
from rekindle_training.stress.codes import FAULT, MEMORY, MESSAGES, NAMES, NOT_RUN, PRODUCTS, TIMED_OUT
from rekindle_training.stress.meetings import partners
from rekindle_wire.recover_pb2 import StressTestRankParams
from rekindle_wire.training_pb2 import ManagerMessage, StressTest, StressTested

log = logging.getLogger(__name__)

ORDER = (PRODUCTS, MEMORY, MESSAGES)
"""Order of the checks.

A rank that hangs in one of the first two is left out of the third, in which ranks wait for each other.
"""
ANSWER_SECONDS = 10.0
"""Seconds to begin and answer a check, in addition to twice the time that the check was given."""
MEETING_SECONDS = 5.0
"""Minimum number of seconds for each meeting of two ranks. It takes a moment if both come, but a busy machine is no fault."""


class OpResult(NamedTuple):
    code: str
    result: str


Results = dict[int, dict[str, OpResult]]
"""Results by rank, and then by the name of the check."""


def read(order: StressTestRankParams, ranks: int) -> dict[int, tuple[int, ...]]:
    """Returns the operations of an order, by rank.

    Args:
        ranks: number of ranks of the job.

    Raises:
        ValueError: the order is invalid; the message names the field.
    """
    if not order.stressParam:
        raise ValueError("stressParam: no rank is named")
    if wrong := [text for text in order.stressParam if not (text.isascii() and text.isdigit() and int(text) < ranks)]:
        raise ValueError(f"stressParam: {min(wrong)!r} is not one of 0 to {ranks - 1}")
    return {int(text): tuple(dict.fromkeys(listed.ops)) for text, listed in order.stressParam.items()}


class Stress:
    """Stress test of one order."""

    mends = False

    def __init__(self, order: StressTestRankParams, means: Means, seconds: float) -> None:
        """Args:
        seconds: for each check.
        """
        self.order = order.SerializeToString(deterministic=True)
        self._order, self._means, self._membership = order, means, means.membership
        self._seconds = seconds
        self._ops: dict[int, tuple[int, ...]] = {}
        self._results: Results = {}
        self._info = "it is not done yet"

    def answer(self, attempt: str) -> None:
        self._means.reports.stress_tested(self._results, self._info, attempt)

    def break_off(self, reason: str) -> None:
        """Ends the stress test. Results that were found are kept, and all other checks get the code NOT_RUN."""
        self._info = reason
        for rank, ops in self._ops.items():
            for op in ops:
                self._results.setdefault(rank, {}).setdefault(_name(op), OpResult(NOT_RUN, reason))

    async def run(self) -> None:
        """Runs the stress test. Raises RankLost or StepFailed if a rank ends meanwhile: training is to be recovered."""
        try:
            self._ops = read(self._order, self._membership.world_size)
        except ValueError as error:
            self.break_off(str(error))
            return
        if missing := sorted(self._ops.keys() - self._membership.members.keys()):
            self.break_off(f"stressParam: rank {missing[0]} is missing, training goes on without it")
            return
        silent: set[int] = set()
        for op in ORDER:
            ranks = [rank for rank, ops in sorted(self._ops.items()) if op in ops]
            asked = [rank for rank in ranks if rank not in silent]
            answers = await self._ask(op, asked)
            silent |= set(asked) - answers.keys()
            for rank, result in judged(ranks, asked, answers).items():
                self._results.setdefault(rank, {})[NAMES[op]] = result
        self.break_off("this operation is not known here")  # what is left
        self._info = _in_words(self._results)

    async def _ask(self, op: int, ranks: Collection[int]) -> dict[int, StressTested]:
        """Runs a check on these ranks. Returns the answers that arrived in time."""
        if not ranks:
            return {}
        check = StressTest(id=uuid.uuid4().hex, op=op, seconds=self._seconds)
        if op == MESSAGES:
            meetings = (len(ranks) - 1).bit_length()
            check.seconds = max(self._seconds, MEETING_SECONDS * meetings)
            check.peers.extend(ranks)
            check.store_port = (await self._means.store).port
        message = ManagerMessage(generation=self._membership.generation, stress_test=check)
        log.info("device checks started", extra={"check": NAMES[op], "ranks": len(ranks)})
        asked = {rank: self._membership.members[rank].ask(message, "stress_tested") for rank in ranks}
        await asyncio.wait(asked.values(), timeout=2 * check.seconds + ANSWER_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        answers = {rank: answer.result().stress_tested for rank, answer in asked.items() if answer.done()}
        return {rank: answer for rank, answer in answers.items() if answer.id == check.id}


def _name(op: int) -> str:
    return NAMES.get(op, str(op))


def _in_words(results: Results) -> str:
    codes = Counter(one.code for of_rank in results.values() for one in of_rank.values())
    words = {FAULT: "found a fault", TIMED_OUT: "timed out", NOT_RUN: "could not be made"}
    said = [f"{codes[code]} {word}" for code, word in words.items() if codes[code]]
    return f"{codes.total()} checks of {len(results)} ranks: {', '.join(said) or 'nothing found'}"


def judged(ranks: Iterable[int], asked: Sequence[int], answers: Mapping[int, StressTested]) -> dict[int, OpResult]:
    """Args:
    asked: those of the ranks that have made the check, ascending.
    """
    results = {rank: OpResult(one.code, one.result) for rank, one in answers.items()}
    late = set(ranks) - answers.keys()
    results |= {rank: OpResult(TIMED_OUT, "no answer in time") for rank in late}
    absent = late | {rank for rank, one in answers.items() if one.code == NOT_RUN}
    are_silent, are_wrong = _pairs(answers, lambda one: one.silent), _pairs(answers, lambda one: one.wrong)
    well = Counter(rank for pair in _met(asked) - are_silent - are_wrong if not pair & absent for rank in pair)
    silent = culprits(are_silent, absent, well)
    wrong = culprits(are_wrong, set(), well)
    for rank in silent & answers.keys():
        results[rank] = OpResult(TIMED_OUT, answers[rank].result)
    for rank in wrong & answers.keys():
        results[rank] = OpResult(FAULT, answers[rank].result)
    return results


def _pairs(answers: Mapping[int, StressTested], named: Callable[[StressTested], Iterable[int]]) -> set[frozenset[int]]:
    return {frozenset((rank, other)) for rank, one in answers.items() for other in named(one)}


def _met(asked: Sequence[int]) -> set[frozenset[int]]:
    """Returns all pairs of ranks that exchange messages."""
    count = len(asked)
    return {
        frozenset((rank, asked[other]))
        for number, rank in enumerate(asked)
        for other in partners(number, count)
        if other is not None
    }


def culprits(pairs: Iterable[frozenset[int]], known: Collection[int], well: Mapping[int, int]) -> frozenset[int]:
    """Returns a small set of ranks that explains the failures between all these pairs.

    Ranks that explain most failures come first, and of them those with the fewest meetings that went well. If nothing
    distinguishes the ranks of a pair, both are returned.

    Args:
        known: ranks that are already known to be the cause.
        well: number of other ranks with which all was well, by rank.
    """
    found: set[int] = set()
    left = [pair for pair in pairs if not pair & set(known)]
    while left:
        explains = Counter(rank for pair in left for rank in pair)
        most = max(explains.values())
        suspects = {rank for rank, count in explains.items() if count == most}
        least = min(well.get(rank, 0) for rank in suspects)
        found |= {rank for rank in suspects if well.get(rank, 0) == least}
        left = [pair for pair in left if not pair & found]
    return frozenset(found)
