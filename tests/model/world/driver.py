"""Simulates Temporal: runs real workflow code over one virtual clock, without a server. For the model of the entity.

It answers the commands of workflows (timers, activities, children, signals, updates, continue-as-new) in an order that depends on
the seed alone. Events of one moment reach a run in one workflow task, as from a real server. Killing the worker discards every
instance: the next task of a run replays its history and compares the commands.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import temporalio.bridge.proto.workflow_activation.workflow_activation_pb2 as act
import temporalio.bridge.proto.workflow_commands.workflow_commands_pb2 as cmd
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.workflow import _Definition

from tests.model.world.driver_activities import Activity, seconds
from tests.model.world.driver_runs import PAYLOADS, Answer, Run, Update, ended, proto_of

START = datetime(2030, 1, 1, tzinfo=UTC)
ALREADY_EXISTS = 1
REPEATED = timedelta(seconds=3)
"""Time after which a client repeats an update whose answer was lost."""


class Driver:
    def __init__(self, workflows: Iterable[type], seed: int = 0, loss: float = 0.0) -> None:
        """Args:
        loss: probability that an activity or an answer is lost, before or after it was carried out.
        """
        self.definitions = {defn.name: defn for defn in map(_Definition.must_from_class, workflows)}
        self.random, self.loss = random.Random(seed), loss
        self.perform: Callable[[Activity, int], None] = lambda activity, attempt: None
        """Carries out an activity: it calls `complete` or `fail` of the activity, at once or later."""
        self.closed: Callable[[Run], None] = lambda run: None
        self.now = START
        self.runs: dict[str, Run] = {}
        self.long_history = 10_000
        """Number of workflow tasks after which continue-as-new is suggested to a run."""
        self._away = START
        self._agenda: list[list[Any]] = []
        self._numbers = itertools.count(1)

    # ---- the clock

    def after(self, seconds: float, work: Callable[[], None]) -> list[Any]:
        entry = [self.now + timedelta(seconds=seconds), next(self._numbers), work]
        heapq.heappush(self._agenda, entry)
        return entry

    def delay(self) -> float:
        return self.random.choice((0.0, 0.002, 0.005, 0.02))

    def happens(self) -> bool:
        return self.loss > 0 and self.random.random() < self.loss

    def step(self, until: datetime) -> bool:
        """Carries out the next event. Returns False if there is none until this moment."""
        if not self._agenda or self._agenda[0][0] > until:
            return False
        self.now, _, work = heapq.heappop(self._agenda)
        if work:
            work()
        return True

    # ---- what clients do

    def start(self, kind: str, workflow_id: str, argument: object, parent: Run | None = None, seq: int = 0) -> Run:
        arguments = argument if isinstance(argument, list) else PAYLOADS.to_payloads([argument])
        run = Run(workflow_id, str(next(self._numbers)), self.definitions[kind], arguments, self.now, parent, seq)
        self.runs[workflow_id] = run
        job = act.WorkflowActivationJob()
        init = job.initialize_workflow
        init.workflow_type, init.workflow_id, init.attempt = kind, workflow_id, 1
        init.arguments.extend(arguments)
        self.post(run, job)
        return run

    def running(self, workflow_id: str) -> Run | None:
        run = self.runs.get(workflow_id)
        return run if run and run.status == "running" else None

    def update(
        self, workflow_id: str, name: str, arguments: list[object], update_id: str, answered: Callable[[Answer], None]
    ) -> None:
        """Sends an update, and repeats it under the same id if its answer is lost."""
        if self.happens():
            self.update(workflow_id, name, arguments, update_id, lambda answer: None)
            self.after(REPEATED.total_seconds(), lambda: self.update(workflow_id, name, arguments, update_id, answered))
            return
        run = self.running(workflow_id)
        if run is None:
            self.after(0.001, lambda: answered(Answer("not found")))
            return
        known = run.updates.get(update_id)
        if known and known.answer:
            answered(known.answer)
            return
        run.updates.setdefault(update_id, Update()).waiting.append(answered)
        if known is None:
            job = act.WorkflowActivationJob()
            update = job.do_update
            update.id = update.protocol_instance_id = update_id
            update.name, update.run_validator = name, True
            update.input.extend(PAYLOADS.to_payloads(arguments))
            self.post(run, job)

    def cancel(self, workflow_id: str) -> None:
        """Requests cancellation of a workflow; as with the real server, repeated requests reach it once."""
        if (run := self.running(workflow_id)) and not run.was_told_to_cancel:
            run.was_told_to_cancel = True
            self.post(run, act.WorkflowActivationJob(cancel_workflow=act.CancelWorkflow()))

    def signal(self, workflow_id: str, name: str, *arguments: object) -> None:
        if run := self.running(workflow_id):
            job = act.WorkflowActivationJob()
            job.signal_workflow.signal_name = name
            job.signal_workflow.originating_event_id = next(self._numbers)
            job.signal_workflow.input.extend(PAYLOADS.to_payloads(arguments))
            self.post(run, job)

    def terminate(self, workflow_id: str) -> None:
        if run := self.running(workflow_id):
            self._close(run, "terminated", None, proto_of(TerminatedError("terminated")))

    def query(self, workflow_id: str, name: str, kind: Any) -> Any:
        return self.runs[workflow_id].query(self.now, name, kind)

    def kill_worker(self, seconds: float) -> None:
        """Kills the worker for some seconds: all instances are discarded, and tasks wait for the next worker."""
        for run in self.runs.values():
            run.evict()
        self._away = self.now + timedelta(seconds=seconds)

    # ---- workflow tasks

    def post(self, run: Run, job: act.WorkflowActivationJob) -> None:
        run.inbox.append(job)
        if not run.due:
            run.due = True
            self.after(self.delay(), lambda: self._task(run))

    def _task(self, run: Run) -> None:
        if self.now < self._away:
            self.after((self._away - self.now).total_seconds(), lambda: self._task(run))
            return
        run.due = False
        if run.status == "running":
            for command in run.task(self.now, self.long_history):
                kind = command.WhichOneof("variant")
                if kind and hasattr(self, f"_{kind}"):  # search attributes and memos are ignored
                    getattr(self, f"_{kind}")(run, getattr(command, kind))

    # ---- what workflows command

    def _start_timer(self, run: Run, command: cmd.StartTimer) -> None:
        job = act.WorkflowActivationJob(fire_timer=act.FireTimer(seq=command.seq))
        run.timers[command.seq] = self.after(seconds(command.start_to_fire_timeout), lambda: self.post(run, job))

    def _cancel_timer(self, run: Run, command: cmd.CancelTimer) -> None:
        run.timers.pop(command.seq)[2] = None
        run.inbox = [job for job in run.inbox if not (job.HasField("fire_timer") and job.fire_timer.seq == command.seq)]

    def _schedule_activity(self, run: Run, command: cmd.ScheduleActivity) -> None:
        run.activities[command.seq] = Activity(self, run, command)

    def _request_cancel_activity(self, run: Run, command: cmd.RequestCancelActivity) -> None:
        run.activities[command.seq].cancel()

    def _start_child_workflow_execution(self, run: Run, command: cmd.StartChildWorkflowExecution) -> None:
        job = act.WorkflowActivationJob()
        started = job.resolve_child_workflow_execution_start
        started.seq = command.seq
        if self.running(command.workflow_id):
            started.failed.workflow_id, started.failed.workflow_type = command.workflow_id, command.workflow_type
            started.failed.cause = ALREADY_EXISTS  # type: ignore[assignment]
        else:
            child = self.start(command.workflow_type, command.workflow_id, list(command.input), run, command.seq)
            run.children[command.seq] = child
            started.succeeded.run_id = child.run_id
        self.post(run, job)

    def _cancel_child_workflow_execution(self, run: Run, command: cmd.CancelChildWorkflowExecution) -> None:
        self.cancel(run.children[command.child_workflow_seq].id)

    def _signal_external_workflow_execution(self, run: Run, command: cmd.SignalExternalWorkflowExecution) -> None:
        wanted = command.workflow_execution
        target = self.running(command.child_workflow_id or wanted.workflow_id)
        job = act.WorkflowActivationJob()
        job.resolve_signal_external_workflow.seq = command.seq
        if target and wanted.run_id in ("", target.run_id):
            signal = act.WorkflowActivationJob()
            signal.signal_workflow.signal_name = command.signal_name
            signal.signal_workflow.originating_event_id = next(self._numbers)
            signal.signal_workflow.input.extend(command.args)
            self.post(target, signal)
        else:
            gone = ApplicationError("the workflow has ended", type="NotFound", non_retryable=True)
            job.resolve_signal_external_workflow.failure.CopyFrom(proto_of(gone))
        self.post(run, job)

    def _update_response(self, run: Run, command: cmd.UpdateResponse) -> None:
        name = command.protocol_instance_id
        if command.HasField("accepted"):
            run.updates[name].accepted = True
        elif command.HasField("completed"):
            self._answer(run.updates[name], Answer(value=command.completed))
        else:
            update = run.updates[name] if run.updates[name].accepted else run.updates.pop(name)
            failure = command.rejected
            self._answer(update, Answer(failure.application_failure_info.type or "failed", failure.message))

    def _answer(self, update: Update, answer: Answer) -> None:
        update.answer = answer
        for answered in update.waiting:
            self.after(self.delay(), lambda answered=answered: answered(answer))  # type: ignore[misc]
        update.waiting = []

    # ---- how runs end

    def _complete_workflow_execution(self, run: Run, command: cmd.CompleteWorkflowExecution) -> None:
        self._close(run, "completed", command.result, None)

    def _fail_workflow_execution(self, run: Run, command: cmd.FailWorkflowExecution) -> None:
        self._close(run, "failed", None, command.failure)

    def _cancel_workflow_execution(self, run: Run, command: cmd.CancelWorkflowExecution) -> None:
        self._close(run, "cancelled", None, proto_of(CancelledError("Workflow cancelled")))

    def _continue_as_new_workflow_execution(self, run: Run, command: cmd.ContinueAsNewWorkflowExecution) -> None:
        signals = [job for job in run.inbox if job.HasField("signal_workflow")]
        self._close(run, "continued", None, None)
        successor = self.start(run.definition.name, run.id, list(command.arguments), run.parent, run.seq)
        for job in signals:
            self.post(successor, job)

    def _close(self, run: Run, status: str, result: Payload | None, failure: Failure | None) -> None:
        run.status, run.result, run.failure, run.ended = status, result, failure, self.now
        for timer in run.timers.values():
            timer[2] = None
        for update in run.updates.values():
            if update.answer is None:
                self._answer(update, Answer("accepted last" if update.accepted and status != "continued" else "again"))
        for child in run.children.values():
            self.cancel(child.id) if self.runs[child.id] is child else None
        if run.parent and run.parent.status == "running" and status != "continued":
            self.post(run.parent, ended(run, failure))
        run.evict()
        self.closed(run)
