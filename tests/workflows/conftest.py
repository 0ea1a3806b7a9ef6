"""Fixtures of the tests of workflows."""

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from tests.support import harness
from workflows import training_job


@pytest.fixture
def unsandboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs workflows outside the sandbox, which would load the modules again that a test changes."""
    monkeypatch.setattr(harness, "RUNNER", UnsandboxedWorkflowRunner)


@pytest.fixture
def one_incident_a_run(unsandboxed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a job continue as new after each incident, as one with a long history does."""
    monkeypatch.setattr(training_job, "ROOM", 0)
