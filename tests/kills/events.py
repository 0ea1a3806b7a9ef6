"""The history of an undisturbed recovery, and for each of its events the call at which a kill meets it."""

from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from tests.kills.calls import DECIDED, DONE, ENDED, FAILED, POLL_ACTIVITY, POLL_WORKFLOW, UPDATE, Noted, Point, Side


@dataclass(frozen=True)
class Happened:
    """One event of a history."""

    workflow: str
    id: int
    name: str


@dataclass(frozen=True)
class Place:
    """A point at which something is killed, and the events that it meets."""

    point: Point
    words: str
    events: tuple[Happened, ...]
    """Events that the call wrote, or hands out; none: the kill is between events."""

    earlier: int
    """The last event before it."""


def happened(workflow: str, history: Sequence[HistoryEvent], first: int = 0) -> list[Happened]:
    return [Happened(workflow, event.event_id, _name(event)) for event in history if event.event_id > first]


def places(workflow: str, history: Sequence[HistoryEvent], calls: Sequence[Noted], first: int = 0) -> list[Place]:
    """Every point of one workflow's calls, in the order of the calls; together they meet every event after `first`."""
    mine = [noted for noted in calls if noted.call.workflow == workflow]
    met: dict[int, list[Happened]] = {}
    causes = _causes(history, mine)
    for event in history:
        if event.event_id > first:
            cause = causes.get(event.event_id)
            assert cause is not None, f"no call belongs to event {event.event_id} {_name(event)} of {workflow}"
            met.setdefault(id(cause), []).append(Happened(workflow, event.event_id, _name(event)))
    found = []
    earlier = first
    for noted in mine:
        if noted.call.method in (DECIDED, *ENDED, UPDATE):
            found.append(Place(Point(noted.call, Side.BEFORE), noted.words, (), earlier))
        events = tuple(met.get(id(noted), ()))
        found.append(Place(Point(noted.call, Side.AFTER), noted.words, events, earlier))
        earlier = events[-1].id if events else earlier
    return found


def _causes(history: Sequence[HistoryEvent], calls: Sequence[Noted]) -> dict[int, Noted]:
    """Returns the call that wrote each event, or with which it first left the server."""
    handed = {n.started: n for n in calls if n.call.method == POLL_WORKFLOW}
    handed |= {n.inline: n for n in calls if n.inline}
    decided = {n.started: n for n in calls if n.call.method == DECIDED}
    done = {(n.call.method, n.activity): n for n in calls if n.call.method in ENDED}
    begun = {activity: n for n in calls for activity in n.eager} | {
        n.activity: n for n in calls if n.call.method == POLL_ACTIVITY
    }
    activities = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_id
        for event in history
        if event.HasField("activity_task_scheduled_event_attributes")
    }
    found: dict[int, Noted | None] = {}
    last: Noted | None = None
    for event in history:
        match event.WhichOneof("attributes"):
            case "workflow_task_completed_event_attributes":
                last = decided.get(event.workflow_task_completed_event_attributes.started_event_id)
            case "activity_task_started_event_attributes":
                last = begun.get(activities[event.activity_task_started_event_attributes.scheduled_event_id])
            case "activity_task_completed_event_attributes":
                last = done.get((DONE, activities[event.activity_task_completed_event_attributes.scheduled_event_id]))
            case "activity_task_failed_event_attributes":
                last = done.get((FAILED, activities[event.activity_task_failed_event_attributes.scheduled_event_id]))
            case kind if kind in BY_THE_SERVER:
                started = next((e.event_id for e in history if e.event_id >= event.event_id and _starts(e)), 0)
                last = handed.get(started)
        found[event.event_id] = last
    return {event: cause for event, cause in found.items() if cause}


BY_THE_SERVER = (
    "workflow_execution_started_event_attributes",
    "workflow_execution_signaled_event_attributes",
    "workflow_task_scheduled_event_attributes",
    "workflow_task_started_event_attributes",
    "external_workflow_execution_signaled_event_attributes",
    "child_workflow_execution_started_event_attributes",
    "child_workflow_execution_completed_event_attributes",
    "timer_fired_event_attributes",
)
"""Events that no call wrote: a kill meets them when the workflow task that delivers them is handed out."""


def _starts(event: HistoryEvent) -> bool:
    return event.HasField("workflow_task_started_event_attributes")


def _name(event: HistoryEvent) -> str:
    return EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").title().replace("_", "")
