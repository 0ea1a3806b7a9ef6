"""Metrics of the whole installation, which the watcher reads from its index of the cluster and from Temporal's list."""

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime

from prometheus_client import Gauge
from temporalio.client import Client
from temporalio.service import RPCError

from rekindle.ids import Workflows, incident_of
from rekindle.model.limits import Limits
from rekindle.policy.modes import job_phase
from rekindle.policy.modes.mode_table import MODES
from rekindle.temporal import Attributes
from workers.watcher.watcher import Watcher

COUNT = 10.0
"""Seconds between two counts of the workflows in Temporal's list."""

WITHIN = 30.0
"""Seconds for one count."""

OUTDATED = 60.0
"""Seconds after which numbers that could not be renewed are shown no more. An old number looks like a new one, and keeps alerts
silent."""

SET_ASIDE = "set aside"
"""State of a node, and phase of its record."""

JOBS = Gauge("rekindle_jobs", "Jobs by state, as Temporal's list shows them.", ("state",))
RUNNING = Gauge("rekindle_incidents_running", "Modes that run now.", ("mode",))
OVERDUE = Gauge("rekindle_incidents_overdue", "Modes that run longer than the limits of the installation allow.", ("mode",))
DOWNGRADED = Gauge("rekindle_downgraded_jobs", "Jobs whose sub-health policy was downgraded and not lifted.")
NODES = Gauge("rekindle_nodes", "Nodes by state; those that are set aside are counted as healthy or unhealthy too.", ("state",))
BREAKER = Gauge("rekindle_breaker_open", "1 if a storm holds modes that move pods, or a rule is not believed.", ("breaker",))

logger = logging.getLogger("watcher")


def expose(watcher: Watcher) -> None:
    """Lets the gauges of the cluster show what this watcher sees."""
    NODES.labels("healthy").set_function(lambda: watcher.nodes()[0] - watcher.nodes()[1])
    NODES.labels("unhealthy").set_function(lambda: watcher.nodes()[1])
    BREAKER.labels("storm").set_function(lambda: watcher.has_storm)
    BREAKER.labels("rule").set_function(lambda: watcher.doubts_rules)
    DOWNGRADED.set_function(watcher.downgraded)


async def keep_counting(client: Client, limits: Limits, every: float = COUNT) -> None:
    """Counts jobs, running modes and nodes set aside, until it is cancelled.

    Args:
        every: seconds between two counts.
    """
    loop = asyncio.get_running_loop()
    counted_at = loop.time()
    while True:
        try:
            async with asyncio.timeout(WITHIN):
                await _count_jobs(client)
                await _count_modes(client, limits)
            counted_at = loop.time()
        except (RPCError, RuntimeError, TimeoutError) as error:  # RuntimeError: a lazy client that cannot connect
            logger.info("workflows not counted", extra={"error": f"{error or type(error).__name__}"})
            if loop.time() - counted_at > OUTDATED:
                _forget()
        await asyncio.sleep(every)


def _forget() -> None:
    for gauge in (JOBS, RUNNING, OVERDUE):
        gauge.clear()
    NODES.remove(SET_ASIDE)


async def _count_jobs(client: Client) -> None:
    for state in job_phase.PHASES:
        JOBS.labels(state).set(await _number(client, Workflows.TRAINING_JOB, state))
    NODES.labels(SET_ASIDE).set(await _number(client, Workflows.NODE_RECORD, SET_ASIDE))


async def _number(client: Client, workflow: str, phase: str) -> int:
    query = f"WorkflowType = '{workflow}' AND ExecutionStatus = 'Running' AND {Attributes.PHASE.name} = '{phase}'"
    return (await client.count_workflows(query)).count


async def _count_modes(client: Client, limits: Limits) -> None:
    rows = {row.workflow: row for row in MODES}
    types = ", ".join(f"'{workflow}'" for workflow in rows)
    now, running, overdue = datetime.now(UTC), Counter[str](), Counter[str]()
    async for run in client.list_workflows(f"WorkflowType IN ({types}) AND ExecutionStatus = 'Running'"):
        row = rows[run.workflow_type]
        if incident_of(run.id):  # others only pass a request on
            deadline = row.deadline(limits)
            running[row.mode] += 1
            overdue[row.mode] += deadline is not None and run.start_time + deadline < now
    for row in rows.values():
        RUNNING.labels(row.mode.value).set(running[row.mode])
        OVERDUE.labels(row.mode.value).set(overdue[row.mode])
