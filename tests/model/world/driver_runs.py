"""Run of a workflow under the driver: real code, its history, and its replay when the worker was killed."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import temporalio.bridge.proto.workflow_activation.workflow_activation_pb2 as act
import temporalio.bridge.proto.workflow_commands.workflow_commands_pb2 as cmd
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info, ParentInfo

if TYPE_CHECKING:
    from tests.model.world.driver_activities import Activity

PAYLOADS, FAILURES = pydantic_data_converter.payload_converter, DefaultFailureConverter()


class Broken(AssertionError):
    """Workflow code failed its task, or its replay produced other commands."""


def proto_of(error: BaseException) -> Failure:
    failure = Failure()
    FAILURES.to_failure(error, PAYLOADS, failure)
    return failure


@dataclass(frozen=True)
class Answer:
    """Answer to an update. `kind` is empty if it was carried out; else the error's type, `not found`, `again`, `accepted
    last`."""

    kind: str = ""
    message: str = ""
    value: Payload | None = None


@dataclass
class Update:
    accepted: bool = False
    answer: Answer | None = None
    waiting: list[Callable[[Answer], None]] = field(default_factory=list)


@dataclass
class Run:
    id: str
    run_id: str
    definition: Any
    arguments: Sequence[Payload]
    began: datetime
    parent: "Run | None" = None
    seq: int = 0
    """Sequence number of the parent's command."""
    status: str = "running"
    ended: datetime | None = None
    result: Payload | None = None
    failure: Failure | None = None
    inbox: list[act.WorkflowActivationJob] = field(default_factory=list)
    due: bool = False
    """True if a workflow task is scheduled."""
    was_told_to_cancel: bool = False
    timers: dict[int, list[Any]] = field(default_factory=dict)
    activities: "dict[int, Activity]" = field(default_factory=dict)
    children: "dict[int, Run]" = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    _instance: WorkflowInstance | None = None
    _history: list[tuple[act.WorkflowActivation, list[bytes]]] = field(default_factory=list)
    _flags: set[int] = field(default_factory=set)

    @property
    def has_begun(self) -> bool:
        """True if the first task is done: before that the run answers no query."""
        return bool(self._history)

    def argument(self, kind: Any, place: int = 0) -> Any:
        return PAYLOADS.from_payloads([self.arguments[place]], [kind])[0]

    def task(self, now: datetime, long_history: int) -> list[cmd.WorkflowCommand]:
        """Passes all waiting jobs to the workflow, and returns its commands."""
        activation = self._activation(now, self.inbox)
        activation.continue_as_new_suggested = len(self._history) >= long_history
        self.inbox = []
        commands = self._activate(self._living(), activation)
        self._remember(activation, commands)
        return commands

    def query(self, now: datetime, name: str, kind: Any) -> Any:
        job = act.WorkflowActivationJob(query_workflow=act.QueryWorkflow(query_id="1", query_type=name))
        (command,) = self._activate(self._living(), self._activation(now, [job]))
        return PAYLOADS.from_payloads([command.respond_to_query.succeeded.response], [kind])[0]

    def evict(self) -> None:
        """Removes the run from the worker; the next task begins with a replay."""
        if self._instance:
            instance, self._instance = self._instance, None
            jobs = [act.WorkflowActivationJob(remove_from_cache=act.RemoveFromCache())]
            instance.activate(act.WorkflowActivation(run_id=self.run_id, jobs=jobs))

    def _activation(self, now: datetime, jobs: Sequence[act.WorkflowActivationJob]) -> act.WorkflowActivation:
        activation = act.WorkflowActivation(run_id=self.run_id, jobs=jobs)
        activation.timestamp.FromDatetime(now)
        return activation

    def _activate(self, instance: WorkflowInstance, activation: act.WorkflowActivation) -> list[cmd.WorkflowCommand]:
        completion = instance.activate(activation)
        if completion.HasField("failed"):
            raise Broken(f"{self.id}: {completion.failed.failure.message}\n{completion.failed.failure.stack_trace}")
        self._flags.update(completion.successful.used_internal_flags)
        return list(completion.successful.commands)

    def _remember(self, activation: act.WorkflowActivation, commands: list[cmd.WorkflowCommand]) -> None:
        """Stores an activation and its commands in the history, without updates that were rejected."""
        rejected = {c.update_response.protocol_instance_id for c in commands if c.update_response.HasField("rejected")}
        jobs = [job for job in activation.jobs if not (job.HasField("do_update") and job.do_update.id in rejected)]
        if jobs:
            kept = act.WorkflowActivation()
            kept.CopyFrom(activation)
            del kept.jobs[:]
            kept.jobs.extend(jobs)
            self._history.append((kept, _kept(commands)))

    def _living(self) -> WorkflowInstance:
        if self._instance is None:
            self._instance = _created(self._details())
            for recorded, commands in self._history:
                if _kept(self._activate(self._instance, self._replayed(recorded))) != commands:
                    raise Broken(f"{self.id} replays to other commands")
        return self._instance

    def _replayed(self, recorded: act.WorkflowActivation) -> act.WorkflowActivation:
        activation = act.WorkflowActivation()
        activation.CopyFrom(recorded)
        activation.is_replaying = True
        activation.available_internal_flags.extend(sorted(self._flags))
        for job in activation.jobs:
            if job.HasField("do_update"):
                job.do_update.run_validator = False
        return activation

    def _details(self) -> WorkflowInstanceDetails:
        parent = ParentInfo(namespace="default", run_id=self.parent.run_id, workflow_id=self.parent.id) if self.parent else None
        info = Info(
            attempt=1, continued_run_id=None, cron_schedule=None, execution_timeout=None, first_execution_run_id=self.run_id,
            headers={}, namespace="default", original_execution_run_id=self.run_id, parent=parent, root=None, priority=Priority(),
            raw_memo={}, retry_policy=None, run_id=self.run_id, run_timeout=None, search_attributes={}, start_time=self.began,
            task_queue="control", task_timeout=timedelta(seconds=2), typed_search_attributes=TypedSearchAttributes([]),
            workflow_id=self.id, workflow_start_time=self.began, workflow_type=self.definition.name,
        )  # fmt: skip
        return WorkflowInstanceDetails(
            payload_converter_factory=lambda: PAYLOADS, failure_converter_class=DefaultFailureConverter, interceptor_classes=[],
            defn=self.definition, info=info, randomness_seed=int(self.run_id), extern_functions={},
            disable_eager_activity_execution=False, worker_level_failure_exception_types=[], patch_activation_callback=None,
            last_completion_result=Payloads(), last_failure=None,
        )  # fmt: skip


def ended(run: Run, failure: Failure | None) -> act.WorkflowActivationJob:
    """Returns the job that informs a parent of the end of its child."""
    job = act.WorkflowActivationJob()
    resolved = job.resolve_child_workflow_execution
    resolved.seq = run.seq
    if failure is None:
        resolved.result.completed.result.CopyFrom(run.result or Payload())
        return job
    told = resolved.result.cancelled.failure if run.status == "cancelled" else resolved.result.failed.failure
    told.message = "Child Workflow execution failed"
    told.child_workflow_execution_failure_info.workflow_execution.workflow_id = run.id
    told.cause.CopyFrom(failure)
    return job


def _created(details: WorkflowInstanceDetails) -> WorkflowInstance:
    """Creates an instance. It asks for the running event loop meanwhile, though it does not use one."""
    asyncio._set_running_loop(asyncio.AbstractEventLoop())  # type: ignore[abstract]
    try:
        return UnsandboxedWorkflowRunner().create_instance(details)
    finally:
        asyncio._set_running_loop(None)


def _kept(commands: Iterable[cmd.WorkflowCommand]) -> list[bytes]:
    kept = [c for c in commands if not (c.HasField("update_response") and c.update_response.HasField("rejected"))]
    return [command.SerializeToString(deterministic=True) for command in kept]
