"""Statistics of the duration of a test run."""

from collections.abc import Iterable
from pathlib import PurePath

import pytest


def seconds_by_folder(reports: Iterable[pytest.TestReport]) -> dict[str, tuple[int, float]]:
    """Returns the number of tests of each folder, and the seconds of their set-up, call and tear-down; the longest first."""
    found: dict[str, tuple[int, float]] = {}
    for report in reports:
        folder = str(PurePath(report.nodeid.partition("::")[0]).parent)
        tests, seconds = found.get(folder, (0, 0.0))
        found[folder] = tests + (report.when == "call"), seconds + report.duration
    return dict(sorted(found.items(), key=lambda row: -row[1][1]))
