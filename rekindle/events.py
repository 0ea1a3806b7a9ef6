"""Reads events of Temporal's histories: for the picture of an incident, and for its trace. Pure."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from rekindle.ids import gateway_queue

History = Sequence[HistoryEvent]

GATEWAYS = gateway_queue("")

ENDS_OF_ACTIVITIES: Mapping["EventType.ValueType", str] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "timed out",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "cancelled",
}
"""Events that end an activity, and how it ended; empty: well."""

ENDS_OF_TIMERS: Mapping["EventType.ValueType", str] = {
    EventType.EVENT_TYPE_TIMER_FIRED: "time limit reached",
    EventType.EVENT_TYPE_TIMER_CANCELED: "",
}
"""Events that end a wait, and how it ended; empty: well."""


def fields(event: HistoryEvent) -> Any:
    """Returns the attributes of an event, which every kind of event has under a name of its own."""
    return getattr(event, event.WhichOneof("attributes") or "", None)


def at(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(UTC)


def summary(event: HistoryEvent) -> str:
    found = content(event.user_metadata.summary)
    return found if isinstance(found, str) else ""


def is_for_gateway(scheduled: HistoryEvent) -> bool:
    """Returns whether a gateway carries out this activity. All others are calls to the cluster."""
    return scheduled.activity_task_scheduled_event_attributes.task_queue.name.startswith(GATEWAYS)


def content(payload: Payload) -> object:
    """Returns the content of a payload. None: it is no JSON, as any client may send what it likes."""
    try:
        return json.loads(payload.data)
    except (ValueError, RecursionError):
        return None
