"""Draws the spans of an incident from the histories of its workflows. Pure: from what is stored to spans.

A history has every activity, order and report with its times, whatever was killed meanwhile. So a trace that is drawn from it is
whole, and no span is made twice by a replay.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from rekindle.events import ENDS_OF_ACTIVITIES, ENDS_OF_TIMERS, History, at, content, fields, is_for_gateway, summary
from rekindle.ids import Updates, recovery_workflow
from rekindle.model.fault import TRAINING_SIDE, WATCHER, Fault
from rekindle.model.incident import Incident
from rekindle.model.job import Job
from rekindle.model.mode import Outcome
from rekindle.model.situation import Phase
from rekindle.model.verdict import Verdict
from rekindle.spans import Names, Place, Plain, Process, Span, activity_place, incident_place

NOTED = timedelta(milliseconds=10)
"""Shortest wait for a worker that has a span of its own. Each answer of a worker takes some milliseconds."""

JUDGED = timedelta(minutes=1)
"""Longest time in which a fault that counts begins an incident. One that was known for longer was ignored before, such as until
the policy was lifted. Its incident has not detected it."""

SEEN_BY = {WATCHER: Process.WATCHER, TRAINING_SIDE: Process.GATEWAY}
"""Processes that see faults, by the source of the fault; others come through the gateway too."""

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
WELL = (Outcome.RECOVERED, Outcome.IGNORED)

DEADLINE = "deadline of"
"""Beginning of the summary of a timer for a whole mode, in `workflows/child.py`."""

TERMINATED = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
)
"""Ends of a workflow at which its activities and timers may be open."""

ENDS_OF_TASKS = (
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
)


class IncidentSpans:
    """Spans of one incident."""

    def __init__(self, job: Job, incidents: Sequence[Incident], entity: History, recoveries: Mapping[str, History]) -> None:
        """Args:
        incidents: those of the job up to the one that is drawn, which is the last.
        entity: history of the run of the job's workflow in which the incident ran.
        recoveries: histories of its modes, by their workflow ids.
        """
        *before, incident = incidents
        self._job, self._incident, self._entity, self._recoveries = job, incident, entity, recoveries
        self._known_before = _end(before[-1]) if before else BEGINNING
        """End of the incident before. A fault that was seen earlier had to wait, and was not detected by this one."""
        place = incident_place(recovery_workflow(job, incident.number, incident.ladder[0].mode))
        assert place is not None
        self._root = place
        self._ended = _end(incident)

    def drawn(self) -> list[Span]:
        spans = [*self._detection(), *self._decided(), *self._of_the_entity()]
        began = min((span.began for span in spans), default=self._incident.started_at)
        return [self._whole(min(began, self._incident.started_at)), *spans]

    def _whole(self, began: datetime) -> Span:
        job, incident = self._job, self._incident
        about: dict[str, Plain] = {
            Names.JOB: job.name,
            Names.JOB_ID: job.id,
            Names.NAMESPACE: job.namespace,
            Names.INCIDENT: incident.number,
            Names.SECONDS: incident.seconds,
            Names.SUMMARY: incident.summary,
            Names.VERDICT: incident.verdict,
            Names.POLICY: incident.policy_after,
            Names.MODES: tuple(verdict.mode.value for verdict in incident.ladder),
            Names.REASON: incident.ladder[-1].reason,
        }
        error = "" if incident.verdict in WELL else incident.verdict
        return Span("incident", self._root, None, began, self._ended, about=about, error=error)

    def _detection(self) -> Iterator[Span]:
        """Yields a span for each fault, from the time at which it was seen to the beginning of the incident."""
        for number, fault in enumerate(self._incident.faults):
            if fault.seen_at and self._known_before < fault.seen_at <= self._incident.started_at and self._is_news(fault):
                process = SEEN_BY.get(fault.source, Process.GATEWAY)
                place, times = self._root.inner("detection", number), (fault.seen_at, self._incident.started_at)
                yield Span("detection", place, self._root, *times, process=process, about=_of_fault(fault))

    def _is_news(self, fault: Fault) -> bool:
        """Returns whether the incident began as soon as the fault counted."""
        settled = timedelta(seconds=fault.decided.settle if fault.decided else 0.0)
        return not fault.accepted_at or self._incident.started_at - fault.accepted_at <= settled + JUDGED

    def _decided(self) -> Iterator[Span]:
        """The modes, each with the decision before it."""
        free_at, why = self._incident.started_at, self._incident.summary
        for number, verdict in enumerate(self._incident.ladder):
            recovery = recovery_workflow(self._job, self._incident.number, verdict.mode)
            history, reason, why = self._recoveries.get(recovery, ()), why, verdict.reason
            if not history:  # it was not approved, or could not be started
                continue
            began, ended = at(history[0]), at(history[-1])
            about: dict[str, Plain] = {Names.MODE: verdict.mode, Names.REASON: reason, Names.APPROVED: verdict.approved}
            yield Span("decision", self._root.inner("decision", number), self._root, free_at, began, about=about)
            place = self._root.inner(recovery)
            yield self._of_mode(verdict, place, (began, ended), recovery)
            parents = _Parents(place, verdict.phases)
            yield from parents.phases()
            yield from self._of_history(history, parents)
            free_at = ended
        yield Span("conclusion", self._root.inner("conclusion"), self._root, free_at, self._ended, about={Names.REASON: why})

    def _of_mode(self, verdict: Verdict, place: Place, times: tuple[datetime, datetime], recovery: str) -> Span:
        about: dict[str, Plain] = {
            Names.MODE: verdict.mode,
            Names.VERDICT: verdict.outcome,
            Names.REASON: verdict.reason,
            Names.WORKFLOW: recovery,
            Names.POD_RANKS: tuple(str(moved.pod_rank) for moved in verdict.switched),
            Names.POD: tuple(moved.after.name for moved in verdict.switched),
            Names.NODE: tuple(moved.after.node for moved in verdict.switched),
        }
        if verdict.steps_lost is not None:
            about[Names.STEPS_LOST] = verdict.steps_lost
        error = "" if verdict.outcome in WELL else verdict.outcome
        return Span(verdict.mode, place, self._root, *times, about=about, error=error)

    # ---- events

    def _of_the_entity(self) -> Iterator[Span]:
        """Yields spans of the work of the job's workflow for the incident, outside its modes."""
        during = [event for event in self._entity if self._incident.started_at <= at(event) <= self._ended]
        yield from self._of_history(during, _Parents(self._root), is_entity=True)

    def _of_history(self, events: History, parents: "_Parents", *, is_entity: bool = False) -> Iterator[Span]:
        starts, written = {event.event_id: event for event in events}, _written(events)
        asked_at: datetime | None = None
        for event in events:
            if event.event_type in ENDS_OF_ACTIVITIES:
                if scheduled := starts.get(fields(event).scheduled_event_id):
                    yield from self._of_activity(parents, (scheduled, starts.get(fields(event).started_event_id), event))
                    is_written = _is_order(scheduled) and not ENDS_OF_ACTIVITIES[event.event_type]
                    asked_at = at(event) if is_written else asked_at
            elif event.event_type in ENDS_OF_TASKS:
                yield from self._of_task(parents, starts, (event, written.get(event.event_id, at(event))))
            elif event.event_type in ENDS_OF_TIMERS:
                yield from self._of_timer(parents, starts.get(fields(event).started_event_id), event)
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED and not is_entity:
                yield from self._of_report(parents, event, asked_at)
            elif event.event_type in TERMINATED:
                yield from self._of_left_open(parents, events, event)

    def _of_left_open(self, parents: "_Parents", events: History, end: HistoryEvent) -> Iterator[Span]:
        """Yields spans of what had not ended when the workflow of a mode was terminated. No event ends them."""
        ended = {fields(event).scheduled_event_id for event in events if event.event_type in ENDS_OF_ACTIVITIES}
        ended |= {fields(event).started_event_id for event in events if event.event_type in ENDS_OF_TIMERS}
        for event in events:
            if event.event_id in ended:
                continue
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                yield from self._of_activity(parents, (event, None, end))
            elif event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
                yield from self._of_timer(parents, event, end)

    def _of_activity(self, parents: "_Parents", events: tuple[HistoryEvent, HistoryEvent | None, HistoryEvent]) -> Iterator[Span]:
        scheduled, started, ended = events
        said, began, around = fields(scheduled), at(scheduled), parents.at(at(scheduled))
        process = Process.GATEWAY if is_for_gateway(scheduled) else Process.CONTROL
        place, name = activity_place(parents.mode, said.activity_id), summary(scheduled) or said.activity_type.name
        failure = getattr(fields(ended), "failure", None)
        about: dict[str, Plain] = {Names.ACTIVITY: said.activity_type.name, Names.REASON: failure.message if failure else ""}
        if started:
            about |= {Names.WORKER: fields(started).identity, Names.TRIES: fields(started).attempt}
            if at(started) - began > NOTED:
                yield Span("wait for a worker", place.inner("wait"), around, began, at(started), process, {Names.REASON: name})
                began = at(started)
        if _is_order(scheduled):
            order = _payload(said.input.payloads)
            about |= {Names.ORDER: str(order.get("name", "")), Names.ATTEMPT: str(order.get("uuid", ""))}
        error = ENDS_OF_ACTIVITIES.get(ended.event_type, "terminated")
        yield Span(name, place, around, began, at(ended), process, about, error)

    @staticmethod
    def _of_task(parents: "_Parents", starts: Mapping[int, HistoryEvent], end: tuple[HistoryEvent, datetime]) -> Iterator[Span]:
        """A task of a workflow that took long, such as one that a killed worker had begun.

        Args:
            end: event that ends it, and the time at which the server had written all that the worker decided.
        """
        ended, until = end
        said, first = fields(ended), min(starts)
        if (scheduled := starts.get(said.scheduled_event_id)) is None:
            return
        is_first = scheduled.event_id == first + 1
        began = at(starts[first]) if is_first else at(scheduled)
        if until - began > NOTED:
            place = parents.mode.inner("task", scheduled.event_id)
            well = ended.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
            about: dict[str, Plain] = {Names.WORKER: said.identity} if well else {}
            error = "" if well else "worker lost"
            yield Span("workflow task", place, parents.at(began), began, until, about=about, error=error)

    @staticmethod
    def _of_timer(parents: "_Parents", started: HistoryEvent | None, ended: HistoryEvent) -> Iterator[Span]:
        """A wait that has a limit, which the timer counts. The deadline of a whole mode is none."""
        if started and (name := summary(started)) and not name.startswith(DEADLINE) and at(ended) - at(started) > NOTED:
            place = parents.mode.inner("timer", started.event_id)
            yield Span(name, place, parents.at(at(started)), at(started), at(ended))

    def _of_report(self, parents: "_Parents", event: HistoryEvent, asked_at: datetime | None) -> Iterator[Span]:
        """The wait of a mode for a report of the training side, from its last order."""
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        if request.input.name == Updates.REPORT:
            report = _payload(request.input.args.payloads)
            began = asked_at or at(event)
            about: dict[str, Plain] = {Names.REPORT: str(report.get("kind", "")), Names.REASON: str(report.get("info", ""))}
            place = parents.mode.inner("report", event.event_id)
            name = f"training side answers: {report.get('kind', '')}"
            yield Span(name, place, parents.at(began), began, at(event), process=Process.GATEWAY, about=about)


class _Parents:
    """A mode, or the incident, with its phases by time."""

    def __init__(self, mode: Place, phases: Sequence[Phase] = ()) -> None:
        self.mode = mode
        self._phases = [
            (phase.at, mode.inner("phase", number), phase) for number, phase in enumerate(phases) if phase.at is not None
        ]

    def phases(self) -> Iterator[Span]:
        for began, place, phase in self._phases:
            error, ended = phase.note.partition(":")[0], began + timedelta(seconds=phase.seconds)
            yield Span(phase.name, place, self.mode, began, ended, about={Names.REASON: phase.note}, error=error)

    def at(self, time: datetime) -> Place:
        """Returns the place of the phase that ran at a time, or else of the mode."""
        last = next((one for one in reversed(self._phases) if one[0] <= time), None)
        return last[1] if last and time <= last[0] + timedelta(seconds=last[2].seconds) else self.mode


def modes_of(events: Iterable[HistoryEvent]) -> dict[str, str]:
    """Returns the run ids of the modes that a run of the job's workflow started, by their workflow ids."""
    started = [
        event.child_workflow_execution_started_event_attributes.workflow_execution
        for event in events
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED
    ]
    return {child.workflow_id: child.run_id for child in started}


def _of_fault(fault: Fault) -> dict[str, Plain]:
    return {
        Names.FAULT: fault.id,
        Names.FAULT_KIND: fault.kind,
        Names.FAULT_CODE: fault.code,
        Names.SOURCE: fault.source,
        Names.REASON: fault.message,
        Names.RULE: fault.decided.rule if fault.decided else "",
        Names.NODE: fault.node,
        Names.POD: fault.pod,
        Names.RANKS: tuple(str(rank) for rank in fault.ranks),
        Names.POD_RANKS: tuple(str(rank) for rank in fault.pod_ranks),
    }


def _end(incident: Incident) -> datetime:
    return incident.started_at + timedelta(seconds=incident.seconds)


def _written(events: History) -> dict[int, datetime]:
    """Returns for each completed task of a workflow when the server had written the last of its commands."""
    return {task: at(event) for event in events if (task := getattr(fields(event), "workflow_task_completed_event_id", 0))}


def _is_order(scheduled: HistoryEvent) -> bool:
    return scheduled.activity_task_scheduled_event_attributes.activity_type.name == "deliver_order"


def _payload(payloads: Sequence[Payload]) -> dict[str, object]:
    """Returns the first argument as it was written."""
    found = content(payloads[0]) if payloads else None
    return found if isinstance(found, dict) else {}
