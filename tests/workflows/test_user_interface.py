"""The Temporal UI shows a recovery with summaries, ticked phases and search attributes."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowExecutionStatus as Status
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from rekindle import ids
from rekindle.client import Rekindle
from rekindle.maintenances import Maintenances
from rekindle.model.fault import Sighting
from rekindle.model.limits import Limits
from rekindle.model.links import NodeLinks
from rekindle.model.mode import Outcome
from rekindle.temporal import Attributes
from tests.fakes.peer import Script
from tests.support.harness import Harness, a_job, node_fault, sub_health, training

SOON = timedelta(seconds=0.3)
UPSERT = "EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES"
METADATA = "__temporal_workflow_metadata"


async def _details(handle: Any) -> str:
    metadata: WorkflowMetadata = await handle.query(METADATA, result_type=WorkflowMetadata)
    return metadata.current_details


async def test_a_running_recovery_says_what_it_does(temporal: WorkflowEnvironment) -> None:
    """Static summary and details name fault, ladder and limits; current details tick the phases; attributes say the rest."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        described = await (await world.running()).describe()
        summary, details = await described.static_summary(), await described.static_details()
        assert summary == f"hot switch of {world.job.name}: sub-health node-1 80E18005: NPU link is degraded"
        assert details
        assert "**hot switch** -> job rescheduling" in details
        assert "- pause: 900 s" in details
        assert "(seen by test)" in details
        lines = (await _details(await world.running())).splitlines()
        assert [line.split(":")[0] for line in lines[:3]] == [
            "- [x] training side prepares",
            "- [x] backup pod is scheduled",
            "- [x] backup pod runs",
        ]
        assert lines[3] == "- [ ] **backup loads, training pauses** ..."
        attributes = described.typed_search_attributes
        assert attributes.get(Attributes.JOB) == world.job.name
        assert attributes.get(Attributes.MODE) == "hot switch"
        assert attributes.get(Attributes.NODE) == ["node-1"]
        (fault,) = (await world.status()).state.faults
        assert attributes.get(Attributes.FAULT_AT) == fault.fault.accepted_at
        assert attributes.get(Attributes.PHASE) == "backup loads, training pauses"
        assert (await world.entity.describe()).typed_search_attributes.get(Attributes.PHASE) == "recovering"
        await peer.pause()
        await world.incident()


async def test_a_finished_recovery_reads_as_a_post_mortem(temporal: WorkflowEnvironment) -> None:
    """Verdict and seconds are search attributes; the result names phases and the node to look at; the job has its history."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(sub_health())
        verdict = (await world.incident()).ladder[0]
        attributes = (await world.recovery.describe()).typed_search_attributes
        assert attributes.get(Attributes.VERDICT) == "recovered"
        assert attributes.get(Attributes.SECONDS) == verdict.seconds > 0
        assert verdict.look_at == "node node-1"
        assert [phase.name for phase in verdict.phases] == [
            "training side prepares",
            "backup pod is scheduled",
            "backup pod runs",
            "backup loads, training pauses",
            "training resumes",
            "old pod is deleted",
            "backup pod takes over the rank",
        ]
        assert "incident 1: sub-health node-1" in await _details(world.entity)


async def test_every_activity_and_timer_has_a_line_in_the_history(temporal: WorkflowEnvironment) -> None:
    """Each names its object, so that the timeline can be read without the code."""
    async with training(temporal, a_job(), Script(pauses=False)) as (world, peer):
        await world.fault(sub_health())
        await peer.until(lambda: "new pod running" in peer.orders)
        await world.running()
        async with asyncio.timeout(60):
            while "wait for the report of the pause" not in await _summaries(world):
                await asyncio.sleep(0.03)
        await peer.pause()
        await world.incident()
        summaries = await _summaries(world)
        assert "" not in summaries
        pod = f"{world.job.name}-worker-1"
        for line in (
            "order hot switch",
            "start backup pod for pod rank 1",
            f"wait until {pod}-hot-0001 is scheduled",
            "wait for the report of the pause",
            f"delete {pod} if {pod}-hot-0001 is alive",
            "order migration",
            f"{pod}-hot-0001 takes over pod rank 1",
        ):
            assert line in summaries


async def test_how_a_recovery_ended_is_its_status_in_the_list(temporal: WorkflowEnvironment) -> None:
    """Recovered is Completed, cancelled is Canceled, given up is Failed; each under an id that says job, incident and mode."""
    job = a_job(limits=Limits(restart=SOON))
    async with training(temporal, job, Script(pauses=False)) as (world, peer):
        asked = await world.front(force=True)
        await peer.until(lambda: "new pod running" in peer.orders)
        await asked.cancel()
        cancelled = await world.incident(1)
        assert await _row(world) == (f"recovery/default.{job.name}/1-hot-switch/{job.id[:8]}", Status.CANCELED, "cancelled")
        (verdict,) = cancelled.ladder
        assert [phase.note for phase in verdict.phases if phase.note] == ["cancelled"]
        peer.script = Script()
        await world.fault(sub_health())
        await world.incident(2)
        assert await _row(world) == (f"recovery/default.{job.name}/2-hot-switch/{job.id[:8]}", Status.COMPLETED, "recovered")
        await world.fault(node_fault("node-0"))
        await world.incident(3)
        assert await _row(world) == (f"recovery/default.{job.name}/3-job-rescheduling/{job.id[:8]}", Status.FAILED, "given_up")


async def _row(world: Harness) -> tuple[str, Status | None, str | None]:
    """Returns id, status and verdict of the last recovery."""
    described = await world.recovery.describe()
    return described.id, described.status, described.typed_search_attributes.get(Attributes.VERDICT)


async def test_a_pod_that_is_moved_at_a_wish_leaves_no_node_to_look_at(temporal: WorkflowEnvironment) -> None:
    """The pod was moved by request, and no fault of its node was reported."""
    async with training(temporal, a_job()) as (world, _peer):
        verdict = await (await world.front(force=True)).result()
        assert (verdict.outcome, verdict.look_at) == (Outcome.RECOVERED, "")


@pytest.mark.usefixtures("one_incident_a_run")
async def test_a_fault_costs_few_events_of_a_history(temporal: WorkflowEnvironment) -> None:
    """The job's workflow writes about 45 events for one hot switch, and its recovery about 80. Of these, 2 and 7 renew their rows
    in the list: the row of a job is written only when it changes. A server keeps 51,200 events of a run."""
    async with training(temporal, a_job()) as (world, _peer):
        first = world.client.get_workflow_handle(world.entity.id, run_id=(await world.entity.describe()).run_id)
        before = await _events(first)
        for _ in range(3):
            await world.tell(ids.Updates.SIGHTING, Sighting())
        quiet = await _events(first)
        assert quiet[UPSERT] == before[UPSERT]
        await world.fault(sub_health())
        await world.incident()
        async with asyncio.timeout(60):
            while (await first.describe()).status is Status.RUNNING:
                await asyncio.sleep(0.03)
        entity, recovery = await _events(first) - quiet, await _events(world.recovery)
        assert (entity[UPSERT], recovery[UPSERT]) == (2, 7)
        assert entity.total() <= 60
        assert recovery.total() <= 110


async def _events(handle: WorkflowHandle[Any, Any]) -> Counter[str]:
    """Returns the number of events of each kind in a history."""
    return Counter(EventType.Name(event.event_type) for event in (await handle.fetch_history()).events)


async def _summaries(world: Harness) -> list[str]:
    history = await world.recovery.fetch_history()
    named = [
        event
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes") or event.HasField("timer_started_event_attributes")
    ]
    payloads = [event.user_metadata.summary for event in named]
    return [(await world.client.data_converter.decode([p], [str]))[0] if p.data else "" for p in payloads]


async def test_the_page_of_a_maintenance_says_what_is_on_which_link_since_when_and_what_is_waited_for(
    temporal: WorkflowEnvironment,
) -> None:
    """The page shows it from the failover to the switchback."""
    async with training(temporal, a_job()) as (world, peer):
        await peer.with_links()
        maintenances = Maintenances(Rekindle(world.client))
        links = (NodeLinks(node="node-1", devices=("0", "1"), backup=True),)
        maintenance = await maintenances.fail_over(world.job.id, links)
        since = (await maintenances.settled(maintenance)).since
        lines = (await _details(world.client.get_workflow_handle(maintenance))).splitlines()
        assert lines[:4] == [
            f"**{world.job.name}**: on the backup link",
            "",
            f"- on the backup link: node-1 devices 0,1, since {since:%Y-%m-%d %H:%M:%S}",
            "- waits for the switchback: `rekindle switchback`, or the signal `switchback`",
        ]
