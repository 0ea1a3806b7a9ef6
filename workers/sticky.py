"""Takes recoveries off the queues of control workers that died. Called by each control worker when it starts.

A workflow's next task goes to the worker that had the one before, and to all others when that one does not take it within
`STICKY_TIMEOUT`. A recovery and its job's workflow would find out in turn that their worker is dead, a second each.
"""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from rekindle.policy.modes import MODES

JUST_NOW = timedelta(seconds=10)
"""A recovery that ended since then may not be in its job's history yet. Behind this the server itself notices who is dead."""

WITHIN = 5.0
"""Seconds for all of them: what is left stalls for its second."""

logger = logging.getLogger("control")


async def leave_sticky_queues(client: Client) -> None:
    """Recoveries that run or have just ended, and their jobs' workflows: any worker takes their next tasks. One that lives loses
    nothing but what it had read of them."""
    types = ", ".join(f"'{row.workflow}'" for row in MODES)
    since = (datetime.now(UTC) - JUST_NOW).isoformat(timespec="seconds")
    query = f"WorkflowType IN ({types}) AND (ExecutionStatus = 'Running' OR CloseTime > '{since}')"
    try:
        async with asyncio.timeout(WITHIN):
            async for recovery in client.list_workflows(query):
                for workflow_id in filter(None, (recovery.id, recovery.parent_id)):
                    await _leave(client, workflow_id)
    except (RPCError, TimeoutError) as error:
        logger.warning("recoveries of a worker that died go on a second later", extra={"error": str(error)})


async def _leave(client: Client, workflow_id: str) -> None:
    request = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow_id))
    try:
        await client.workflow_service.reset_sticky_task_queue(request)
    except RPCError as error:
        logger.debug("it has ended", extra={"workflow": workflow_id, "error": str(error)})
