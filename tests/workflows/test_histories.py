"""Events that a recovery writes into the histories: each costs the server time, which a burst of faults needs."""

import asyncio
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle.model.fault import Fault
from rekindle.model.mode import Mode, Outcome
from rekindle.policy.modes.mode_table import row_of
from tests.support.harness import a_job, node_fault, sub_health, training
from workflows import training_job

TASK = ["WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_COMPLETED"]
UPDATE = ["WORKFLOW_EXECUTION_UPDATE_ACCEPTED", "WORKFLOW_EXECUTION_UPDATE_COMPLETED"]


async def test_one_task_of_the_job_and_one_of_the_recovery_lie_before_the_first_order(temporal: WorkflowEnvironment) -> None:
    """Nothing else is stored between the fault and the order; the recovery's first phase is given at its start."""
    async with training(temporal, a_job()) as (world, _peer):
        first_run = world.client.get_workflow_handle(world.entity.id, run_id=(await world.entity.describe()).run_id)
        before = len(await _events(first_run))
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        job = await _names(first_run)
        until_the_child = job[before : job.index("START_CHILD_WORKFLOW_EXECUTION_INITIATED")]
        assert [name for name in until_the_child if name != "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES"] == [
            *TASK,
            *UPDATE,
            "TIMER_CANCELED",
        ]
        recovery = await _names(world.recovery)
        assert recovery[: recovery.index("ACTIVITY_TASK_SCHEDULED")] == ["WORKFLOW_EXECUTION_STARTED", *TASK]


async def test_a_wait_that_its_activity_limits_has_no_timer(temporal: WorkflowEnvironment) -> None:
    """The backup pod is waited for by activities that know how long; no timer stands beside them."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        history = await _events(world.recovery)
        scheduled = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history]
        runs = scheduled.index("await_running")
        timers = [event for event in history[: runs + 2] if event.HasField("timer_started_event_attributes")]
        assert not timers


@pytest.mark.parametrize(("mode", "fault"), [(Mode.HOT_SWITCH, sub_health()), (Mode.JOB_RESCHEDULING, node_fault("node-1"))])
async def test_a_recovery_begins_in_its_first_phase(temporal: WorkflowEnvironment, mode: Mode, fault: Fault) -> None:
    """The phase that the job gives at the start is the one with which the procedure begins, so that it is stored once."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(fault)
        recovery = await world.running()
        if mode is Mode.JOB_RESCHEDULING:
            await world.restarted()
        incident = await world.incident()
        assert incident.ladder[0].phases[0].name == row_of(mode).begins
        started, *later = await _events(recovery)
        fields = started.workflow_execution_started_event_attributes.search_attributes.indexed_fields
        assert fields["RekindlePhase"].data.decode().strip('"') == row_of(mode).begins
        upserts = [event.upsert_workflow_search_attributes_event_attributes for event in later]
        phases = [
            one.search_attributes.indexed_fields["RekindlePhase"].data for one in upserts if "RekindlePhase" in _fields(one)
        ]
        assert fields["RekindlePhase"].data not in phases


@pytest.mark.usefixtures("one_incident_a_run")
async def test_a_row_that_did_not_change_is_not_stored_again(temporal: WorkflowEnvironment) -> None:
    """A job continues as new after its incident, and its row is the one that it had."""
    async with training(temporal, a_job()) as (world, _peer):
        first = (await world.entity.describe()).run_id
        await world.fault(sub_health())
        await world.incident()
        async with asyncio.timeout(60):
            while (described := await world.entity.describe()).run_id == first:
                await asyncio.sleep(0.03)
        await world.status()
        assert "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES" not in await _names(world.entity)
        assert described.typed_search_attributes


async def test_incidents_share_a_run_until_it_is_long(temporal: WorkflowEnvironment) -> None:
    """A new run costs the server more than an incident's own events; the next one has the whole history of the job."""
    async with training(temporal, a_job(annotations={})) as (world, peer):
        first = await world.entity.describe()
        run = world.client.get_workflow_handle(first.id, run_id=first.run_id)
        lengths = [first.history_length]
        while (described := await run.describe()).status is WorkflowExecutionStatus.RUNNING:
            lengths.append(described.history_length)
            await peer.report_fault(3, kind="0")
            assert (await world.incident(len(lengths) - 1)).verdict is Outcome.RECOVERED
        assert lengths[3] < training_job.ROOM < described.history_length < 2 * training_job.ROOM
        assert (await world.status()).state.incidents == len(lengths) - 1


def _fields(upsert: Any) -> Any:
    return upsert.search_attributes.indexed_fields


async def _events(of: WorkflowHandle[Any, Any]) -> list[HistoryEvent]:
    return list((await of.fetch_history()).events)


async def _names(of: WorkflowHandle[Any, Any]) -> list[str]:
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in await _events(of)]
