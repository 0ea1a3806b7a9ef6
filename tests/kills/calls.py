"""The proxies observe one recovery: each call that moves it on, numbered, and the call at which a process is killed."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import CommandType
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueResponse,
    PollWorkflowTaskQueueResponse,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
    RespondWorkflowTaskCompletedRequest,
    RespondWorkflowTaskCompletedResponse,
    UpdateWorkflowExecutionRequest,
)

from rekindle import ids
from tests.fakes.proxy import Dropped

POLL_WORKFLOW = "PollWorkflowTaskQueue"
POLL_ACTIVITY = "PollActivityTaskQueue"
DECIDED = "RespondWorkflowTaskCompleted"
DONE = "RespondActivityTaskCompleted"
FAILED = "RespondActivityTaskFailed"
UPDATE = "UpdateWorkflowExecution"

RECOVERIES = ("recovery", "second recovery")
"""Names of the recoveries of an incident, in their order."""

ENDED: dict[str, type[RespondActivityTaskCompletedRequest] | type[RespondActivityTaskFailedRequest]] = {
    DONE: RespondActivityTaskCompletedRequest,
    FAILED: RespondActivityTaskFailedRequest,
}
"""Calls by which an activity ends."""

TELLS, RETURNS = (
    CommandType.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION,
    CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
)
NAMED = {
    CommandType.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION: "starts the recovery",
    RETURNS: "ends with its result",
    TELLS: "tells its recovery",
    CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION: "continues as new",
}
"""Commands of a decision that are named."""


class Side(StrEnum):
    """The moment at which the caller or its peer dies."""

    BEFORE = "before the server took it"
    AFTER = "before its answer arrived"


@dataclass(frozen=True)
class Call:
    """The n-th call of a kind that moves this workflow on, counted from the fault."""

    caller: str
    method: str
    workflow: str
    """`job`, one of `RECOVERIES`, or `maintenance`."""
    number: int

    def __str__(self) -> str:
        return f"{self.caller} {self.method} {self.workflow} #{self.number}"


@dataclass(frozen=True)
class Point:
    call: Call
    side: Side


@dataclass
class Noted:
    """A call as it was observed."""

    call: Call
    words: str
    """Subject of the call: an order, an activity, commands, or an update."""
    started: int = 0
    """Event id of the start of the workflow task that it hands out or completes."""
    activity: str = ""
    """Id of the activity that it hands out or completes."""
    eager: tuple[str, ...] = ()
    """Ids of activities that its answer hands out."""
    inline: int = 0
    """Event id of the start of the workflow task that its answer hands out."""
    commands: set[CommandType.ValueType] = field(default_factory=set)
    """Types of the commands of a decision."""
    answered: bool = False


@dataclass
class Trap:
    """Kills at one call, once."""

    point: Point
    victims: tuple[str, ...]
    kill: Callable[[tuple[str, ...]], Awaitable[None]]
    words: str = ""
    """Subject of the call that sprang the trap."""
    fired: asyncio.Event = field(default_factory=asyncio.Event)
    back: dict[str, float] = field(default_factory=dict)
    """Seconds from the kill until a victim requested work again."""
    _killed_at: float = 0.0
    _killing: asyncio.Task[None] | None = None

    async def spring(self, noted: Noted, changed: asyncio.Condition) -> None:
        """Runs to its end even if the caller is among the victims and its call is cancelled."""
        self.words = noted.words
        self._killing = asyncio.ensure_future(self._kill(changed))
        await asyncio.shield(self._killing)

    async def _kill(self, changed: asyncio.Condition) -> None:
        await self.kill(self.victims)
        self._killed_at = time.monotonic()
        self.fired.set()
        async with changed:
            changed.notify_all()

    def note_poll(self, caller: str) -> None:
        if self.fired.is_set() and caller in self.victims:
            self.back.setdefault(caller, time.monotonic() - self._killed_at)


@dataclass
class _Task:
    workflow: str
    started: int = 0
    activity: str = ""


class Journal:
    """Watches the proxies for one job at a time."""

    def __init__(self) -> None:
        self.calls: list[Noted] = []
        self.changed = asyncio.Condition()
        self._job = self._name = ""
        self._trap: Trap | None = None
        self._numbers: Counter[tuple[str, str, str]] = Counter()
        self._tasks: dict[bytes, _Task] = {}
        self._summaries: dict[tuple[str, str], str] = {}
        self._recoveries: list[str] = []

    def begin(self, job_id: str, name: str, trap: Trap | None) -> None:
        """Begins to count the calls of this job."""
        self._job, self._name, self._trap = job_id, name, trap
        self.calls = []
        self._numbers.clear()
        self._tasks.clear()
        self._summaries.clear()
        self._recoveries.clear()

    def end(self) -> None:
        self._job, self._trap = "", None

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    def is_settled(self, what: str) -> bool:
        """Returns whether the end of this activity, or this update of the job, is in the history and was processed, or a process
        was killed. The job passes an update on to its recovery."""
        if self._trap and self._trap.fired.is_set():
            return True
        methods = (DONE, UPDATE)
        begun = next((i for i, noted in enumerate(self.calls) if noted.call.method in methods and noted.words == what), None)
        if begun is None:
            return False
        return self._is_decided(begun, RECOVERIES) and (self.calls[begun].call.method == DONE or self._has_told())

    def _has_told(self) -> bool:
        """Returns whether the job knows that its recovery has received all that it told it, or a process was killed."""
        if self._trap and self._trap.fired.is_set():
            return True
        told = [i for i, noted in enumerate(self.calls) if TELLS in noted.commands and noted.call.workflow == "job"]
        return not told or self._is_decided(told[-1] + 1, ("job",))

    def _is_decided(self, begun: int, workflows: tuple[str, ...]) -> bool:
        """Returns whether a workflow has decided since that call."""
        decided = (noted for noted in self.calls[begun:] if noted.answered and noted.call.method == DECIDED)
        return any(noted.call.workflow in workflows for noted in decided)

    # ---- the proxies' side

    async def before(self, caller: str, method: str, request: bytes) -> Noted | None:
        if self._trap and method in (POLL_WORKFLOW, POLL_ACTIVITY):
            self._trap.note_poll(caller)
        noted = self._read_request(caller, method, request) if self._job else None
        if noted:
            if RETURNS in noted.commands and noted.call.workflow in RECOVERIES:
                await self.until(self._has_told)  # otherwise both are one task of the job, or two
            await self._meet(noted, Side.BEFORE)
        return noted

    async def after(self, caller: str, method: str, noted: object, response: bytes) -> None:
        if not self._job:
            return
        if noted is None:
            noted = self._read_response(caller, method, response)
        if isinstance(noted, Noted):
            if method == DECIDED:
                self._read_decision_answer(noted, RespondWorkflowTaskCompletedResponse.FromString(response))
            await self._meet(noted, Side.AFTER)
            noted.answered = True
            async with self.changed:
                self.changed.notify_all()

    async def _meet(self, noted: Noted, side: Side) -> None:
        trap = self._trap
        if trap is None or trap.words or trap.point != Point(noted.call, side):
            return
        await trap.spring(noted, self.changed)
        if side is Side.BEFORE and noted.call.caller in trap.victims:
            raise Dropped

    # ---- what calls are about

    def _note(self, caller: str, method: str, workflow: str, words: str) -> Noted:
        key = (caller, method, workflow)
        self._numbers[key] += 1
        noted = Noted(Call(caller, method, workflow, self._numbers[key]), words)
        self.calls.append(noted)
        return noted

    def _workflow(self, workflow_id: str) -> str:
        if workflow_id == ids.job_workflow(self._job):
            return "job"
        of_it = f"default.{self._name}/"
        if workflow_id.startswith(f"{ids.LINK_FAILOVER}{of_it}"):
            return "maintenance"
        return self._recovery(workflow_id) if workflow_id.startswith(f"recovery/{of_it}") else ""

    def _recovery(self, workflow_id: str) -> str:
        """Returns the name of a recovery. One beyond those of the undisturbed run has none, and is not observed."""
        if workflow_id not in self._recoveries:
            self._recoveries.append(workflow_id)
        return next((name for name, known in zip(RECOVERIES, self._recoveries, strict=False) if known == workflow_id), "")

    def _read_request(self, caller: str, method: str, request: bytes) -> Noted | None:
        if method == DECIDED:
            return self._decision(caller, RespondWorkflowTaskCompletedRequest.FromString(request))
        if method in ENDED:
            return self._ended(caller, method, ENDED[method].FromString(request).task_token)
        if method == UPDATE:
            update = UpdateWorkflowExecutionRequest.FromString(request)
            workflow = self._workflow(update.workflow_execution.workflow_id)
            return self._note(caller, method, workflow, _update_words(update)) if workflow else None
        return None

    def _ended(self, caller: str, method: str, token: bytes) -> Noted | None:
        if (task := self._tasks.get(token)) is None:
            return None
        noted = self._note(caller, method, task.workflow, self._summary(task))
        noted.activity = task.activity
        return noted

    def _decision(self, caller: str, request: RespondWorkflowTaskCompletedRequest) -> Noted | None:
        task = self._tasks.get(request.task_token)
        if task is None:
            return None
        words = ["takes the update"] if request.messages else []
        for command in request.commands:
            scheduled = command.schedule_activity_task_command_attributes
            if scheduled.activity_id:
                self._summaries[task.workflow, scheduled.activity_id] = self._roles(_text(command.user_metadata))
                words.append(f"schedules: {self._summaries[task.workflow, scheduled.activity_id]}")
            elif command.command_type in NAMED:
                words.append(NAMED[command.command_type])
        noted = self._note(caller, DECIDED, task.workflow, "; ".join(words) or "waits")
        noted.started = task.started
        noted.commands = {command.command_type for command in request.commands}
        return noted

    def _read_response(self, caller: str, method: str, response: bytes) -> Noted | None:
        if method == POLL_WORKFLOW:
            polled = PollWorkflowTaskQueueResponse.FromString(response)
            workflow = self._workflow(polled.workflow_execution.workflow_id)
            if not workflow or not polled.started_event_id or polled.HasField("query"):
                return None
            self._tasks[polled.task_token] = _Task(workflow, started=polled.started_event_id)
            noted = self._note(caller, method, workflow, "workflow task")
            noted.started = polled.started_event_id
            return noted
        if method == POLL_ACTIVITY:
            handed = PollActivityTaskQueueResponse.FromString(response)
            workflow = self._workflow(handed.workflow_execution.workflow_id)
            return self._handed_out(caller, workflow, handed) if workflow else None
        return None

    def _handed_out(self, caller: str, workflow: str, handed: PollActivityTaskQueueResponse) -> Noted:
        task = self._tasks[handed.task_token] = _Task(workflow, activity=handed.activity_id)
        noted = self._note(caller, POLL_ACTIVITY, workflow, self._summary(task))
        noted.activity = handed.activity_id
        return noted

    def _read_decision_answer(self, noted: Noted, answer: RespondWorkflowTaskCompletedResponse) -> None:
        for task in answer.activity_tasks:
            self._tasks[task.task_token] = _Task(noted.call.workflow, activity=task.activity_id)
        noted.eager = tuple(task.activity_id for task in answer.activity_tasks)
        if answer.workflow_task.task_token:
            noted.inline = answer.workflow_task.started_event_id
            self._tasks[answer.workflow_task.task_token] = _Task(noted.call.workflow, started=noted.inline)

    def _roles(self, words: str) -> str:
        """Returns the text with roles in place of the names of this job."""
        old = f"{self._name}-worker-1"
        told = words.replace(f"{old}-hot-0001", "the backup pod").replace(old, "the old pod")
        return told.replace(self._job, "the job")

    def _summary(self, task: _Task) -> str:
        return self._summaries.get((task.workflow, task.activity), "activity")


def _update_words(update: UpdateWorkflowExecutionRequest) -> str:
    name = update.request.input.name
    kind = _field(update.request.input.args, "kind")
    return f"{name} of {kind}" if kind else name


def _field(payloads: Payloads, name: str) -> str:
    for payload in payloads.payloads:
        value = json.loads(payload.data)
        if isinstance(value, dict):
            return str(value.get(name, ""))
    return ""


def _text(metadata: UserMetadata) -> str:
    return str(json.loads(metadata.summary.data)) if metadata.summary.data else ""
