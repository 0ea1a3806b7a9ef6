"""Measures consecutive hot switches of one job on the real stack, from the ranks' step logs and the workflow histories."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from rekindle import ids
from rekindle.cli.demos import measure
from rekindle.cli.demos.scenario import manifest
from rekindle.cli.demos.sub_health import SubHealth
from rekindle.cli.stack import Stack
from rekindle.client import Rekindle
from rekindle.cluster_client import ClusterClient
from rekindle.model.base import Value
from rekindle.model.incident import Incident
from rekindle.model.manifest import parse
from rekindle.model.mode import Outcome
from rekindle.model.picture import StepRecord

STEPS_BETWEEN = 15
PATIENCE = 120.0
NEVER_ASIDE = {"nodeIncidents": 0.0}
"""Limit of a job with which no node is set aside, however often it is to blame."""


class Repeated(SubHealth):
    """Options of a job whose nodes may turn sub-healthy as often as the benchmark wants."""

    @property
    def limits(self) -> dict[str, float]:
        """Limits of the job."""
        return {**super().limits, **NEVER_ASIDE}


class Sample(Value):
    """Measurement of one hot switch; all values are in seconds."""

    pause: float
    """Largest gap between two completed steps around the switch, minus the median gap before the fault."""
    first_order: float
    """Time from the moment when the watcher saw the fault to the first order on the stream."""
    control_plane: float
    """Time of the control plane inside the pause: from the accepted report of the pause to the delivered order `migration`."""
    total: float
    """Time from the first decision to the verdict; most of it is the loading of the backup."""


async def measure_switches(stack: Stack, directory: Path, count: int, tell: Callable[[str], None]) -> list[Sample]:
    """Switches pod rank 1 back and forth `count` times."""
    rekindle = await Rekindle.connect(stack.addresses.temporal)
    async with ClusterClient(Path(stack.addresses.socket)) as cluster:
        job = await cluster.submit(parse(manifest(Repeated(steps=1_000_000))))
        job_id = job.metadata.uid
        job_directory = next((directory / "jobs").glob(f"gpt-{job_id[:8]}*"))
        samples: list[Sample] = []
        for number in range(1, count + 1):
            await _more_steps(job_directory)
            pods = await cluster.pods(job_id)
            node = next(p.spec.node_name for p in pods if p.metadata.annotations.get("hccl/rankIndex") == "1")
            await cluster.degrade(node, "80E18005", "NPU link is degraded")
            incident = await _incident(rekindle, job_id, number)
            await _more_steps(job_directory)
            await cluster.heal(node)
            samples.append(await _sample(rekindle, job_id, incident, measure.read_steps(job_directory)))
            tell(f"{number} of {count}: pause {samples[-1].pause * 1000:.0f} ms")
        await cluster.delete_job(job_id)
    return samples


async def _more_steps(job_directory: Path) -> None:
    goal = measure.last_step(measure.read_steps(job_directory)) + STEPS_BETWEEN
    async with asyncio.timeout(PATIENCE):
        while measure.last_step(measure.read_steps(job_directory)) < goal:
            await asyncio.sleep(0.2)


async def _incident(rekindle: Rekindle, job_id: str, number: int) -> Incident:
    async with asyncio.timeout(PATIENCE):
        while True:
            await asyncio.sleep(1)  # a query would load the worker that is measured: by then the first order is sent
            for incident in (await rekindle.status(job_id)).state.history:
                if incident.number == number:
                    assert incident.verdict is Outcome.RECOVERED, incident
                    return incident


async def _sample(rekindle: Rekindle, job_id: str, incident: Incident, records: list[StepRecord]) -> Sample:
    job, mode = (await rekindle.status(job_id)).state.job, incident.ladder[0].mode
    recovery = rekindle.temporal.get_workflow_handle(ids.recovery_workflow(job, incident.number, mode))
    history = await recovery.fetch_history()
    orders = _orders(history.events)
    paused = _time(next(e for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED))
    seen = incident.faults[0].seen_at
    assert seen is not None, "the watcher says when it saw a fault"
    return Sample(
        pause=measure.pause_seconds(records, seen.timestamp()),
        first_order=(orders[0] - seen.replace(tzinfo=None)) / timedelta(seconds=1),
        control_plane=(orders[2] - paused) / timedelta(seconds=1),
        total=incident.seconds,
    )


def _orders(events: Any) -> list[datetime]:
    """Returns the times at which the orders were delivered, in their order."""
    scheduled = {
        event.event_id for event in events if event.activity_task_scheduled_event_attributes.activity_type.name == "deliver_order"
    }
    return [_time(e) for e in events if e.activity_task_completed_event_attributes.scheduled_event_id in scheduled]


def _time(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime()
