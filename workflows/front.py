"""Front of a mode that a client started by itself: it sends the request to the `TrainingJob`, and returns the verdict.

One implementation for all modes.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from rekindle.errors import BadInput
from rekindle.ids import ErrorTypes, job_workflow
from rekindle.model.activities.requests import AskRequest, WithdrawRequest
from rekindle.model.activities.targets import TargetsRequest
from rekindle.model.incident import ModeRequest
from rekindle.model.mode import Mode, Outcome
from rekindle.model.stress import Op, StressRequest
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import requests
from workflows import steps
from workflows.mode import shielded


async def front(mode: Mode, given: object) -> Verdict:
    """Sends one update to the job's workflow and waits until it returns the verdict of the real mode.

    If it is cancelled, it withdraws the request and still waits for the verdict, as the mode may have to go to its end.

    Args:
        given: the input as the client wrote it: the SDK decodes the first of two arguments only where both are there.

    Raises:
        ApplicationError with `request.invalid`; ActivityError with `job.unknown` or `request.invalid`. A refusal is a verdict:
        nothing is wrong that a person must look at.
    """
    info, asked = workflow.info(), _read(given)
    workflow.set_current_details(f"asks job {asked.job} for a {mode}")
    job_id = await steps.find_job(asked.job)
    if mode is Mode.STRESS_TEST and asked.stress:
        await _refuse_other_nodes(job_id, asked.stress)
    request = ModeRequest(
        mode=mode,
        pod_rank=asked.pod_rank,
        links=asked.links,
        stress=asked.stress,
        replicas=asked.replicas,
        force=asked.force,
        cheaper=asked.cheaper,
        save=asked.save,
        requested_by=asked.requested_by or info.workflow_id,
        front=info.workflow_id,
    )
    holding = asyncio.ensure_future(steps.hold_request(AskRequest(job_id=job_id, request=request, request_id=info.run_id)))
    workflow.set_current_details(f"asked for a {mode}; the work is done below {job_workflow(job_id)}")
    try:
        return await _answer(mode, asyncio.shield(holding))
    except asyncio.CancelledError:
        await shielded(steps.withdraw_request(WithdrawRequest(job_id=job_id, request_id=info.run_id)))
        return await shielded(_answer(mode, holding))


async def _refuse_other_nodes(job_id: str, wanted: StressRequest) -> None:
    """Raises ApplicationError for a node that the job does not use. If the cluster does not answer, nothing is refused."""
    try:
        targets = await steps.find_targets(TargetsRequest(job_id=job_id, stress=wanted, accepted=tuple(Op)))
    except ActivityError:
        return
    if targets.problem:
        raise ApplicationError(targets.problem, type=ErrorTypes.REQUEST_INVALID, non_retryable=True)


def _read(given: object) -> ModeRequest:
    try:
        return requests.read(given)
    except BadInput as error:
        raise ApplicationError(str(error), type=ErrorTypes.REQUEST_INVALID, non_retryable=True) from error


async def _answer(mode: Mode, holding: asyncio.Future[Verdict]) -> Verdict:
    try:
        return await holding
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type in (ErrorTypes.REQUEST_REFUSED, ErrorTypes.JOB_BUSY):
            passing = cause.type == ErrorTypes.JOB_BUSY
            return Verdict(mode=mode, outcome=Outcome.REFUSED, reason=cause.message, passing=passing)
        raise
