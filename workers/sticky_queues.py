"""Removes recoveries from the sticky queues of control workers that died. Called by each control worker when it starts.

A workflow's next task goes to the worker that ran the one before. Other workers get it only after `STICKY_TIMEOUT`. A recovery
and its job's workflow would each wait a second for a dead worker.
"""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from rekindle.ids import SPARES
from rekindle.policy.modes.mode_table import MODES

JUST_NOW = timedelta(seconds=10)
"""Recoveries that ended within this time are included, as their jobs' histories may lack the end. After it the server itself
notices that a worker is dead."""

WITHIN = 5.0
"""Time limit in seconds for all workflows; those that are left wait for their second."""

logger = logging.getLogger("control")


async def leave_sticky_queues(client: Client) -> None:
    """Resets the sticky queues of recoveries that run or have just ended, and of the workflows that they wait for: those of their
    jobs, and the one that decides who gets a spare node.

    Any worker can then take their next tasks. A worker that lives loses only its cached state of them.
    """
    types = ", ".join(f"'{row.workflow}'" for row in MODES)
    since = (datetime.now(UTC) - JUST_NOW).isoformat(timespec="seconds")
    query = f"WorkflowType IN ({types}) AND (ExecutionStatus = 'Running' OR CloseTime > '{since}')"
    try:
        async with asyncio.timeout(WITHIN):
            await _leave(client, SPARES)
            async for recovery in client.list_workflows(query):
                for workflow_id in filter(None, (recovery.id, recovery.parent_id)):
                    await _leave(client, workflow_id)
    except (RPCError, TimeoutError) as error:
        logger.warning("sticky queues of a lost worker not reset", extra={"error": str(error)})


async def _leave(client: Client, workflow_id: str) -> None:
    request = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow_id))
    try:
        await client.workflow_service.reset_sticky_task_queue(request)
    except RPCError as error:
        logger.debug("workflow already ended", extra={"workflow": workflow_id, "error": str(error)})
