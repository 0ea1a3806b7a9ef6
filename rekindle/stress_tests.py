"""Stress tests of jobs, for callers that request one now and read the result later, as platforms do on the wire.

Imports no workflow. To wait for the verdict, use `Rekindle.stress_test`. Errors are those of `rekindle.errors`.
"""

import asyncio

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.client import Rekindle, begun
from rekindle.errors import BadInput, Refused, RekindleError, Unavailable
from rekindle.model.mode import Mode, Outcome
from rekindle.model.stress import StressRequest
from rekindle.model.verdict import Verdict
from rekindle.policy.modes import requests
from rekindle.policy.modes.mode_table import row_of
from rekindle.temporal import Attributes

LOOK = 0.1
"""Seconds between two looks at a test that is beginning."""

REFUSED = 10
"""Maximum number of consecutive requests that are checked for one that was not refused."""


class StressTests:
    def __init__(self, rekindle: Rekindle) -> None:
        self._rekindle = rekindle

    async def begin(self, job: str, stress: StressRequest, *, requested_by: str = "") -> str:
        """Begins one; returns the id of its workflow when training is being paused for it.

        Raises:
            BadInput: unknown job. Busy: the job is being recovered. Refused: it cannot be tested as it is, or has no such node.
        """
        job_id = await self._rekindle.find(job)
        request = requests.read({"job": job_id, "stress": stress, "requested_by": requested_by})
        handle = await self._rekindle.begin(Mode.STRESS_TEST, request)
        ended = asyncio.create_task(self._rekindle.verdict(handle))
        try:
            while not ended.done() and not await self._is_begun(job_id, handle.id):
                await asyncio.wait({ended}, timeout=LOOK)
            if ended.done():
                begun(ended.result())
        finally:
            ended.cancel()
        return handle.id

    async def _is_begun(self, job_id: str, front: str) -> bool:
        """Returns whether the test has found its ranks, and so has begun."""
        try:
            status = await self._rekindle.status(job_id)
            if status.front != front or status.running is not Mode.STRESS_TEST:
                return False
            described = await self._rekindle.temporal.get_workflow_handle(status.recovery).describe()
        except (Unavailable, RPCError):
            return False
        return described.typed_search_attributes.get(Attributes.PHASE) != row_of(Mode.STRESS_TEST).begins

    async def verdict(self, test: str) -> Verdict:
        """Waits for the end of a test that `begin` has begun."""
        handle: WorkflowHandle[object, Verdict] = self._rekindle.temporal.get_workflow_handle(test, result_type=Verdict)
        return await self._rekindle.verdict(handle)

    async def newest(self, job_id: str, begun: str = "") -> str:
        """Returns the workflow id of the job's running test, or of the last one that was not refused; empty: the server has none.

        A new one is listed within about a second.

        Args:
            begun: one that is known.
        """
        fronts = f"WorkflowType = '{ids.Workflows.STRESS_TEST}' AND WorkflowId STARTS_WITH '{ids.request_workflow(job_id, '')}'"
        try:
            found = [run async for run in self._rekindle.temporal.list_workflows(fronts, limit=100)]
            if begun and begun not in {run.id for run in found}:
                found.append(await self._rekindle.temporal.get_workflow_handle(begun).describe())
        except RPCError as error:
            if error.status in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.NOT_FOUND):
                return begun
            raise self._rekindle.unanswered(error) from error
        latest = sorted(found, key=lambda run: (_runs(run), run.start_time), reverse=True)
        for run in latest[:REFUSED]:
            if _runs(run) or not await self._was_refused(run.id):
                return run.id
        return latest[0].id if latest else ""

    async def _was_refused(self, test: str) -> bool:
        try:
            return (await self.verdict(test)).outcome is Outcome.REFUSED
        except (BadInput, Refused):
            return True
        except RekindleError:
            return False


def _runs(run: WorkflowExecution) -> bool:
    return run.status is WorkflowExecutionStatus.RUNNING
