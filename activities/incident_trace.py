"""Exports the trace of an incident that has ended. Called by `JournalActivities.remember`, which is repeated until it is done."""

import asyncio
import logging
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import TemporalError
from temporalio.service import RPCError

from activities.incident_spans import IncidentSpans, modes_of
from rekindle.ids import Queries
from rekindle.model.state import JobStatus
from rekindle.otlp import exporter

WITHIN = 3.0
"""Seconds for reading the histories of an incident."""

SENT_WITHIN = 1.0
"""Seconds for which the note of an incident waits until its spans are sent, so that a kill does not lose them. A collector that
does not answer delays nothing else."""

RPC = timedelta(seconds=2)

logger = logging.getLogger("control")


async def export_incident(client: Client | None, number: int) -> None:
    """Exports the trace of an incident of the job's workflow that runs this activity. Does nothing if traces are off."""
    export = exporter()
    if export is None or client is None or not number:
        return
    try:
        async with asyncio.timeout(WITHIN):
            spans = await _read(client, number)
    except (RPCError, TemporalError, TimeoutError) as error:
        logger.warning("trace not drawn", extra={"incident": number, "error": f"{error}"})
        return
    if spans:
        export.export(spans.drawn())
        await export.flush(SENT_WITHIN)


async def _read(client: Client, number: int) -> IncidentSpans | None:
    """Returns what is needed to draw an incident; None: the job's workflow does not know it any more."""
    info = activity.info()
    assert info.workflow_id is not None
    entity = client.get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
    job = client.get_workflow_handle(info.workflow_id)
    status = await job.query(Queries.STATUS, result_type=JobStatus, rpc_timeout=RPC)
    incidents = [one for one in status.state.history if one.number <= number]
    if not incidents or incidents[-1].number != number:
        return None
    events = (await entity.fetch_history(rpc_timeout=RPC)).events
    wanted = f"/{number}-"
    runs = {name: run for name, run in modes_of(events).items() if wanted in name}
    histories = [client.get_workflow_handle(name, run_id=run).fetch_history(rpc_timeout=RPC) for name, run in runs.items()]
    recoveries = {history.workflow_id: history.events for history in await asyncio.gather(*histories)}
    return IncidentSpans(status.state.job, incidents, events, recoveries)
