"""Requests and results of stress tests, rank by rank."""

from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum

from pydantic import Field

from rekindle.model.base import Value
from rekindle.model.bounds import Note, Text
from rekindle.model.links import NodeName
from rekindle.model.ranks import Ranks


class Op(IntEnum):
    """A check of a stress test. The value is its number on the wire."""

    COMPUTE = 0
    MESSAGES = 1
    MEMORY = 2
    """Supported only by Rekindle's training side."""


class Code(StrEnum):
    """Result code of one check of one rank, as the contract defines it."""

    OK = "0"
    NOT_RUN = "1"
    FAULT = "2"
    TIMED_OUT = "3"
    VOLTAGE = "4"
    """The device's voltage could not be restored."""


class StressRequest(Value):
    """Request of a stress test: checks by node."""

    nodes: dict[NodeName, tuple[int, ...]] = {}
    """Numbers of checks, by node name."""

    all_nodes: tuple[int, ...] = ()
    """Numbers of checks for all nodes of the job. If not empty, `nodes` is ignored."""


class RankOps(Value):
    """Checks that some ranks are to run."""

    ops: tuple[int, ...]
    ranks: Ranks


class StressTargets(Value):
    """Checks that were requested, by rank."""

    asked: tuple[RankOps, ...] = ()
    problem: Text = ""
    """Description of what in the request does not fit the job. Empty: all of it fits."""


class OpResult(Value):
    code: Note = ""
    """Result code. A code that is not in `Code` was not understood and is kept as it was received."""

    result: Note = ""
    """Measured values, as one line of text."""


QUOTED = 12
"""Bytes that each result text takes in a payload in addition to the text: its rank and quotes."""

ResultOf = Mapping[str, OpResult]
"""Results of one rank, by the name of the check: `aic`, `hccs`, `memory`."""

MOST_TEXT = 48 * 1024
"""Maximum number of bytes of all result texts in a payload. Beyond it, texts of successful checks are dropped first."""

MOST_CHECKS = 3
"""Maximum number of checks whose results are kept. Each takes up to 50 kB for the ranks of a large job."""

MOST_TESTED_NODES = 128
"""Maximum number of nodes that a request names one by one. Source: ours; all of them are in the state of the job's workflow."""

MOST_ROWS = 24 * 1024
"""Maximum number of bytes of the table in a verdict, in which faults come first."""

MOST_ISOLATED = 64
"""Maximum number of nodes that one stress test isolates. If it finds more, the cause is probably another, and a person has to
look."""


class CheckResults(Value):
    """Results of one check for all ranks. 10,000 ranks with the same code are a few characters."""

    name: Note = ""
    codes: dict[str, Ranks] = {}
    texts: dict[int, Note] = Field(default={})
    """Result texts by rank, as many as fit."""


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
    """Returns results by rank as one payload."""
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
    """Row of the table of results that is shown to people."""

    node: str = ""
    device: str = ""
    rank: int = 0
    check: Note = ""
    code: Note = ""
    result: Note = ""


class Findings(Value):
    """Evaluation of a stress test for the job's nodes and ranks."""

    isolate: tuple[str, ...] = ()
    """Names of nodes with a fault, which are to be isolated."""

    not_isolated: dict[str, Note] = {}
    """Nodes that could not be isolated, with the reason."""

    faulty: Ranks = ()
    """All ranks on nodes with a fault, and ranks whose checks timed out. Training cannot continue with their processes."""

    timed_out: Ranks = ()
    not_tested: Ranks = ()
    """Ranks with at least one check that was not run or has no result. This is not a fault."""

    @property
    def sound(self) -> bool:
        """True if training can continue unchanged."""
        return not self.faulty


class Tested(Value):
    """Result of a stress test, as part of its verdict."""

    failed: Text = ""
    """Reason why there is no result, as the contract words it. Empty: there is one."""

    findings: Findings = Findings()
    rows: tuple[Row, ...] = ()
    """Rows of the table, as many as fit."""

    checks: int = 0
    """Number of rows of the whole table."""
