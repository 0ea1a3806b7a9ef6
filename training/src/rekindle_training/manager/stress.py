"""A stress test of ranks that stand: one check after the other, all ranks of it at once, and what their answers mean together.

A rank that does not answer in time has timed out, and is asked nothing more; no rank waits for it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rekindle_training.manager.roster import Roster
from rekindle_training.stress.codes import FAULT, MEMORY, MESSAGES, NAMES, NOT_RUN, PRODUCTS, TIMED_OUT
from rekindle_wire.training_pb2 import ManagerMessage, StressTest, StressTested

log = logging.getLogger(__name__)

ORDER = (PRODUCTS, MEMORY, MESSAGES)
"""Who hangs in one of the first two is not waited for in the third, in which ranks wait for each other."""
ANSWER_SECONDS = 10.0
"""For the beginning and the answer of a check, beyond twice the time that it was given."""
UNKNOWN = "this operation is not known here"


class OpResult(NamedTuple):
    code: str
    result: str


Results = dict[int, dict[str, OpResult]]
"""By rank, and by the names of checks."""


@dataclass(frozen=True)
class Test:
    attempt: str
    """Of the pause in which it is made."""
    ops: Mapping[int, Collection[int]]
    """By rank."""
    seconds: float
    """For each check."""
    store_port: int


async def run(test: Test, roster: Roster) -> Results:
    """Raises RankLost where a rank ends meanwhile: training is to be recovered."""
    results: Results = {rank: _unknown(ops) for rank, ops in test.ops.items()}
    silent: set[int] = set()
    for op in ORDER:
        ranks = [rank for rank, ops in sorted(test.ops.items()) if op in ops]
        asked = [rank for rank in ranks if rank not in silent]
        answers = await _asked(test, op, asked, roster)
        silent |= set(asked) - answers.keys()
        for rank, result in judged(ranks, answers).items():
            results[rank][NAMES[op]] = result
    return results


def _unknown(ops: Iterable[int]) -> dict[str, OpResult]:
    return {str(op): OpResult(NOT_RUN, UNKNOWN) for op in ops if op not in ORDER}


async def _asked(test: Test, op: int, ranks: Collection[int], roster: Roster) -> dict[int, StressTested]:
    """Answers of those that gave one in time."""
    check = StressTest(
        id=f"{test.attempt}/{op}",
        op=op,
        seconds=test.seconds,
        peers=ranks if op == MESSAGES else (),
        store_port=test.store_port if op == MESSAGES else 0,
    )
    message = ManagerMessage(generation=roster.generation, stress_test=check)
    asked = {rank: roster.members[rank].ask(message, "stress_tested") for rank in ranks}
    if asked:
        log.info("checking", extra={"check": NAMES[op], "ranks": len(asked)})
        await asyncio.wait(asked.values(), timeout=2 * test.seconds + ANSWER_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    answers = {rank: answer.result().stress_tested for rank, answer in asked.items() if answer.done()}
    return {rank: answer for rank, answer in answers.items() if answer.id == check.id}


def judged(ranks: Iterable[int], answers: Mapping[int, StressTested]) -> dict[int, OpResult]:
    results = {rank: OpResult(one.code, one.result) for rank, one in answers.items()}
    late = set(ranks) - answers.keys()
    results |= {rank: OpResult(TIMED_OUT, "no answer in time") for rank in late}
    silent = culprits(_pairs(answers, lambda one: one.silent), late)
    wrong = culprits(_pairs(answers, lambda one: one.wrong), set())
    for rank in silent & answers.keys():
        results[rank] = OpResult(TIMED_OUT, answers[rank].result)
    for rank in wrong & answers.keys():
        results[rank] = OpResult(FAULT, answers[rank].result)
    return results


def _pairs(answers: Mapping[int, StressTested], named: Callable[[StressTested], Iterable[int]]) -> set[frozenset[int]]:
    return {frozenset((rank, other)) for rank, one in answers.items() for other in named(one)}


def culprits(pairs: Iterable[frozenset[int]], known: Collection[int]) -> frozenset[int]:
    """Few ranks that explain what went wrong between all these pairs, those first that explain most of it; both of a pair where
    neither explains more than the other.

    Args:
        known: ranks of which it is known that they are the reason.
    """
    found: set[int] = set()
    left = [pair for pair in pairs if not pair & set(known)]
    while left:
        explains = Counter(rank for pair in left for rank in pair)
        most = max(explains.values())
        found |= {rank for rank, count in explains.items() if count == most}
        left = [pair for pair in left if not pair & found]
    return frozenset(found)
