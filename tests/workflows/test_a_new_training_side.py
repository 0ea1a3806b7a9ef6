"""A new training side takes one row of a table: policy and modes ask for facts, and never for the training side of a job."""

import re
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner

from rekindle.model.dialogue import Strategy
from rekindle.model.job import Capability
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.stress import Op
from rekindle.model.training_side import TrainingSide
from rekindle.policy.modes import eligibility, faulty_ranks, job_phase, requests
from rekindle.policy.operations import device_checks
from rekindle.policy.placement import standbys
from rekindle.policy.training_sides.table import ROWS
from tests.fakes.fake_side import FAKE
from tests.support import harness
from tests.support.harness import a_job, sub_health, training

ROOT = Path(__file__).parents[2]
CONTROL_PLANE = ("rekindle", "workflows", "activities", "workers")
NAMES = {
    "rekindle/model/training_side.py",
    "rekindle/policy/training_sides/mindio.py",
    "rekindle/policy/training_sides/table.py",
    "rekindle/settings.py",  # REKINDLE_MINDIO_SENDERS
    "activities/clusters/kubernetes/kinds/ascend_job.py",  # the kind whose usual training side it is
    *(
        f"rekindle/policy/parameters/{name}.py"
        for name in ("catalog", "contradictions", "environment", "job_file", "kinds/table", "pods")
    ),
}
"""Files that may name MindIO. Those about parameters name its variables and ports."""

ASKS = {
    "rekindle/model/job.py",  # the default of a job
    "rekindle/model/manifest.py",  # the manager and the capability that our own training side brings
    "rekindle/policy/training_sides/table.py",
    "activities/clusters/kubernetes/kind.py",
    "activities/clusters/kubernetes/kinds/ascend_job.py",
    "activities/clusters/kubernetes/kinds/training_job.py",
    "rekindle/policy/parameters/job_file.py",
    "rekindle/policy/parameters/kinds/table.py",
}
"""Files that may name one training side: those that read manifests and describe kinds of jobs."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the fake side the training side of all jobs of this test."""
    monkeypatch.setitem(ROWS, TrainingSide.REKINDLE, FAKE)
    monkeypatch.setattr(harness, "RUNNER", UnsandboxedWorkflowRunner)  # the sandbox would import the rows again


@pytest.mark.usefixtures("fake")
def test_policy_follows_the_facts_of_a_new_training_side() -> None:
    """Strategies, checks, phases, operations, tracing and standbys are those of its row."""
    job = a_job(capabilities=(), annotations={}, standbys=1)
    state = JobState.of(job)
    assert faulty_ranks.allows(job, Strategy.RETRY)
    assert not faulty_ranks.allows(job, Strategy.RECOVER)
    assert "the fake side cannot switch pod rank 1" in eligibility.never(job, 1)
    assert not eligibility.never(a_job(capabilities=(Capability.REPLACE_RANK_0,)), 1)
    assert eligibility.readiness(state).completed_a_step
    assert job_phase.phase(state, None) == job_phase.STARTING
    assert device_checks.accepted(job) == (Op.MEMORY,)
    assert requests.trace_problem(state) == ""
    assert standbys.problem(job) == "the fake side has no standbys"


@pytest.mark.usefixtures("fake")
async def test_a_hot_switch_follows_the_facts_of_a_new_training_side(temporal: WorkflowEnvironment) -> None:
    """The old pod is deleted first, and a report that is repeated is received once."""
    async with training(temporal, a_job(capabilities=(Capability.REPLACE_RANK_0,))) as (world, _peer):
        await world.fault(sub_health())
        (verdict,) = (await world.incident()).ladder
        assert (verdict.mode, verdict.outcome) == (Mode.HOT_SWITCH, Outcome.RECOVERED), verdict.reason
        names = [phase.name for phase in verdict.phases]
        assert names.index("old pod is deleted") < names.index("training resumes")


def test_only_the_training_sides_name_mindio() -> None:
    """Other files ask for a fact of a row, whose name says what it means."""
    assert _files_with(r"(?i)mindio") == NAMES


def test_only_kinds_of_jobs_name_one_training_side() -> None:
    """A question for one training side in a procedure would be a fact that its row lacks."""
    assert _files_with(r"TrainingSide\.[A-Z]") == ASKS


def _files_with(pattern: str) -> set[str]:
    files = [file for folder in CONTROL_PLANE for file in (ROOT / folder).rglob("*.py")]
    return {str(file.relative_to(ROOT)) for file in files if re.search(pattern, file.read_text())}
