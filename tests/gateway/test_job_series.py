"""Series of jobs for Prometheus: one of each name, whatever arrives while another thread collects them."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily

from rekindle.model.account import SILENT, Bucket, Counted
from workers.gateway import job_series
from workers.gateway.job_series import JobSeries


def counted(name: str, seconds: float, *, final: bool = False) -> Counted:
    spent = {Bucket.TRAINING: seconds}
    return Counted(namespace="ns", name=name, seconds=spent, goodput=1.0, step=1, step_seconds=1.0, final=final)


def samples(series: JobSeries) -> Iterator[tuple[str, float]]:
    for metric in series.collect():
        for sample in metric.samples:
            if sample.name == "rekindle_job_seconds_total":
                yield sample.labels["job"], sample.value


def test_a_job_that_follows_another_one_of_its_name_takes_its_series() -> None:
    """Prometheus drops samples that have the same labels. The late last report of the former job ends no series."""
    series = JobSeries()
    series.count("former", counted("gpt", 100))
    series.count("present", counted("gpt", 5))
    assert list(samples(series)) == [("gpt", 5)]
    series.count("former", counted("gpt", 110, final=True))
    assert list(samples(series)) == [("gpt", 5)]
    series.count("present", counted("gpt", 9, final=True))
    assert list(samples(series)) == []


def test_seconds_of_a_bucket_never_decrease() -> None:
    """Prometheus would add the whole value once more. A later report may come from a rank whose checkpoint took less time."""
    series = JobSeries()
    for seconds in (5.0, 4.999, 6.0):
        series.count("one", counted("gpt", seconds))
        assert list(samples(series)) == [("gpt", max(seconds, 5.0))]
    series.count("another", counted("gpt", 1))
    assert list(samples(series)) == [("gpt", 1)]


def test_a_report_may_arrive_while_series_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of metrics has a thread of its own."""
    series = JobSeries()

    class Arriving(GaugeMetricFamily):
        def add_metric(self, *values: Any, **more: Any) -> None:
            series.count("two", counted("two", 2))
            super().add_metric(*values, **more)

    monkeypatch.setattr(job_series, "GaugeMetricFamily", Arriving)
    series.count("one", counted("one", 1))
    assert dict(samples(series)) == {"one": 1}
    assert dict(samples(series)) == {"one": 1, "two": 2}


def test_the_series_of_a_silent_job_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manager has died, or reports to another gateway. Nothing is kept of it after the next report of any job."""
    now, series = 1000.0, JobSeries()
    monkeypatch.setattr("workers.gateway.job_series.time.monotonic", lambda: now)
    series.count("one", counted("one", 1))
    now += SILENT
    assert list(samples(series)) == []
    series.count("two", counted("two", 2))
    assert [job for _, job in series._jobs] == ["two"]
