"""Series of single jobs in Prometheus' text format."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rekindle.model.account import SILENT, Bucket, Counted
from workers.gateway import job_series
from workers.gateway.job_series import JobSeries


def counted(name: str, step: int = 3, *, final: bool = False, seconds: float = 5.0) -> Counted:
    spent = {Bucket.TRAINING: seconds}
    return Counted(namespace="default", name=name, seconds=spent, goodput=0.5, step=step, step_seconds=1.0, final=final)


def steps(series: JobSeries) -> list[tuple[str, float]]:
    """Returns the step of each job."""
    families = {family.name: family for family in text_string_to_metric_families(series.text().decode())}
    assert families.keys() == {
        "rekindle_job_goodput_ratio",
        "rekindle_job_seconds",
        "rekindle_job_step",
        "rekindle_job_step_seconds",
    }
    return [(sample.labels["job"], sample.value) for sample in families["rekindle_job_step"].samples]


def trained(series: JobSeries) -> list[tuple[str, float]]:
    """Returns the seconds of training of each job."""
    families = {family.name: family for family in text_string_to_metric_families(series.text().decode())}
    return [(sample.labels["job"], sample.value) for sample in families["rekindle_job_seconds"].samples]


def test_a_job_that_is_made_again_has_one_series() -> None:
    """A job is deleted and made again under its name. Prometheus takes no series twice."""
    series = JobSeries()
    series.count("old", counted("gpt", 100))
    series.count("new", counted("gpt", 1))
    assert steps(series) == [("gpt", 1)]
    series.count("old", counted("gpt", 100, final=True))
    assert steps(series) == [("gpt", 1)], "the end of the old one is not that of the new one"
    series.count("new", counted("gpt", 2, final=True))
    assert steps(series) == []


def test_names_cannot_break_the_format() -> None:
    """Quotes, line ends and the words of the format itself stay in the label."""
    hostile = 'a"} 1\n# HELP rekindle_job_step '
    series = JobSeries()
    series.count("id", counted(hostile))
    series.count("other", counted("gpt"))
    assert steps(series) == [(hostile, 3), ("gpt", 3)]


def test_series_end_without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager reports every five minutes. One that is silent for a quarter of an hour is gone."""
    series, now = JobSeries(), time.monotonic()
    series.count("id", counted("gpt"))
    monkeypatch.setattr(time, "monotonic", lambda: now + SILENT + 1)
    assert steps(series) == []


def test_seconds_of_a_bucket_never_decrease() -> None:
    """Prometheus would add the whole value once more. A later report may come from a rank whose checkpoint took less time."""
    series = JobSeries()
    for seconds in (5.0, 4.999, 6.0):
        series.count("one", counted("gpt", seconds=seconds))
        assert trained(series) == [("gpt", max(seconds, 5.0))]
    series.count("another", counted("gpt", seconds=1))
    assert trained(series) == [("gpt", 1)]


def test_a_scrape_formats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and probes wait for it. Its text is made at the reports, as that of 10,000 jobs takes a second."""
    series = JobSeries()
    for number in range(10_000):
        series.count(f"{number}", counted(f"gpt-{number}"))
    monkeypatch.setattr(job_series, "generate_latest", None)
    assert series.text().count(b"\n") == 40_008
