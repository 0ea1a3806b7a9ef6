"""Adding a mode takes a row, a file and a word: what is tried when, and what follows, is read from the table."""

import inspect
from dataclasses import replace

import pytest
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner

from rekindle.model.fault import FaultKind
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.policy.modes import ladder, mode_table
from tests.fakes.fake_mode import ROW, Nudge
from tests.support import harness as of_tests
from tests.support.harness import a_job, harness, node_fault
from workers.control import MODES
from workflows.mode import NOTHING
from workflows.non_interruptible import NonInterruptible


@pytest.fixture
def in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves a ladder of the fake mode and the last one."""
    monkeypatch.setattr(mode_table, "MODES", tuple(ROW if row.mode is ROW.mode else row for row in mode_table.MODES))
    monkeypatch.setattr(ladder, "LADDER", (ROW, mode_table.LAST))
    monkeypatch.setattr(of_tests, "RUNNER", UnsandboxedWorkflowRunner)  # the sandbox would import the table again


@pytest.mark.usefixtures("in_the_table")
def test_a_new_mode_is_planned_by_its_row() -> None:
    """It comes at its place, for the faults that it serves, unless its own reason speaks against it."""
    state = JobState.of(a_job(annotations={}))
    assert ladder.for_real_faults(state, (FaultKind.NODE,)).modes == (ROW.mode, Mode.JOB_RESCHEDULING)
    assert ROW.mode not in ladder.for_real_faults(state, (FaultKind.PROCESS,)).modes
    assert ROW.mode not in ladder.for_real_faults(JobState.of(a_job(annotations={}, pods=3)), (FaultKind.NODE,)).modes


@pytest.mark.usefixtures("in_the_table")
async def test_a_new_mode_runs_and_falls_to_the_next_one(temporal: WorkflowEnvironment) -> None:
    """Its workflow type is that of its row. It says how training is left, and policy names what follows."""
    async with harness(temporal, a_job(annotations={}), modes=(*MODES, Nudge)) as world, world.peer():
        await world.first_step()
        await world.fault(node_fault("node-1"))
        incident = await world.restarted()
        assert [(verdict.mode, verdict.outcome) for verdict in incident.ladder] == [
            (ROW.mode, Outcome.ESCALATE),
            (Mode.JOB_RESCHEDULING, Outcome.RECOVERED),
        ]
        assert incident.ladder[0].reason == "nudging did not help"
        types = [run.workflow_type async for run in world.client.list_workflows(f"RekindleJob = '{world.job.name}'")]
        assert ROW.workflow in types


def test_a_row_that_names_an_unknown_limit_is_refused_at_once() -> None:
    """The deadline is computed in the job's workflow, which would otherwise fail with the first fault."""
    with pytest.raises(ValueError, match=r"limits of mode process rescheduling: repare is no limit"):
        replace(ROW, limits=("repare",))


def test_a_mode_that_does_not_say_how_it_succeeds_cannot_be_created() -> None:
    """The error names the class and the missing function."""

    class Incomplete(NonInterruptible):
        MODE = ROW.mode

    assert inspect.isabstract(Incomplete)
    with pytest.raises(TypeError, match=r"abstract class Incomplete .* recovered"):
        Incomplete(NOTHING, None)  # type: ignore[abstract]
