"""Adding a mode takes a row, a file and a word: what is tried when, and what follows, is read from the table."""

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.fault import FaultKind
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.policy.modes import ladder, mode_table
from tests.fakes.fake_mode import ROW, Nudge
from tests.support.harness import a_job, harness, node_fault
from workers.control import MODES


@pytest.fixture
def in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the fake mode in the place of process rescheduling."""
    rows = [ROW if row.mode is ROW.mode else row for row in mode_table.MODES]
    monkeypatch.setattr(mode_table, "MODES", tuple(rows))
    monkeypatch.setattr(ladder, "LADDER", tuple(row for row in rows if row not in mode_table.OPERATIONS))


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
