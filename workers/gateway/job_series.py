"""Series of single jobs: step, step time, and what the job's time was spent on, as its manager reported last.

They live with the job. They end with its training, or when no report has arrived for `SILENT`.
"""

import time
from collections.abc import Iterator

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rekindle.model.account import Counted

SILENT = 900.0
"""Seconds without a report after which the series of a job end. A manager reports every five minutes."""

LABELS = ("namespace", "job")


class JobSeries(Collector):
    def __init__(self) -> None:
        self._jobs: dict[str, tuple[float, Counted]] = {}
        """Time of the last report, and the account as of then, by job id."""

    def count(self, job_id: str, counted: Counted) -> None:
        if counted.final:
            self._jobs.pop(job_id, None)
        else:
            self._jobs[job_id] = time.monotonic(), counted

    def collect(self) -> Iterator[Metric]:
        oldest = time.monotonic() - SILENT
        self._jobs = {job_id: told for job_id, told in self._jobs.items() if told[0] > oldest}
        goodput = GaugeMetricFamily("rekindle_job_goodput_ratio", "Share of the job's time that was training.", labels=LABELS)
        spent = CounterMetricFamily("rekindle_job_seconds", "Time of the job by its use.", labels=(*LABELS, "bucket"))
        step = GaugeMetricFamily("rekindle_job_step", "Last completed step.", labels=LABELS)
        each = GaugeMetricFamily("rekindle_job_step_seconds", "Mean time of a step since training went on last.", labels=LABELS)
        for _, counted in self._jobs.values():
            job = counted.namespace, counted.name
            goodput.add_metric(job, counted.goodput)
            step.add_metric(job, counted.step)
            each.add_metric(job, counted.step_seconds)
            for bucket, seconds in counted.seconds.items():
                spent.add_metric((*job, bucket.value), seconds)
        yield from (goodput, spent, step, each)


SERIES = JobSeries()
REGISTRY.register(SERIES)
