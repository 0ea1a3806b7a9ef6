"""Series of single jobs: step, step time, and what the job's time was spent on, as its manager reported last.

They live with the job. They end with its training, or when no report has arrived for `SILENT`.
"""

import time
from collections.abc import Iterator

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rekindle.model.account import SILENT, Bucket, Counted

LABELS = ("namespace", "job")


class JobSeries(Collector):
    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], tuple[float, str, Counted]] = {}
        """Time of the last report, job id, and the account as of then, by namespace and name. A job that follows another one of
        its name replaces its series."""

    def count(self, job_id: str, counted: Counted) -> None:
        job, oldest = (counted.namespace, counted.name), time.monotonic() - SILENT
        self._jobs = {name: told for name, told in self._jobs.items() if told[0] > oldest}
        before = self._jobs.get(job)
        known = before[2].seconds if before and before[1] == job_id else {}
        if not counted.final:
            self._jobs[job] = time.monotonic(), job_id, counted.model_copy(update={"seconds": _highest(known, counted.seconds)})
        elif before and before[1] == job_id:
            del self._jobs[job]

    def collect(self) -> Iterator[Metric]:
        oldest = time.monotonic() - SILENT
        jobs = dict(self._jobs)  # another thread collects, and reports arrive meanwhile
        goodput = GaugeMetricFamily("rekindle_job_goodput_ratio", "Share of the job's time that was training.", labels=LABELS)
        spent = CounterMetricFamily("rekindle_job_seconds", "Time of the job by its use.", labels=(*LABELS, "bucket"))
        step = GaugeMetricFamily("rekindle_job_step", "Last completed step.", labels=LABELS)
        each = GaugeMetricFamily("rekindle_job_step_seconds", "Mean time of a step since training went on last.", labels=LABELS)
        for job, (told_at, _, counted) in jobs.items():
            if told_at <= oldest:
                continue
            goodput.add_metric(job, counted.goodput)
            step.add_metric(job, counted.step)
            each.add_metric(job, counted.step_seconds)
            for bucket, seconds in counted.seconds.items():
                spent.add_metric((*job, bucket.value), seconds)
        yield from (goodput, spent, step, each)


def _highest(known: dict[Bucket, float], told: dict[Bucket, float]) -> dict[Bucket, float]:
    """Returns the seconds without decreases. Reports come from different ranks, and a checkpoint takes each its own time."""
    return {bucket: max(known.get(bucket, 0.0), told.get(bucket, 0.0)) for bucket in known | told}


SERIES = JobSeries()
REGISTRY.register(SERIES)
