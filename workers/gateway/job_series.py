"""Series of single jobs: step, step time, and what the job's time was spent on, as its manager reported last.

They live with the job. They end with its training, or when no report has arrived for `SILENT`. Their text is made at each report:
made at a scrape for 10,000 jobs, it would hold up all streams for a second.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rekindle.model.account import SILENT, Bucket, Counted

LABELS = ("namespace", "job")
HEAD = b"\n# HELP "
"""Beginning of a family. Line ends in labels are escaped."""


class _Job(NamedTuple):
    """Job with its series."""

    id: str
    told_at: float
    seconds: dict[Bucket, float]
    lines: tuple[bytes, ...]
    """Lines of each family."""


class JobSeries:
    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], _Job] = {}
        """Jobs by namespace and name, which name the series: of two jobs of one name the series are those of the last report."""

    def count(self, job_id: str, counted: Counted) -> None:
        name = counted.namespace, counted.name
        before = self._jobs.get(name)
        known = before if before and before.id == job_id else None
        if not counted.final:
            seconds = _highest(known.seconds if known else {}, counted.seconds)
            lines = _lines(counted.model_copy(update={"seconds": seconds}))
            self._jobs[name] = _Job(job_id, time.monotonic(), seconds, tuple(lines))
        elif known:
            del self._jobs[name]

    def text(self) -> bytes:
        """Returns all series in Prometheus' text format."""
        oldest = time.monotonic() - SILENT
        self._jobs = {name: job for name, job in self._jobs.items() if job.told_at > oldest}
        lines = zip(*(job.lines for job in self._jobs.values()), strict=True) if self._jobs else ((),) * len(HEADS)
        return b"".join(head + b"".join(of_family) for head, of_family in zip(HEADS, lines, strict=True))


class _OfJob(Collector):
    def __init__(self, counted: Counted | None) -> None:
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        goodput = GaugeMetricFamily("rekindle_job_goodput_ratio", "Share of the job's time that was training.", labels=LABELS)
        spent = CounterMetricFamily("rekindle_job_seconds", "Time of the job by its use.", labels=(*LABELS, "bucket"))
        step = GaugeMetricFamily("rekindle_job_step", "Last completed step.", labels=LABELS)
        each = GaugeMetricFamily("rekindle_job_step_seconds", "Mean time of a step since training went on last.", labels=LABELS)
        if counted := self._counted:
            job = counted.namespace, counted.name
            goodput.add_metric(job, counted.goodput)
            step.add_metric(job, counted.step)
            each.add_metric(job, counted.step_seconds)
            for bucket, seconds in counted.seconds.items():
                spent.add_metric((*job, bucket.value), seconds)
        yield from (goodput, spent, step, each)


def _families(counted: Counted | None) -> list[bytes]:
    """Returns the text of each family, with its head of two lines."""
    text: bytes = generate_latest(_OfJob(counted))
    return [HEAD.lstrip() + family + b"\n" for family in (b"\n" + text.rstrip(b"\n")).split(HEAD)[1:]]


HEADS = _families(None)


def _lines(counted: Counted) -> Iterator[bytes]:
    for family, head in zip(_families(counted), HEADS, strict=True):
        yield family.removeprefix(head)


def _highest(known: dict[Bucket, float], told: dict[Bucket, float]) -> dict[Bucket, float]:
    """Returns the seconds without decreases. Reports come from different ranks, whose checkpoints took more or less time."""
    return {bucket: max(known.get(bucket, 0.0), told.get(bucket, 0.0)) for bucket in known | told}


SERIES = JobSeries()
