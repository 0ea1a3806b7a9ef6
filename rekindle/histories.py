"""Histories of recoveries, as Temporal keeps them."""

import asyncio

from temporalio.service import RPCError, RPCStatusCode

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.model.job import Job
from rekindle.model.mode import Mode
from rekindle.model.picture import Recorded


async def recorded(rekindle: Rekindle, job: Job, incident: int) -> list[Recorded]:
    """Returns the histories of an incident's recoveries. Those that are older than the retention of the namespace are gone.

    Raises:
        Unavailable: Temporal does not answer.
    """
    found = await asyncio.gather(*(_history(rekindle, ids.recovery_workflow(job, incident, mode)) for mode in Mode))
    return [one for one in found if one]


async def _history(rekindle: Rekindle, workflow_id: str) -> Recorded | None:
    try:
        history = await rekindle.temporal.get_workflow_handle(workflow_id).fetch_history()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise rekindle.unanswered(error) from error
    return Recorded(workflow_id=workflow_id, events=tuple(history.to_json_dict()["events"]))
