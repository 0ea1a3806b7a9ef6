"""Activity under the driver, through its attempts: lost and repeated, timed out, cancelled."""

from typing import TYPE_CHECKING, Any

import temporalio.bridge.proto.workflow_activation.workflow_activation_pb2 as act
import temporalio.bridge.proto.workflow_commands.workflow_commands_pb2 as cmd
from google.protobuf.duration_pb2 import Duration
from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError

from tests.model.world.driver_runs import PAYLOADS, Run, proto_of

if TYPE_CHECKING:
    from tests.model.world.driver import Driver


class Activity:
    """Scheduled activity, through its attempts. Its performer answers once, or never."""

    def __init__(self, driver: "Driver", run: Run, command: cmd.ScheduleActivity) -> None:
        self.driver, self.run, self.command = driver, run, command
        self.name, self.queue = command.activity_type, command.task_queue
        self.open, self.attempt, self.performing = True, 0, False
        self.scheduled = driver.now
        if command.HasField("schedule_to_close_timeout"):
            driver.after(seconds(command.schedule_to_close_timeout), self._expire)
        driver.after(driver.delay(), self._begin)

    def argument(self, kind: Any) -> Any:
        return PAYLOADS.from_payloads(self.command.arguments, [kind])[0]

    def _begin(self) -> None:
        if not self.open and self.driver.random.random() < 0.5:
            return  # cancelled in time; otherwise it is carried out and its result is dropped
        self.attempt += 1
        self.performing = True
        attempt = self.attempt
        if self.command.HasField("start_to_close_timeout"):
            self.driver.after(seconds(self.command.start_to_close_timeout), lambda: self._retry(attempt, None))
        if self.driver.happens():
            self._lose(attempt)  # before anything was done
        else:
            self.driver.perform(self, attempt)

    def _lose(self, attempt: int) -> None:
        beats = self.command.HasField("heartbeat_timeout")
        limit = self.command.heartbeat_timeout if beats else self.command.start_to_close_timeout
        self.driver.after(seconds(limit), lambda: self._retry(attempt, None))

    def complete(self, attempt: int, value: object = None) -> None:
        if attempt != self.attempt or not self.performing:
            return
        if self.driver.happens():
            self._lose(attempt)  # after it was carried out
        elif self.open:
            self.performing = False
            job = act.WorkflowActivationJob()
            job.resolve_activity.result.completed.result.CopyFrom(PAYLOADS.to_payloads([value])[0])
            self.driver.after(self.driver.delay(), lambda: self._resolve(job))

    def fail(self, attempt: int, error: ApplicationError) -> None:
        limit = self.command.retry_policy.maximum_attempts
        never_again = error.non_retryable or error.type in self.command.retry_policy.non_retryable_error_types
        if never_again or 0 < limit <= attempt:
            if attempt == self.attempt and self.performing:
                self._resolve(self._failed(error))
        else:
            self._retry(attempt, error)

    def _retry(self, attempt: int, error: ApplicationError | None) -> None:
        if attempt != self.attempt or not self.performing or not self._is_wanted():
            return
        self.performing = False
        policy = self.command.retry_policy
        if 0 < policy.maximum_attempts <= attempt:
            self._resolve(self._failed(error or _timed_out()))
            return
        first, most = seconds(policy.initial_interval) or 1.0, seconds(policy.maximum_interval) or 100.0
        self.driver.after(min(most, first * 2.0 ** min(attempt - 1, 10)), lambda: self._begin() if self._is_wanted() else None)

    def _is_wanted(self) -> bool:
        """Returns whether the activity may be retried: it is open, and its run has not ended."""
        return self.open and self.run.status == "running"

    def _expire(self) -> None:
        self._resolve(self._failed(_timed_out()))

    def _failed(self, cause: BaseException) -> act.WorkflowActivationJob:
        ids = {"scheduled_event_id": 0, "started_event_id": 0, "identity": "", "activity_id": ""}
        error = ActivityError("Activity failed", activity_type=self.name, retry_state=None, **ids)  # type: ignore[arg-type]
        error.__cause__ = cause
        job = act.WorkflowActivationJob()
        job.resolve_activity.result.failed.failure.CopyFrom(proto_of(error))
        return job

    def cancel(self) -> None:
        job = act.WorkflowActivationJob()
        error = self._failed(CancelledError("Activity cancelled")).resolve_activity.result.failed.failure
        job.resolve_activity.result.cancelled.failure.CopyFrom(error)
        self._resolve(job)

    def _resolve(self, job: act.WorkflowActivationJob) -> None:
        if self.open and self.run.status == "running":
            self.open = False
            job.resolve_activity.seq = self.command.seq
            self.driver.post(self.run, job)


def seconds(duration: Duration) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def _timed_out() -> exceptions.TimeoutError:
    return exceptions.TimeoutError("activity timed out", type=exceptions.TimeoutType.START_TO_CLOSE, last_heartbeat_details=[])
