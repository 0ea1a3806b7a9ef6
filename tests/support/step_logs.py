"""Times of a job as the step logs of its ranks say them, to compare with its account."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rekindle.cli.demos.measure import read_steps
from rekindle.model.account import Bucket
from rekindle.model.picture import StepRecord

TOLERANCE = 0.001
"""Seconds for each stretch: ranks end a step within so much of each other."""

SAVES = "ranks save their state"
"""Phase of a recovery in which a last checkpoint is written, while training stands."""


@dataclass
class Times:
    """Times of a job in seconds."""

    trained: float
    """Time from the first start of a step to the last end of one, of each stretch, without steps that were done again."""
    again: float
    stood: float
    """Time between two stretches."""


@dataclass
class Logged(Times):
    """Times of a job as its step logs say them."""

    stretches: int


def logged(job: Path) -> Logged:
    """Reads stretches from the step logs: a rebuild has another generation, and a restart has other pods.

    The rank that ends last speaks for all. A step that it had not completed before is not done again, although others had.

    Args:
        job: directory of the job.
    """
    written, found = _checkpoints(job), _stretches(read_steps(job))
    stretches = sorted(found, key=lambda of_one: min(record.start for record in of_one))
    furthest, again, spans = Counter[int](), 0.0, []
    for of_one in stretches:
        last, first = max(of_one, key=lambda record: record.end), min(record.start for record in of_one)
        repeated = [one for one in of_one if one.rank == last.rank and one.step <= furthest[last.rank]]
        again += sum(one.end - one.start - written[one.rank, one.start] for one in repeated)
        again += min(one.start for one in repeated) - first if repeated else 0.0
        furthest |= Counter({one.rank: one.step for one in sorted(of_one, key=lambda one: one.step)})
        spans.append((first, last.end))
    whole = sum(ends - begins for begins, ends in spans)
    stood = spans[-1][1] - spans[0][0] - whole
    return Logged(trained=whole - again, again=again, stood=stood, stretches=len(spans))


def _stretches(records: Iterable[StepRecord]) -> list[list[StepRecord]]:
    found: dict[tuple[int, int], list[StepRecord]] = {}
    for _, own in groupby(sorted(records, key=lambda one: (one.rank, one.start)), key=lambda one: one.rank):
        restarts, before = 0, None
        for one in own:
            restarts += before is not None and before.pod_uid != one.pod_uid and before.generation >= one.generation
            found.setdefault((restarts, one.generation), []).append(one)
            before = one
    return list(found.values())


def _checkpoints(job: Path) -> dict[tuple[int, float], float]:
    """Returns the seconds of the checkpoint in each step, by the rank and the start of the step."""
    found = {}
    for path in (job / "steps").glob("rank-*.jsonl"):
        stretch, before = 0.0, 0.0
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # it is torn
                one = json.loads(line)
                before = before if one["began"] == stretch else 0.0
                found[one["rank"], one["start"]] = one["checkpoint"] - before
                stretch, before = one["began"], one["checkpoint"]
    return found


def counted(seconds: Mapping[str, float], saved: float) -> Times:
    """Returns the same times as an account says them.

    Args:
        seconds: what the account has in each bucket.
        saved: seconds of last checkpoints before a restart: training stands in them.
    """
    trained = seconds[Bucket.TRAINING] + seconds[Bucket.CHECKPOINT] - saved
    again = seconds[Bucket.AGAIN]
    return Times(trained, again, sum(seconds.values()) - trained - again - seconds[Bucket.START_UP])
