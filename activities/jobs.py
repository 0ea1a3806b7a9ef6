"""What a workflow cannot do itself: ask the `TrainingJob` by an update, and terminate a recovery that does not even cancel."""

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.heartbeat import beating
from rekindle.ids import ErrorTypes, Updates, job_workflow
from rekindle.model.asks import AskRequest, TerminateRequest
from rekindle.model.recovery import Receipt


class JobActivities:
    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn
    async def ask_job(self, request: AskRequest) -> Receipt:
        """Asks the job's workflow to run a mode.

        Raises: `job.unknown`, `job.busy`, `request.invalid`, `request.refused`, none of which a retry mends.
        """
        handle = self._client.get_workflow_handle(job_workflow(request.job_id))
        async with beating():
            try:
                receipt: Receipt = await handle.execute_update(
                    Updates.REQUEST, request.request, id=activity.info().workflow_run_id, result_type=Receipt
                )
                return receipt
            except WorkflowUpdateFailedError as error:
                raise refusal(error) from error
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise unknown_job(request.job_id) from error
                raise

    @activity.defn
    async def terminate_recovery(self, request: TerminateRequest) -> None:
        """Ends a recovery that did not process its cancellation in time."""
        async with beating():
            try:
                await self._client.get_workflow_handle(request.workflow_id).terminate(request.reason)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise


def unknown_job(job_id: str) -> ApplicationError:
    return ApplicationError(
        f"job {job_id} is not registered: accepted is the UID of a submitted job",
        type=ErrorTypes.JOB_UNKNOWN,
        non_retryable=True,
    )


def refusal(error: WorkflowUpdateFailedError) -> ApplicationError:
    """The reason of a rejected update, as an error that no retry mends. It is an answer and no failure: nothing is logged."""
    cause = error.cause
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else ErrorTypes.REQUEST_REFUSED
    words = cause.message if isinstance(cause, ApplicationError) else str(cause)
    return ApplicationError(words, type=kind, non_retryable=True, category=ApplicationErrorCategory.BENIGN)
