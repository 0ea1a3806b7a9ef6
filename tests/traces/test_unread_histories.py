"""Trace of an incident whose histories are not read: the note is repeated, and no note waits for a trace without end."""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import ChildWorkflowExecutionStartedEventAttributes, HistoryEvent
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities.incident_trace import TRIES, export_incident
from rekindle.ids import recovery_workflow
from rekindle.model.incident import Incident
from rekindle.model.job import SubHealthStrategy
from rekindle.model.mode import Mode, Outcome
from rekindle.model.state import JobState
from rekindle.model.verdict import Verdict
from tests.fakes.collector import Collector
from tests.support.harness import a_job

JOB = a_job()
MODE = recovery_workflow(JOB, 3, Mode.HOT_SWITCH)
AWAY = RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
DELETED = RPCError("deleted", RPCStatusCode.NOT_FOUND, b"")


def an_incident() -> Incident:
    return Incident(
        number=3,
        summary="node-1 is slow",
        started_at=datetime.now(UTC),
        seconds=2.0,
        verdict=Outcome.RECOVERED,
        ladder=(Verdict(mode=Mode.HOT_SWITCH, outcome=Outcome.RECOVERED, reason="moved"),),
        policy_after=SubHealthStrategy.HOT_SWITCH,
    )


def starts_a_mode() -> HistoryEvent:
    event = HistoryEvent(
        event_id=1,
        event_type=EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED,
        child_workflow_execution_started_event_attributes=ChildWorkflowExecutionStartedEventAttributes(
            workflow_execution=WorkflowExecution(workflow_id=MODE, run_id="run")
        ),
    )
    event.event_time.GetCurrentTime()
    return event


@dataclass
class Handle:
    """Workflow whose history is read."""

    id: str
    answers: dict[str, Exception | HistoryEvent]

    async def query(self, *_: object, **__: object) -> object:
        if error := self.answers.get("status"):
            assert isinstance(error, Exception)
            raise error
        return SimpleNamespace(state=JobState.of(JOB).with_(history=(an_incident(),)))

    async def fetch_history(self, **_: object) -> object:
        found = self.answers.get(self.id)
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(events=[found] if found else [])


@dataclass
class Histories:
    """Client of Temporal, as far as histories are read by it."""

    answers: dict[str, Exception | HistoryEvent]

    def get_workflow_handle(self, workflow: str, **_: object) -> Handle:
        return Handle(workflow, self.answers)


async def exported(answers: dict[str, Exception | HistoryEvent], attempt: int = 1) -> None:
    """Exports the trace of incident 3 in a try of the note."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=attempt, start_to_close_timeout=timedelta(seconds=5))
    client: Client = Histories(answers)  # type: ignore[assignment]
    await environment.run(export_incident, client, 3, asyncio.get_running_loop().time())


async def test_a_note_is_repeated_until_the_histories_are_read(traced: Collector) -> None:
    """A Temporal server that restarts at the end of an incident costs no trace. A server that never answers costs one."""
    with pytest.raises(ApplicationError, match="the histories of incident 3 were not read: away"):
        await exported({"status": AWAY})
    with pytest.raises(ApplicationError):
        await exported({"test": AWAY}, TRIES - 1)
    await exported({"status": AWAY}, TRIES)
    await exported({"status": DELETED})
    assert not traced.spans
    await exported({})
    assert [span.name for span in traced.spans] == ["incident", "conclusion"]


async def test_a_mode_whose_history_was_deleted_is_left_out(traced: Collector) -> None:
    """The rest of the incident is exported."""
    await exported({"test": starts_a_mode(), MODE: DELETED})
    assert {span.name for span in traced.spans} == {"incident", "conclusion"}
    with pytest.raises(ApplicationError):
        await exported({"test": starts_a_mode(), MODE: AWAY})


async def test_a_history_that_cannot_be_drawn_delays_no_note(traced: Collector, caplog: pytest.LogCaptureFixture) -> None:
    """An event of a newer server may say something that is impossible here, such as a time after all calendars."""
    await exported({"test": starts_a_mode(), MODE: HistoryEvent(event_id=1, event_time=Timestamp(seconds=10**12))})
    assert not traced.spans
    assert [record.message for record in caplog.records] == ["history not drawn"]
