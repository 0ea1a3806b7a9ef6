"""A stress test: what is asked for, and what its checks found, rank by rank."""

from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.links import NodeName
from rekindle.model.ranks import Ranks


class Op(IntEnum):
    """A check, by its number on the wire."""

    COMPUTE = 0
    MESSAGES = 1
    MEMORY = 2
    """Of our own training side only."""


class Code(StrEnum):
    """Of one check of one rank, as the contract has it."""

    OK = "0"
    NOT_RUN = "1"
    FAULT = "2"
    TIMED_OUT = "3"
    VOLTAGE = "4"
    """The device's voltage could not be put back."""


class StressRequest(Value):
    """Which checks are made on which nodes."""

    nodes: dict[NodeName, tuple[int, ...]] = {}
    """Operations by the names of nodes."""

    all_nodes: tuple[int, ...] = ()
    """Operations on all nodes of the job. Where there are some, `nodes` says nothing."""


class RankOps(Value):
    """What these ranks are to do."""

    ops: tuple[int, ...]
    ranks: Ranks


class StressTargets(Value):
    """What was asked for, rank by rank."""

    asked: tuple[RankOps, ...] = ()
    problem: Text = ""
    """What of the request is not as the job is; empty: nothing."""


class OpResult(Value):
    code: Note = ""
    """One that `Code` does not have was not understood, and is kept as it came."""

    result: Note = ""
    """What was measured, as one line."""


QUOTED = 12
"""Bytes around a line in a payload: the rank that it is of, and quotes."""

ResultOf = Mapping[str, OpResult]
"""Of one rank, by the names of checks: `aic`, `hccs`, `memory`."""

MOST_TEXT = 48 * 1024
"""Bytes of all lines together that a payload has room for. Beyond them those that found nothing go first."""

MOST_CHECKS = 3
"""Checks of which results are kept: each of them takes up to 50 kB for the ranks of a large job."""

MOST_TESTED_NODES = 128
"""Nodes that a request names one by one. Source: ours; all of them are in the state of the job's workflow."""

MOST_ROWS = 24 * 1024
"""Bytes of the table in a verdict, with what was found first."""

MOST_ISOLATED = 64
"""Nodes that one stress test isolates: where it finds more, something else is wrong, and a person has to look."""


class CheckResults(Value):
    """Of one check, of all its ranks: 10,000 that found nothing are a few characters."""

    name: Note = ""
    codes: dict[str, Ranks] = {}
    texts: dict[int, Note] = Field(default={})
    """Lines by rank, as far as there is room."""


class StressResults(Value):
    checks: tuple[CheckResults, ...] = ()

    def by_rank(self) -> dict[int, dict[str, OpResult]]:
        found: dict[int, dict[str, OpResult]] = {}
        for check in self.checks:
            for code, ranks in check.codes.items():
                for rank in ranks:
                    found.setdefault(rank, {})[check.name] = OpResult(code=code, result=check.texts.get(rank, ""))
        return dict(sorted(found.items()))


def gathered(results: Mapping[int, ResultOf]) -> StressResults:
    """Results by rank, as one payload."""
    kept = _texts_that_fit(results)
    names = sorted({name for of_rank in results.values() for name in of_rank})
    return StressResults(checks=tuple(_of_check(name, results, kept) for name in names))


def _of_check(name: str, results: Mapping[int, ResultOf], kept: Mapping[tuple[int, str], str]) -> CheckResults:
    ranks: dict[str, list[int]] = {}
    for rank, of_rank in results.items():
        if name in of_rank:
            ranks.setdefault(of_rank[name].code, []).append(rank)
    codes = {code: tuple(sorted(ranks[code])) for code in sorted(ranks)}
    texts = {rank: kept[rank, name] for rank in sorted(results) if (rank, name) in kept}
    return CheckResults(name=name, codes=codes, texts=texts)


def _texts_that_fit(results: Mapping[int, ResultOf]) -> dict[tuple[int, str], str]:
    room, kept = MOST_TEXT, dict[tuple[int, str], str]()
    for rank, name, one in sorted(_lines(results), key=lambda line: (line[2].code == Code.OK, line[0], line[1])):
        room -= len(one.result.encode()) + QUOTED
        if room < 0:
            break
        kept[rank, name] = one.result
    return kept


def _lines(results: Mapping[int, ResultOf]) -> Iterator[tuple[int, str, OpResult]]:
    for rank, of_rank in results.items():
        for name, one in of_rank.items():
            if one.result:
                yield rank, name, one


class Row(Value):
    """Of the table that people read."""

    node: str = ""
    device: str = ""
    rank: int = 0
    check: Note = ""
    code: Note = ""
    result: Note = ""


class Findings(Value):
    """What a stress test has to say of a job's nodes and ranks."""

    isolate: tuple[str, ...] = ()
    """Nodes on which a fault was found."""

    not_isolated: dict[str, Note] = {}
    """Those that could not be, with the reason."""

    faulty: Ranks = ()
    """All ranks on these nodes, and those that timed out: training has to go on without their processes."""

    timed_out: Ranks = ()
    not_tested: Ranks = ()
    """At least one of their checks could not be made, or nothing was said of it; which is no fault."""

    @property
    def sound(self) -> bool:
        """Training may go on as it is."""
        return not self.faulty


class Tested(Value):
    """How a stress test ended, as its verdict tells it."""

    failed: Text = ""
    """Why there is no result, as the contract words it; empty: there is one."""

    findings: Findings = Findings()
    rows: tuple[Row, ...] = ()
    """Of the table, as many as there is room for."""

    checks: int = 0
    """Rows of the whole table."""
