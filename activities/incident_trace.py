"""Exports the trace of an incident that has ended. Called by `JournalActivities.remember`, which is repeated until it is done."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from temporalio import activity
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, TemporalError
from temporalio.service import RPCError, RPCStatusCode

from activities.incident_spans import IncidentSpans, modes_of
from rekindle.ids import Queries
from rekindle.model.state import JobStatus
from rekindle.otlp import exporter
from rekindle.spans import Span

WITHIN = 3.0
"""Seconds for reading the histories of an incident."""

SENT_WITHIN = 1.0
"""Seconds for which the note of an incident waits until its spans are sent, so that a kill does not lose them. A collector that
does not answer delays nothing else."""

RPC = timedelta(seconds=2)

TRIES = 6
"""Tries of a note in which histories are read that Temporal does not give. Later notes wait for it."""

logger = logging.getLogger("control")


async def export_incident(client: Client | None, number: int, began: float) -> None:
    """Exports the trace of an incident of the job's workflow that runs this activity. Does nothing if traces are off.

    Args:
        began: time of the event loop at which this try of the activity began.

    Raises:
        ApplicationError: Temporal does not give the histories now; the activity is to be repeated.
    """
    export = exporter()
    if export is None or client is None or not number:
        return
    try:
        async with asyncio.timeout(min(WITHIN, _left(began) - SENT_WITHIN)):
            spans = await _read(client, number)
    except (RPCError, TemporalError, TimeoutError) as error:
        is_gone = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
        if activity.info().attempt < TRIES and not is_gone:
            words = f"the histories of incident {number} were not read: {error}"
            raise ApplicationError(words, type="trace.unread", category=ApplicationErrorCategory.BENIGN) from error
        logger.warning("trace not drawn", extra={"incident": number, "error": f"{error}"})
        return
    if drawn := _drawn(spans, number):
        export.export(drawn)
        await export.flush(SENT_WITHIN)


def _left(began: float) -> float:
    """Returns the seconds that this try of the activity has left."""
    limit = activity.info().start_to_close_timeout
    return began + limit.total_seconds() - asyncio.get_running_loop().time() if limit else WITHIN + SENT_WITHIN


def _drawn(spans: IncidentSpans | None, number: int) -> list[Span]:
    """Returns the spans of an incident. A history that cannot be drawn, as of another version, delays no note."""
    try:
        return spans.drawn() if spans else []
    except Exception:
        logger.exception("history not drawn", extra={"incident": number})
        return []


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
    histories = await asyncio.gather(*(_history(client.get_workflow_handle(name, run_id=run)) for name, run in runs.items()))
    recoveries = dict(zip(runs, histories, strict=True))
    return IncidentSpans(status.state.job, incidents, events, recoveries)


async def _history(recovery: WorkflowHandle[object, object]) -> Sequence[HistoryEvent]:
    """Returns the history of a mode; empty: it was deleted."""
    try:
        return (await recovery.fetch_history(rpc_timeout=RPC)).events
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return ()
        raise
