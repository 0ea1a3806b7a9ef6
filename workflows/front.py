"""A mode that a client started by itself: it asks the `TrainingJob`, waits, and passes the verdict on. Once, for all modes."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from rekindle.ids import ErrorTypes, Signals, job_workflow, recovery_workflow
from rekindle.model.recovery import ModeRequest, Outcome, Verdict
from workflows import steps
from workflows.mode import ModeWorkflow

LIMIT = timedelta(hours=6)
"""For a job whose workflow was terminated and tells nobody; far beyond the limits of any mode."""


async def front(mode: ModeWorkflow) -> Verdict:
    """Asks for the mode and waits for the verdict of the real one.

    Raises: ActivityError with `job.unknown`, `job.busy` or `request.invalid`; a refusal is a verdict.
    """
    asked, info = mode.request, workflow.info()
    workflow.set_current_details(f"asks job {asked.job_id} for a {mode.MODE}")
    request = ModeRequest(
        mode=mode.MODE,
        pod_rank=asked.pod_rank,
        force=asked.force,
        requested_by=asked.requested_by or info.workflow_id,
        front=info.workflow_id,
        front_run=info.run_id,
    )
    try:
        receipt = await steps.ask_job(asked.job_id, request)
    except ActivityError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == ErrorTypes.REQUEST_REFUSED:
            return Verdict(mode=mode.MODE, outcome=Outcome.REFUSED, reason=error.cause.message)
        raise
    workflow.set_current_details(f"{receipt.info}; the work is done by {recovery_workflow(asked.job_id)}")
    try:
        await workflow.wait_condition(lambda: mode.front_verdict is not None, timeout=LIMIT)
    except asyncio.CancelledError:
        await _withdraw(asked.job_id)
        await workflow.wait_condition(lambda: mode.front_verdict is not None, timeout=LIMIT)
    assert mode.front_verdict is not None
    return mode.front_verdict


async def _withdraw(job_id: str) -> None:
    try:
        await workflow.get_external_workflow_handle(job_workflow(job_id)).signal(Signals.WITHDRAWN, workflow.info().workflow_id)
    except FailureError as error:
        raise ApplicationError(f"job {job_id} has ended", type=ErrorTypes.JOB_ENDED) from error
