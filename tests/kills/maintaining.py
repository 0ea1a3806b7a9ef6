"""One maintenance of links, failed over and switched back, during which a process is killed; and its result."""

import asyncio
import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateStage
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from rekindle import ids
from rekindle.model.links import NodeLinks
from rekindle.model.maintenance import FailoverRequest, Maintenance, Stage, SwitchBack
from rekindle.model.state import JobState, JobStatus
from rekindle.temporal import TASK_TIMEOUT, Attributes
from tests.kills.calls import Noted
from tests.kills.managers import Manager
from tests.kills.modes import LINK_FAILOVER
from tests.kills.trial import Kill, Trial, Trials

SWITCHES = (True, False)
"""Targets of the two switches: the backup link, and the first link again."""


@dataclass
class Maintained:
    """State after a maintenance."""

    known: Maintenance
    """The result of the maintenance."""
    seconds: float
    """Duration from its start to its end."""
    refused: bool
    """True if the first request was refused, and was repeated."""
    history: list[HistoryEvent]
    """History of the maintenance that was requested first."""
    calls: list[Noted]
    met: str
    """Subject of the call at which a process was killed."""
    start: float
    """Seconds that the slowest victim took to be back; 0 where nothing waited for it."""
    peer: Manager
    job: JobState


async def maintain(trials: Trials, kill: Kill | None) -> Maintained:
    """Runs a maintenance that moves the devices of pod rank 1 to their backup link and back."""
    async with trials.training(LINK_FAILOVER, kill) as at:
        links = (NodeLinks(node=at.struck.spec.node_name, devices=at.struck.status.devices, backup=True),)
        maintenance = ids.failover_workflow(at.job, links)
        began = time.time()
        async with trials.counting(at):
            first = handle = await _start(trials, at, maintenance, links)
            while not await _on_backup(handle):
                handle = await _start(trials, at, maintenance, links)
            await _switch_back(handle)
            ended = await _end(handle)
            known = await handle.result()
            job = await _job(at)
        return Maintained(
            known=known,
            seconds=ended - began,
            refused=handle is not first,
            history=await trials.history(maintenance, str(first.first_execution_run_id)),
            calls=trials.calls,
            met=at.met,
            start=at.start,
            peer=at.peer,
            job=job,
        )


async def _start(trials: Trials, at: Trial, maintenance: str, links: tuple[NodeLinks, ...]) -> WorkflowHandle[Any, Maintenance]:
    """Starts a maintenance as a client does: it repeats the request under one id until it is accepted."""
    while True:
        try:
            return await trials.client.start_workflow(
                ids.Workflows.LINK_FAILOVER,
                FailoverRequest(job=at.job.id, name=at.job.name, links=links),
                id=maintenance,
                task_queue=ids.CONTROL_QUEUE,
                task_timeout=TASK_TIMEOUT,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                result_type=Maintenance,
            )
        except RPCError:
            await asyncio.sleep(0.2)


async def _on_backup(handle: WorkflowHandle[Any, Maintenance]) -> bool:
    """Waits until its history has the switch to the backup link; False: it was refused."""
    while True:
        try:
            async for event in handle.fetch_history_events(wait_new_event=True):
                fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
                phase = fields.get(Attributes.PHASE.name)
                if phase and json.loads(phase.data) == Stage.ON_BACKUP:
                    return True
            return False
        except RPCError:
            await asyncio.sleep(0.1)  # the server is down


async def _switch_back(handle: WorkflowHandle[Any, Maintenance]) -> None:
    """Requests the switch back as a client does: it repeats the request under one id until it is accepted."""
    request = str(uuid.uuid4())
    while True:
        try:
            await handle.start_update(
                ids.FailoverUpdates.SWITCH_BACK, SwitchBack(), id=request, wait_for_stage=WorkflowUpdateStage.ACCEPTED
            )
        except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
            await asyncio.sleep(0.2)
        else:
            return


async def _end(handle: WorkflowHandle[Any, Maintenance]) -> float:
    """Returns the time at which the maintenance ended."""
    while True:
        try:
            events = [event async for event in handle.fetch_history_events(wait_new_event=True)]
            return events[-1].event_time.ToMicroseconds() / 1e6
        except RPCError:
            await asyncio.sleep(0.1)  # the server is down


async def _job(at: Trial) -> JobState:
    """Returns the job's state, once its history has both switches."""
    while True:
        try:
            found: JobStatus = await at.entity.query(ids.Queries.STATUS, result_type=JobStatus)
            if len(found.state.history) == len(SWITCHES) and not found.running:
                return found.state
        except RPCError:
            pass  # no worker answers
        await asyncio.sleep(0.1)
