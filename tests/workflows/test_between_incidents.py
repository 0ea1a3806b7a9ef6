"""Work of a job's workflow between two incidents, in a run that has several of them."""

import asyncio

import pytest
from temporalio.testing import WorkflowEnvironment

from rekindle.model.fault import Decided
from rekindle.model.limits import Limits
from rekindle.model.mode import Outcome
from tests.fakes.scripted_cluster import ScriptedCluster
from tests.support.harness import Harness, a_job, harness, sub_health, training
from tests.workflows.test_drains import LATER, SOON, cordoned
from tests.workflows.test_problems import UNRANKED, problems
from workflows import training_job

several = pytest.mark.parametrize("room", [0, 200], ids=["one incident a run", "several"])


async def refusals(world: Harness, count: int) -> None:
    """Waits until so many refusals were recorded."""
    async with asyncio.timeout(60):
        while sum(event.reason == "RecoveryRefused" for event in world.cluster.events) < count:
            await asyncio.sleep(0.03)


@several
async def test_a_refusal_is_recorded_again_after_an_observed_incident(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """An incident that is only observed counts like one that was recovered: after it, the same may be said again."""
    monkeypatch.setattr(training_job, "ROOM", room)
    async with harness(temporal, a_job(observe=True)) as world:
        await problems(world, UNRANKED)
        await world.fault(sub_health())
        await refusals(world, 1)
        await problems(world)
        await world.event("RecoveryObserved")
        await problems(world, UNRANKED)
        await world.fault(sub_health())
        await refusals(world, 2)


async def test_a_run_that_becomes_long_between_two_incidents_goes_on(
    temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends at the end of an incident only. In its middle, what was said since the last incident would be said again."""
    async with training(temporal, a_job()) as (world, _peer):
        await world.fault(sub_health())
        await world.incident()
        run = await world.entity.describe()
        monkeypatch.setattr(training_job, "ROOM", run.history_length + 25)
        await problems(world, UNRANKED)
        await world.fault(sub_health(0, "node-0", "e2"))
        await refusals(world, 1)
        for number in range(12):
            await world.attached_as(f"10.0.0.{number}")
        now = await world.entity.describe()
        assert (now.run_id, now.history_length > run.history_length + 25) == (run.run_id, True)
        assert sum(event.reason == "RecoveryRefused" for event in world.cluster.events) == 1


async def test_pods_left_behind_are_deleted_although_a_fault_is_given_time(temporal: WorkflowEnvironment) -> None:
    """A rule gives a sub-health of the other pod six hours. Until the old pod is deleted, two pods have one rank."""
    job = a_job(limits=Limits(old_pod_deleted=SOON))
    cluster = ScriptedCluster(job)
    old = cluster.holder(1).metadata.name
    cluster.undeletable.add(old)
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.fault(sub_health())
        assert (await world.incident()).verdict is Outcome.RECOVERED
        await world.settled(lambda status: bool(status.state.left_behind))
        decided = Decided(rule="flapping", saw="port down", settle=6 * 3600.0)
        await world.fault(sub_health(0, "node-0", "slow").model_copy(update={"decided": decided}))
        cluster.undeletable.clear()
        await world.skip(LATER, of=world.entity)
        await world.settled(lambda status: not status.state.left_behind)
        assert old not in cluster.pods_by_name


async def test_a_standby_is_made_again_although_a_drain_waits(temporal: WorkflowEnvironment) -> None:
    """The drain is tried again every minute, and waits for a spare. A standby is one."""
    job = a_job(standbys=1, limits=Limits(backup_scheduled=SOON))
    cluster = ScriptedCluster(job)
    cluster.refuses_standbys, cluster.spare = "no node is free", False
    async with training(temporal, job, cluster=cluster) as (world, _peer):
        await world.event("StandbyNotMade")
        await world.fault(cordoned())
        assert (await world.incident()).verdict is Outcome.IGNORED
        cluster.refuses_standbys = ""
        for number in range(2, 10):
            await world.skip(LATER, of=world.entity)
            if (await world.incident(number)).verdict is Outcome.RECOVERED:
                break
        assert (await world.incident(number)).verdict is Outcome.RECOVERED
