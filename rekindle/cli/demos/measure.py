"""Computes what a run did from the output of its ranks: step logs and final parameters. Pure except for reading the files."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from rekindle.model.base import Value
from rekindle.model.incident import Incident
from rekindle.model.picture import StepRecord


class Place(Value):
    pid: int
    pod: str
    node: str


class SwitchedRank(Value):
    rank: int
    before: Place
    after: Place


class Size(Value):
    """Time in which a job trained with the same number of replicas."""

    since: float
    """Start of its first step, in seconds since the first step of the job."""
    until: float
    """End of its last step."""
    replicas: int


BEFORE = 1.0
"""Seconds before a fault in which steps still count. The pause begins after one of them."""


AFTER = 0.5
"""Seconds after the end of an incident in which the record of the first new step is written."""


def read_steps(directory: Path, since: float = -inf, until: float = inf) -> list[StepRecord]:
    """Returns the records below `steps/` of a job's directory, by rank and time.

    The directory belongs to the job. Files that cannot be read are left out, and lines that are no records, such as one that is
    being written.

    Args:
        since: steps that ended before are left out but the last one of a rank, in seconds since the epoch.
        until: steps that began later are left out but the first one of a rank.
    """
    found = []
    for path in sorted((directory / "steps").glob("rank-*.jsonl")):
        with suppress(OSError):
            found += _around(_records(path.read_bytes().splitlines()), since, until)
    return found


def _records(lines: Iterable[bytes]) -> Iterator[StepRecord]:
    for line in lines:
        with suppress(ValidationError):
            yield StepRecord.model_validate_json(line)


def _around(records: Iterable[StepRecord], since: float, until: float) -> list[StepRecord]:
    """Returns the records of this time, with the one before and the one after it: a rank may have stood for longer."""
    before: list[StepRecord] = []
    during: list[StepRecord] = []
    for record in records:
        if record.end < since:
            before = [record]
        elif record.start > until:
            return [*before, *during, record]
        else:
            during.append(record)
    return [*before, *during]


def last_step(records: Iterable[StepRecord]) -> int:
    """Returns the last step that any rank has completed; 0: none."""
    return max((record.step for record in records), default=0)


def gaps(records: Sequence[StepRecord]) -> list[float]:
    """Returns the seconds between consecutive completed steps. A step is completed when all ranks have completed it."""
    completed: dict[int, float] = {}
    for record in records:
        completed[record.step] = max(completed.get(record.step, 0.0), record.end)
    times = sorted(completed.values())
    return [later - earlier for earlier, later in pairwise(times)]


def pause_seconds(records: Sequence[StepRecord], since: float) -> float:
    """Returns the largest gap between consecutive completed steps, minus the median gap before the fault, in seconds.

    Args:
        since: when the fault was seen, seconds since the epoch. What was slow before it (the first checkpoint) is no pause.
    """
    around = gaps([record for record in records if record.end >= since - BEFORE])
    usual = gaps([record for record in records if record.end <= since]) or around
    return max(around) - median(usual) if around else 0.0


def pause_of(records: Sequence[StepRecord], incident: Incident) -> float:
    """Returns `pause_seconds` of an incident that has ended, regardless of later events."""
    begun = incident.started_at.timestamp()
    return pause_seconds([record for record in records if record.end <= begun + incident.seconds + AFTER], begun)


def steps_lost(records: Sequence[StepRecord]) -> int:
    """Returns the number of repeated steps: executed steps of a rank minus its distinct ones, at the rank with the most."""
    by_rank: dict[int, list[int]] = {}
    for record in records:
        by_rank.setdefault(record.rank, []).append(record.step)
    return max((len(steps) - len(set(steps)) for steps in by_rank.values()), default=0)


def first_step_since(records: Iterable[StepRecord], moment: float, ranks: int) -> float:
    """Returns when all ranks had completed the first step that each of them began after this time, in seconds since the epoch."""
    ends: dict[int, dict[int, float]] = {}
    for record in records:
        if record.start > moment:
            ends.setdefault(record.step, {}).setdefault(record.rank, record.end)
    return min(max(by_rank.values()) for by_rank in ends.values() if len(by_rank) == ranks)


def replicas(records: Sequence[StepRecord], ranks_per_replica: int) -> list[Size]:
    """Returns the sizes of a job over time. Each change of the size makes a new generation."""
    by_generation: dict[int, list[StepRecord]] = {}
    for record in records:
        by_generation.setdefault(record.generation, []).append(record)
    zero = min((record.start for record in records), default=0.0)
    found: list[Size] = []
    for _, of_one in sorted(by_generation.items()):
        since, until = min(one.start for one in of_one) - zero, max(one.end for one in of_one) - zero
        size = len({one.rank for one in of_one}) // ranks_per_replica
        if found and found[-1].replicas == size:
            found[-1] = found[-1].model_copy(update={"until": round(until, 4)})
        else:
            found.append(Size(since=round(since, 4), until=round(until, 4), replicas=size))
    return found


def switched(records: Sequence[StepRecord]) -> list[SwitchedRank]:
    """Returns the ranks whose process changed, with their places at their first and their last step."""
    changed = []
    for rank in sorted({record.rank for record in records}):
        own = sorted((record for record in records if record.rank == rank), key=lambda record: record.end)
        if own[0].pid != own[-1].pid:
            changed.append(SwitchedRank(rank=rank, before=_place(own[0]), after=_place(own[-1])))
    return changed


def _place(record: StepRecord) -> Place:
    return Place(pid=record.pid, pod=record.pod, node=record.node)


def parameters_equal(one: Path, other: Path, ranks: int) -> bool:
    """Returns whether two runs ended with the same parameters, bit for bit, on every rank.

    A missing or empty file is a difference.
    """
    return all(_same(one / "final" / name, other / "final" / name) for name in (f"rank-{rank:05d}.bin" for rank in range(ranks)))


def _same(one: Path, other: Path) -> bool:
    if not (one.is_file() and other.is_file()):
        return False
    content = one.read_bytes()
    return bool(content) and content == other.read_bytes()
