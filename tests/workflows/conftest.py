"""Fixtures of the tests of workflows."""

import pytest

from workflows import training_job


@pytest.fixture
def one_incident_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a job continue as new after each incident, as one with a long history does."""
    monkeypatch.setattr(training_job, "ROOM", 0)
